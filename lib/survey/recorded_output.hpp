#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// Number of rows per query head that are recomputed, spread evenly up to the head's last row.
constexpr int64_t kRowsOfHead = 8;

// Compares attention over the recorded q, k and v with the model's recorded output `out`. Returns one line for each
// layer that disagrees, with the usual mistake that explains it; a prompt gets at most two explained layers and a count
// of the others. Throws TraceError if a number cannot be read.
std::vector<std::string> wrong_outputs(const Trace& trace);

}  // namespace kvreplay
