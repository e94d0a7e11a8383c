#pragma once
#include <optional>

#include "config/problems.hpp"
#include "config/values.hpp"
#include "formats/registry.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {

// Reads row_format: a word, {name: kivi, bits: 2}, or {key: ..., value: ...}, with rotate, keys, full_precision,
// skip_layers and own_row (docs/configuration.md, "Row formats").
std::optional<RowFormat> read_row_format(Problems& problems, const Node& item);

// Why a layer's rows cannot be stored in the format, and what to do instead; empty if they can. n_layers: layers of
// the model.
Refusal storage_refusal(const RowFormat& format, const LayerInfo& layer, int32_t n_layers, bool prompt_streams,
                        const Wording& words = file_wording(), const std::string& trace = "the trace");

}  // namespace kvreplay
