#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// Attributes and datasets that no reader looks at, one line for each, with the name that was most likely meant: in a
// layer all of them, elsewhere those that are close to a name that is missing. Throws TraceError where the file cannot
// be read.
std::vector<std::string> unknown_names(const Trace& trace);

}  // namespace kvreplay
