#pragma once
#include <memory>
#include <string>

#include "trace/tensors.hpp"

namespace kvreplay {

// A trace in which one prompt is its context, followed by one of its branches, as if that were all that was recorded:
// the context is the prompt, the question an input, the rest an output. No row of another branch and no later row of
// the prompt can be read. `trace` must live as long as the result.
std::unique_ptr<Tensors> with_branch(const Tensors& trace, const std::string& prompt, size_t branch);

}  // namespace kvreplay
