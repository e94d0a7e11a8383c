#pragma once
#include <string>
#include <vector>

#include "trace/tensors.hpp"

namespace kvreplay {

// Finds patterns that are rare in real models, one line for each kind and prompt: heads that repeat each other,
// identical tensors, norms that do not match, attention that is uniform or on a single token everywhere, rows not
// rotated as rope_json says. Such a trace may still be correct. Throws TraceError if a number cannot be read.
std::vector<std::string> suspicious_numbers(const Tensors& trace);
// The cheapest of these checks, with those of shapes: more heads than tokens, and kv heads that repeat each other in
// the first layer of a prompt. Reads only a few tokens.
std::vector<std::string> suspicious_shapes(const Tensors& trace);

}  // namespace kvreplay
