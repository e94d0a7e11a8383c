#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// What `kvreplay inspect` shows: model, prompts, layers, heads, tokens, dtypes, sizes in bytes, checks.
std::string inspect_json(const Trace& trace);
std::string inspect_text(const Trace& trace);

// `kvreplay validate --deep`: reads every tensor once (NaN, infinities, recorded sha256 attributes,
// trace_id). Returns one line per problem; empty means sound.
std::vector<std::string> deep_check(const Trace& trace);

}  // namespace kvreplay
