#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/problems.hpp"
#include "config/values.hpp"
#include "formats/registry.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {

// Where a file is that the configuration names.
using FindFile = std::function<std::filesystem::path(const std::string&)>;

// Reads row_format: a word, {name: kivi, bits: 2}, or {key: ..., value: ...}, with rotate, keys, full_precision,
// skip_layers and own_row; {age: ...}, {by: ...} or file:PATH (docs/configuration.md, "Row formats").
std::optional<RowFormat> read_row_format(
    Problems& problems, const Node& item, const FindFile& at = [](const std::string& file) { return file; });

// Why a layer's rows cannot be stored in the format, and what to do instead; empty if they can. n_layers: layers of
// the model.
Refusal storage_refusal(const RowFormat& format, const LayerInfo& layer, int32_t n_layers, bool prompt_streams,
                        const Wording& words = file_wording(), const std::string& trace = "the trace");

// Why the rules of a format by layer and kv head cannot be applied to some heads of a layer. share_rows: the heads hold
// one cache.
Refusal rules_refusal(const RowFormat& format, const LayerInfo& layer, int32_t n_layers,
                      const std::vector<int32_t>& heads, bool share_rows);

}  // namespace kvreplay
