#include "trace/tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/errors.hpp"

namespace kvreplay {

const PromptInfo& Tensors::prompt(const std::string& id) const {
  std::vector<std::string> held;
  for (const PromptInfo& prompt : info().prompts) {
    if (prompt.id == id) return prompt;
    held.push_back(prompt.id);
  }
  throw TraceError(fmt::format("{}: holds no prompt {}. It holds {}", info().path.string(), id, fmt::join(held, ", ")));
}

const LayerInfo& Tensors::layer(const std::string& prompt_id, int32_t layer) const {
  std::vector<int32_t> held;
  for (const LayerInfo& candidate : prompt(prompt_id).layers) {
    if (candidate.layer == layer) return candidate;
    held.push_back(candidate.layer);
  }
  throw TraceError(fmt::format("{}: prompt {} holds no layer {}. It holds {}", info().path.string(), prompt_id, layer,
                               fmt::join(held, ", ")));
}

void Tensors::read_repeat_queries(const std::string& prompt_id, int32_t layer_number, int32_t, std::span<float>) const {
  throw TraceError(
      fmt::format("{}: prompt {}, layer {}: holds no pass that repeats the prompt. Record it with kvreplay record "
                  "--repeat",
                  info().path.string(), prompt_id, layer_number));
}
void Tensors::read_repeat_keys(const std::string& prompt_id, int32_t layer, int32_t kv_head,
                               std::span<float> into) const {
  Tensors::read_repeat_queries(prompt_id, layer, kv_head, into);
}
std::vector<float> Tensors::repeat_input_norms(const std::string& prompt_id, int32_t layer) const {
  Tensors::read_repeat_queries(prompt_id, layer, 0, {});
  return {};
}

void Tensors::read_lookahead_queries(const std::string& prompt_id, int32_t layer_number, int32_t,
                                     std::span<float>) const {
  throw TraceError(
      fmt::format("{}: prompt {}, layer {}: holds no queries that were generated behind a cut prompt. Record them with "
                  "kvreplay record --lookahead",
                  info().path.string(), prompt_id, layer_number));
}

void Tensors::read_branch_queries(const std::string& prompt_id, size_t branch, int32_t layer_number, int32_t,
                                  std::span<float>) const {
  throw TraceError(fmt::format(
      "{}: prompt {}, layer {}: holds no branch {:03}; the prompt has {}. Record questions about one context "
      "with kvreplay record (docs/record_your_model.md)",
      info().path.string(), prompt_id, layer_number, branch, prompt(prompt_id).branches.size()));
}
void Tensors::read_branch_keys(const std::string& prompt_id, size_t branch, int32_t layer, int32_t kv_head,
                               std::span<float> into) const {
  Tensors::read_branch_queries(prompt_id, branch, layer, kv_head, into);
}
void Tensors::read_branch_values(const std::string& prompt_id, size_t branch, int32_t layer, int32_t kv_head,
                                 std::span<float> into) const {
  Tensors::read_branch_queries(prompt_id, branch, layer, kv_head, into);
}
std::vector<int32_t> Tensors::branch_position_ids(const std::string& prompt_id, size_t branch) const {
  const PromptInfo& info = prompt(prompt_id);
  std::vector<int32_t> positions(static_cast<size_t>(info.branches.at(branch).tokens));
  std::iota(positions.begin(), positions.end(),
            position_ids(prompt_id)[static_cast<size_t>(info.context_tokens - 1)] + 1);
  return positions;
}

void Tensors::read_up_values(const std::string& prompt_id, int32_t layer_number, int32_t, std::span<float>) const {
  throw TraceError(fmt::format("{}: prompt {}, layer {}: holds no latent with a projection up_v", info().path.string(),
                               prompt_id, layer_number));
}

void Tensors::read_output_weights(const std::string& prompt_id, int32_t layer_number, int32_t, std::span<float>) const {
  throw TraceError(
      fmt::format("{}: prompt {}, layer {}: holds no output projection (o_proj). Record it with kvreplay record "
                  "--with-output",
                  info().path.string(), prompt_id, layer_number));
}

void Tensors::read_gradient(const std::string& prompt_id, int32_t layer_number, int32_t, int32_t,
                            std::span<float>) const {
  throw TraceError(
      fmt::format("{}: prompt {}, layer {}: holds no gradient. Record it with kvreplay record --with-gradient",
                  info().path.string(), prompt_id, layer_number));
}

namespace {

std::string name_of_number(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  return magnitude < 0x7F800000u ? fmt::format("{:.3g}", x) : magnitude == 0x7F800000u ? "infinity" : "NaN";
}

}  // namespace

std::string unusable_number(std::span<const float> values, int64_t width, int64_t head, int64_t first_row,
                            const char* row) {
  int32_t unusable = 0;
  for (const float x : values) unusable |= int32_t(!is_usable(x));
  if (unusable == 0) return "";
  const auto at = std::find_if_not(values.begin(), values.end(), is_usable) - values.begin();
  return fmt::format("{} at head {}, {} {}, coordinate {}. Record the trace again, in a wider dtype if it overflowed",
                     name_of_number(values[static_cast<size_t>(at)]), head, row, first_row + at / width, at % width);
}

}  // namespace kvreplay
