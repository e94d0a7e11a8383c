#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// Attributes and datasets that no reader uses, one line each, with the most likely intended name. In a layer: all of
// them. Elsewhere: only those close to a name that is missing. Throws TraceError if the file cannot be read.
std::vector<std::string> unknown_names(const Trace& trace);

}  // namespace kvreplay
