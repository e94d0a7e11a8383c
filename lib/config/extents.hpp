#pragma once
#include <optional>
#include <vector>

#include "catalog/cell.hpp"
#include "config/problems.hpp"

// How much of a prompt is replayed, for a measured prompt or a calibration prompt.

namespace kvreplay {

// Prompt length and tokens of a replay; nothing if the prompt does not fit, after reporting why.
std::optional<Extent> extent_of(const RunConfig& config, const TraceInfo& trace, const PromptInfo& prompt,
                                Problems& problems);

// The branches of a prompt that are replayed, in the order of the configuration; empty if none are asked for. Branches
// that do not exist are left out.
std::vector<BranchExtent> branches_of(const RunConfig& config, const PromptInfo& prompt);

// Places of a mistake that concerns a whole prompt, or one of its layers. A trace's only prompt is not named.
Places places_of(const TraceInfo& trace, const PromptInfo& prompt);
Places places_of(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer);

// Calibration prompts for the rule that shares an instance's budget while `replayed` is replayed. Empty if the rule
// needs no other prompt, or after reporting why it cannot have one.
std::vector<CalibrationPrompt> calibration_of(const RunConfig& config, const MethodInstance& instance,
                                              const TraceInfo& trace, const PromptInfo& replayed, Problems& problems);

}  // namespace kvreplay
