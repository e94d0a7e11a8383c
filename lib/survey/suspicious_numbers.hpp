#pragma once
#include <string>
#include <vector>

#include "trace/tensors.hpp"

namespace kvreplay {

// What queries, keys and values are seldom like in a model, one line for each kind and prompt: heads that repeat each
// other, tensors that are one and the same, norms that do not belong together, attention that is uniform or on a single
// token everywhere, rows that are not rotated as rope_json says. A trace may be right all the same. Throws TraceError
// where a number cannot be read.
std::vector<std::string> suspicious_numbers(const Tensors& trace);
// Of these, and of what shapes tell, the cheapest: more heads than tokens, and kv heads that repeat each other in the
// first layer of a prompt, which a few tokens tell.
std::vector<std::string> suspicious_shapes(const Tensors& trace);

}  // namespace kvreplay
