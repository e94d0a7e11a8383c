#pragma once
#include <span>

#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// What a prompt says of turns and branches (docs/formats.md). Its layers must be read before. All functions throw
// h5::Problem.

namespace kvreplay {

// Reads the group `segments`, if the prompt has it. The first output then decides where the prompt ends (n_prompt).
void read_segments(const h5::Node& prompt_node, PromptInfo& prompt);

// Reads the group `branches`, if the prompt has it, and checks that every branch continues the context, with the
// prompt's layers in the prompt's shapes and types. Only layers in scope are opened.
// positions: of the prompt's tokens; empty if not recorded.
void read_branches(const h5::Node& prompt_node, std::span<const int64_t> positions, PromptInfo& prompt);

}  // namespace kvreplay
