#pragma once
#include <optional>
#include <vector>

#include "catalog/cell.hpp"
#include "config/problems.hpp"

// How much of a prompt is replayed, whether its rows are measured or an allocator learns from them.

namespace kvreplay {

// Prompt and tokens of a replay, or nothing after reporting why there is none.
std::optional<Extent> extent_of(const RunConfig& config, const PromptInfo& prompt, Problems& problems);

// Prompts of the trace from which the rule that shares an instance's budget knows heads, where `replayed` is replayed;
// empty where it looks at no other prompt, or after reporting why it cannot.
std::vector<CalibrationPrompt> calibration_of(const RunConfig& config, const MethodInstance& instance,
                                              const TraceInfo& trace, const PromptInfo& replayed, Problems& problems);

}  // namespace kvreplay
