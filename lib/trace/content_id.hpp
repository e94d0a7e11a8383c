#pragma once
#include <functional>
#include <string>

#include "trace/h5_array.hpp"
#include "trace/trace.hpp"

namespace kvreplay {

// Hex SHA-256 of a dataset's stored bytes in C order, as in its attribute `sha256`.
std::string array_sha256(const h5::Array& array);

// The trace_id of a file that records none: a SHA-256 over every stored number and all metadata that a replay reads.
// File names do not enter. digest: array_sha256, or what stands for it.
std::string content_id(const h5::Node& root, const TraceInfo& info,
                       const std::function<std::string(const h5::Array&)>& digest);

}  // namespace kvreplay
