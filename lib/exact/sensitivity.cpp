#include "exact/sensitivity.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/method_context.hpp"
#include "core/place.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {

// The last token gets no row: it has no next token to predict.
Sensitivity read_sensitivity(const Tensors& trace, const Place& place, const std::vector<int32_t>& tokens,
                             int32_t first_head, int32_t heads) {
  const LayerInfo& layer = trace.layer(place.prompt, place.layer);
  Sensitivity to;
  to.samples = layer.all_gradients(), to.rows = int32_t(tokens.size()), to.v_dim = layer.out_dim();
  to.recorded = layer.gradient_recorded, to.answer = layer.gradient_answer;
  to.row_of.assign(size_t(layer.tokens), -1);
  for (int32_t row = 0; row < to.rows; ++row) to.row_of[size_t(tokens[size_t(row)])] = row;
  to.row_of.back() = -1;
  const size_t width = size_t(to.v_dim), rows = size_t(to.rows), samples = size_t(to.samples);
  to.numbers.resize(size_t(heads) * rows * samples * width);
  std::vector<float> sample(rows * width);
  for (size_t h = 0; h < size_t(heads); ++h)
    for (size_t s = 0; s < samples; ++s) {
      trace.read_gradient(place.prompt, place.layer, first_head + int32_t(h), int32_t(s), sample);
      for (size_t row = 0; row < rows; ++row)
        std::transform(sample.begin() + int64_t(row * width), sample.begin() + int64_t((row + 1) * width),
                       to.numbers.begin() + int64_t(((h * rows + row) * samples + s) * width), to_bf16);
    }
  return to;
}

std::string projection_obstacle(const Tensors& trace, const Place& place, const std::vector<int32_t>& rows,
                                const Extent& extent) {
  if (rows.empty()) return "holds no gradient. Record it with `kvreplay record --with-gradient`";
  const int64_t tokens = trace.layer(place.prompt, place.layer).tokens;
  if (tokens != extent.tokens)
    return fmt::format("its gradient is that of {} tokens, the replay ends after {}: replay all tokens", tokens,
                       extent.tokens);
  for (const int32_t t : trace.query_positions(place.prompt, place.layer))
    if (t >= extent.prompt_tokens && t + 1 < tokens && !std::binary_search(rows.begin(), rows.end(), t))
      return fmt::format(
          "its gradient has no row of token {}, and the replay's prompt ends at {}. Record it with "
          "`kvreplay record --with-gradient --gradient-from {}`",
          t, extent.prompt_tokens, extent.prompt_tokens);
  return "";
}

}  // namespace kvreplay
