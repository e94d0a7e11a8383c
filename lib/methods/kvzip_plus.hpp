#pragma once
#include "methods/kvzip.hpp"

namespace kvreplay {

// KVzip+, from the kvpress library: KVzip's probabilities are weighted by the token's contribution to the residual
// stream, ||v W|| after the query head's output projection, divided by the norm of the input of the row's attention.
struct KvZipPlus : KvZip {
  static constexpr MethodInfo info{
      .name = "kvzip_plus",
      .title = "kvzip, weighted by the contribution of values to the residual stream",
      .source = "KVzip, Kim et al. 2025, section 3, with the weights of kvpress's KVzip+",
      .tier = 3,
      .memory = "B prompt tokens and every later one; uneven over heads unless level is uniform",
      .deviation = "as kvzip's; the norm is that of the attention module's input, as kvpress divides.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
  };

  static void declare(auto& d) { declare_level<KvZipPlus>(d); }
  PromptNeeds needs(const MethodContext&) const { return {.repeat = true, .input_norms = true, .output_norms = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    score_from_repeat(team, prompt, cache, [&](int32_t h, int64_t row, int32_t token) {
      return prompt.output_norm(h, token) / double(prompt.repeat().input_norms[row]);
    });
  }
};

}  // namespace kvreplay
