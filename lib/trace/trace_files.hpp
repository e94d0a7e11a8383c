#pragma once
#include <filesystem>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// The files that hold what a scope names of a trace: itself first, then those that its external links lead
// to, all of them in its folder or below. Of a trace without an id of its own all are needed. Throws
// TraceError.
std::vector<std::filesystem::path> files_of_trace(const std::filesystem::path& trace, const TraceScope& scope);

}  // namespace kvreplay
