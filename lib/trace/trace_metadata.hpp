#pragma once
#include <optional>
#include <string>

#include "trace/h5_array.hpp"
#include "trace/layer_path.hpp"
#include "trace/trace.hpp"

// What a trace says about itself: attributes, shapes and defaults. All throw h5::Problem.

namespace kvreplay {

// Everything in scope but the tensors' numbers and, where the file has none, trace_id.
TraceInfo read_info(const h5::Node& root, const std::filesystem::path& path, const TraceScope& scope);

// `where` names the attribute in messages; rotary_dims is the layer's attribute, if there is one. nullopt
// where the text says that there is no rotary embedding.
std::optional<Rope> parse_rope(const std::string& json, const std::string& where, int32_t head_dim,
                               std::optional<int64_t> rotary_dims);

}  // namespace kvreplay
