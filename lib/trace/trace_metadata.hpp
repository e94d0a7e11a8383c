#pragma once
#include <optional>
#include <string>

#include "trace/h5_array.hpp"
#include "trace/shape_checks.hpp"
#include "trace/trace.hpp"
#include "trace/trace_info.hpp"

// Reads a trace's metadata: attributes, shapes and defaults. All functions throw h5::Problem.

namespace kvreplay {

// Reads everything in scope except the tensors' numbers. trace_id stays empty if the file has none.
TraceInfo read_info(const h5::Node& root, const std::filesystem::path& path, const TraceScope& scope);
// The prompt at `node` and those of its layers that are in scope.
PromptInfo read_prompt(const h5::Node& root, const h5::Node& node, const std::string& id, const TraceScope& scope);

// Checks that q, k and v fit together and sets their extents.
void set_shapes(const NamedShape& q, const NamedShape& k, const NamedShape& v, LayerInfo& layer);

// `where` names the attribute in messages; rotary_dims: the layer's attribute, if there is one. Returns nullopt if the
// text says that there is no rotary embedding.
std::optional<Rope> parse_rope(const std::string& json, const std::string& where, int32_t head_dim,
                               std::optional<int64_t> rotary_dims);

}  // namespace kvreplay
