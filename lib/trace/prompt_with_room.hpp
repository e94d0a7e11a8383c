#pragma once
#include <memory>
#include <string>

#include "trace/tensors.hpp"

namespace kvreplay {

// A trace in which one prompt is followed by room for `tokens` tokens, whose rows are zero until they arrive from
// elsewhere. No row that the trace itself has behind the prompt can be read. Positions go on from the prompt's last
// one.
std::unique_ptr<Tensors> with_room(std::unique_ptr<Tensors> trace, const std::string& prompt, int64_t tokens);

}  // namespace kvreplay
