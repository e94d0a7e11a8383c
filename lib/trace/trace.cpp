#include "trace/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "trace/content_id.hpp"
#include "trace/h5_array.hpp"
#include "trace/sandbox.hpp"
#include "trace/tensor_read.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLastTokenClass = 2;  // word, punctuation, special

// Runs a read under the lock and turns h5::Problem into TraceError.
template <class Work>
auto reading(const Work& work) {
  const h5::Lock lock;
  try {
    return work();
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
}

void check_name(const fs::path& path) {
  std::error_code error;
  if (path.extension() == ".part")
    throw TraceError(path.string() +
                     ": is an unfinished dump (.part). Finish it with kvreplay record --resume, or dump it again");
  if (!fs::exists(path, error) && fs::exists(path.string() + ".part", error))
    throw TraceError(path.string() + ": no such file, but there is an unfinished dump " + path.string() +
                     ".part. Finish it with kvreplay record --resume");
}

}  // namespace

struct Trace::State {
  h5::Node root;
  TraceInfo info;
  // Open tensors of the last layer read: a replay reads the heads of a layer one after another.
  std::string open_layer;
  std::map<std::string, Tensor> open_tensors;

  const Tensor& tensor(const std::string& prompt, const LayerInfo& layer, const std::string& name);
  std::vector<int32_t> integers(const std::string& path, int64_t low, int64_t high) const;
  std::vector<float> floats(const std::string& path, int64_t count, const char* of) const;
  std::vector<int32_t> ascending_tokens(const std::string& path, const LayerInfo& layer) const;
};

const Tensor& Trace::State::tensor(const std::string& prompt, const LayerInfo& layer, const std::string& name) {
  const std::string path = layer_path(prompt, layer.layer);
  if (open_layer != path) open_tensors.clear();
  open_layer = path;
  if (const auto it = open_tensors.find(name); it != open_tensors.end()) return it->second;
  Tensor opened = name == "g" ? open_gradient(h5::open_path(root, path), layer.source_dtype)
                              : open_tensor(root, path + "/" + name, layer.source_dtype);
  return open_tensors.emplace(name, std::move(opened)).first->second;
}

std::vector<int32_t> Trace::State::integers(const std::string& path, int64_t low, int64_t high) const {
  const h5::Array array = h5::open_array(root, path);
  const std::vector<int64_t> values = h5::read_integers(array);
  const auto wrong = std::find_if(values.begin(), values.end(), [=](int64_t x) { return x < low || x > high; });
  if (wrong != values.end())
    throw h5::Problem(fmt::format("{}: holds {} at {}, it must be from {} to {}", array.node.where(), *wrong,
                                  wrong - values.begin(), low, high));
  return {values.begin(), values.end()};
}

std::vector<float> Trace::State::floats(const std::string& path, int64_t count, const char* of) const {
  const h5::Array array = h5::open_array(root, path);
  std::vector<float> values(static_cast<size_t>(count));
  h5::read_box(array, H5T_NATIVE_FLOAT, {0}, {count}, values.data());
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw h5::Problem(fmt::format("{}: holds {} at {} {}", array.node.where(), values[i], of, i));
  return values;
}

Trace::Trace(const fs::path& path, const TraceScope& scope) : state_(std::make_unique<State>()) {
  check_name(path);
  reading([&] {
    const SandboxedRead seen = read_sandboxed([&] { read_info(h5::open_root(path), path, scope); });
    if (!seen.crash.empty())
      throw h5::Problem(
          fmt::format("{}: is damaged beyond reading ({}). Make or copy it again", path.string(), seen.crash));
    if (!seen.error.empty()) throw h5::Problem(seen.error);
    state_->root = h5::open_root(path);
    state_->info = read_info(state_->root, path, scope);
    if (state_->info.trace_id.empty())  // the id covers the whole trace, not just the scope
      state_->info.trace_id = content_id(state_->root, read_info(state_->root, path, {}));
  });
}

Trace::~Trace() {
  const h5::Lock lock;
  state_.reset();
}
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&& other) noexcept {
  const h5::Lock lock;
  state_ = std::move(other.state_);
  return *this;
}

const TraceInfo& Trace::info() const { return state_->info; }

void Trace::read_keys(const std::string& prompt, int32_t layer_number, int32_t kv_head, int64_t count,
                      std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  reading([&] { read_rows(state_->tensor(prompt, info, "k"), kv_head, 0, count, into, "token"); });
}

void Trace::read_values(const std::string& prompt, int32_t layer_number, int32_t kv_head, int64_t count,
                        std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  reading([&] { read_rows(state_->tensor(prompt, info, "v"), kv_head, 0, count, into, "token"); });
}

void Trace::read_queries(const std::string& prompt, int32_t layer_number, int32_t q_head, int64_t first, int64_t rows,
                         std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  reading([&] { read_rows(state_->tensor(prompt, info, "q"), q_head, first, rows, into, "query"); });
}

void Trace::read_out(const std::string& prompt, int32_t layer_number, int32_t q_head, int64_t rows,
                     std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  assert(info.has_out);
  reading([&] { read_rows(state_->tensor(prompt, info, "out"), q_head, 0, rows, into, "query"); });
}

std::vector<int32_t> Trace::token_ids(const std::string& prompt_id) const {
  const PromptInfo& info = prompt(prompt_id);
  if (!info.has_tokens) return {};
  return reading([&] { return state_->integers("prompts/" + prompt_id + "/tokens", INT32_MIN, INT32_MAX); });
}

std::vector<uint8_t> Trace::token_classes(const std::string& prompt_id) const {
  if (!prompt(prompt_id).has_classes) return {};
  const std::vector<int32_t> classes =
      reading([&] { return state_->integers("prompts/" + prompt_id + "/token_class", 0, kLastTokenClass); });
  return {classes.begin(), classes.end()};
}

std::vector<int32_t> Trace::position_ids(const std::string& prompt_id) const {
  const PromptInfo& info = prompt(prompt_id);
  return reading([&] {
    if (h5::has_child(h5::open_path(state_->root, "prompts/" + prompt_id), "position_ids"))
      return state_->integers("prompts/" + prompt_id + "/position_ids", 0, INT32_MAX);
    std::vector<int32_t> positions(static_cast<size_t>(info.tokens));
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  });
}

std::vector<int32_t> Trace::State::ascending_tokens(const std::string& path, const LayerInfo& layer) const {
  std::vector<int32_t> tokens = integers(path, 0, layer.tokens - 1);
  if (const auto at = std::adjacent_find(tokens.begin(), tokens.end(), std::greater_equal<>()); at != tokens.end())
    throw h5::Problem(fmt::format("{}: /{}: must ascend, but {} follows {}", info.path.string(), path, at[1], at[0]));
  return tokens;
}

std::vector<int32_t> Trace::query_positions(const std::string& prompt_id, int32_t layer_number) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  if (!info.has_q_pos) {
    std::vector<int32_t> positions(static_cast<size_t>(info.query_rows));
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }
  return reading([&] { return state_->ascending_tokens(layer_path(prompt_id, layer_number) + "/q_pos", info); });
}

void Trace::read_repeat_queries(const std::string& prompt, int32_t layer_number, int32_t q_head,
                                std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.repeat_rows == 0) return Tensors::read_repeat_queries(prompt, layer_number, q_head, into);
  reading([&] { read_rows(state_->tensor(prompt, info, "repeat_q"), q_head, 0, info.repeat_rows, into, "row"); });
}

void Trace::read_repeat_keys(const std::string& prompt, int32_t layer_number, int32_t kv_head,
                             std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.repeat_rows == 0) return Tensors::read_repeat_keys(prompt, layer_number, kv_head, into);
  reading([&] { read_rows(state_->tensor(prompt, info, "repeat_k"), kv_head, 0, info.repeat_rows, into, "row"); });
}

std::vector<float> Trace::repeat_input_norms(const std::string& prompt, int32_t layer_number) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (!info.has_repeat_norm) return Tensors::repeat_input_norms(prompt, layer_number);
  return reading(
      [&] { return state_->floats(layer_path(prompt, layer_number) + "/repeat_in_norm", info.repeat_rows, "row"); });
}

void Trace::read_lookahead_queries(const std::string& prompt, int32_t layer_number, int32_t q_head,
                                   std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.lookahead_rows == 0) return Tensors::read_lookahead_queries(prompt, layer_number, q_head, into);
  reading([&] { read_rows(state_->tensor(prompt, info, "lookahead_q"), q_head, 0, info.lookahead_rows, into, "row"); });
}

void Trace::read_output_weights(const std::string& prompt, int32_t layer_number, int32_t q_head,
                                std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.output_width == 0) return Tensors::read_output_weights(prompt, layer_number, q_head, into);
  reading([&] { read_rows(state_->tensor(prompt, info, "o_proj"), q_head, 0, info.v_head_dim, into, "channel"); });
}

std::vector<int32_t> Trace::gradient_rows(const std::string& prompt_id, int32_t layer_number) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  if (info.gradient_samples == 0) return {};
  return reading([&] { return state_->ascending_tokens(layer_path(prompt_id, layer_number) + "/g_rows", info); });
}

void Trace::read_gradient(const std::string& prompt, int32_t layer_number, int32_t q_head, int32_t sample,
                          std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.gradient_samples == 0) return Tensors::read_gradient(prompt, layer_number, q_head, sample, into);
  reading([&] {
    if (sample < info.gradient_samples) return read_sample(state_->tensor(prompt, info, "g"), sample, q_head, into);
    read_rows(state_->tensor(prompt, info, "g_recorded"), q_head, 0, info.gradient_rows, into, "row");
  });
}

std::vector<float> Trace::sink_logits(const std::string& prompt_id, int32_t layer_number) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  if (!info.has_sinks) return {};
  return reading([&] { return state_->floats(layer_path(prompt_id, layer_number) + "/sinks", info.q_heads, "head"); });
}

OpenTensors open_files(std::vector<fs::path> files) {
  return [files = std::move(files)](size_t trace, const TraceScope& scope) {
    return std::make_unique<Trace>(files.at(trace), scope);
  };
}

}  // namespace kvreplay
