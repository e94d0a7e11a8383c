#pragma once
#include "config/run_config.hpp"

namespace kvreplay {

// What a run reads of a model besides queries, keys and values. A recorder asks before the model runs.
struct RunNeeds {
  bool repeat = false;          // a pass that repeats the prompt
  int32_t lookahead = 0;        // rows generated after a cut prompt
  bool output_weights = false;  // the output projection
  bool token_classes = false;
  bool gradient = false;
  bool all_layers = false;   // heads of all layers at once
  bool all_prompts = false;  // other prompts of the trace
};
RunNeeds needs_of(const RunConfig& config);

}  // namespace kvreplay
