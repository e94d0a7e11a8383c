#pragma once
#include <filesystem>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// The files that hold the selected part of a trace: the trace itself first, then the targets of its external links, all
// in its folder or below. A trace without a trace_id needs all its files. Throws TraceError.
std::vector<std::filesystem::path> files_of_trace(const std::filesystem::path& trace, const TraceScope& scope);

}  // namespace kvreplay
