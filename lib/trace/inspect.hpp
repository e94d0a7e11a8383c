#pragma once
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// The output of `kvreplay inspect`: model, prompts, layers, heads, tokens, dtypes, sizes in bytes, checks.
std::string inspect_json(const Trace& trace);
std::string inspect_text(const Trace& trace);

// `kvreplay validate --deep`: reads every tensor once and checks for NaN, infinities, recorded sha256 attributes and
// trace_id. Returns one line per problem; empty if there is none.
std::vector<std::string> deep_check(const Trace& trace);

}  // namespace kvreplay
