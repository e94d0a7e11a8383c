#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// Rows of each query head that are computed again, spread over the head's rows up to the last.
constexpr int64_t kRowsOfHead = 8;

// What attention over the recorded q, k and v gives, beside the output `out` of the model, where it is recorded: one
// line for each layer that disagrees, with the usual mistake that explains it (of many, the first two of a prompt and
// how many more). Throws TraceError where a number cannot
// be read.
std::vector<std::string> wrong_outputs(const Trace& trace);

}  // namespace kvreplay
