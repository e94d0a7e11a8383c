#include "trace/trace_info.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"

namespace kvreplay {
namespace {

template <class T>
bool among(const std::optional<std::vector<T>>& list, const T& value) {
  return !list || std::find(list->begin(), list->end(), value) != list->end();
}

}  // namespace

int64_t bytes_of(const LayerInfo& l) {
  const int64_t q = l.q_heads * l.query_rows, kv = l.kv_heads * l.tokens;
  return bytes_of(l.dtype) *
         (q * l.query_width() + kv * (l.head_dim + l.stored_v_dim()) + (l.has_out ? q * l.out_dim() : 0));
}

int64_t bytes_of(const PromptInfo& prompt) {
  int64_t bytes = 0;
  for (const LayerInfo& layer : prompt.layers) bytes += bytes_of(layer);
  return bytes;
}

int64_t SegmentsInfo::first_input_end() const {
  const auto first = std::ranges::find(kind, SegmentKind::output) - kind.begin();
  return start.empty() ? 0 : start[static_cast<size_t>(first)];
}

const char* name_of(DType type) {
  return type == DType::float32 ? "float32" : type == DType::float16 ? "float16" : "bfloat16";
}

std::vector<std::string> TraceInfo::prompt_ids() const {
  std::vector<std::string> ids;
  for (const PromptInfo& p : prompts) ids.push_back(p.id);
  return ids;
}
const PromptInfo* TraceInfo::find(const std::string& prompt) const {
  const auto found = std::ranges::find(prompts, prompt, &PromptInfo::id);
  return found == prompts.end() ? nullptr : &*found;
}
std::string TraceInfo::lacks(const std::string& prompt) const {
  const std::vector<std::string> held = prompt_ids();
  return path.string() + " has no prompt " + prompt + did_you_mean(prompt, held) + ". It holds " + join(held);
}

bool TraceScope::holds(const std::string& prompt) const { return among(prompts, prompt); }
bool TraceScope::holds(int32_t layer) const { return among(layers, layer); }

std::string layer_path(const std::string& prompt, int32_t layer) {
  return fmt::format("prompts/{}/layers/{:03}", prompt, layer);
}
std::string branch_path(const std::string& prompt, size_t branch) {
  return fmt::format("prompts/{}/branches/{:03}", prompt, branch);
}
std::string branch_layer_path(const std::string& prompt, size_t branch, int32_t layer) {
  return fmt::format("{}/layers/{:03}", branch_path(prompt, branch), layer);
}

}  // namespace kvreplay
