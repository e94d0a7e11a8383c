#include "trace/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "trace/content_id.hpp"
#include "trace/h5_array.hpp"
#include "trace/latent_rows.hpp"
#include "trace/sandbox.hpp"
#include "trace/tensor_read.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay {
namespace fs = std::filesystem;
using h5::reading;

namespace {

constexpr int64_t kLastTokenClass = 2;  // word, punctuation, special

}  // namespace

struct Trace::State {
  h5::Node root;
  TraceInfo info;
  // Open tensors of the last layer read: a replay reads the heads of a layer one after another.
  std::string open_layer;
  std::map<std::string, Tensor> open_tensors;
  const TraceInMemory* memory = nullptr;  // null: all numbers are in the file

  const Tensor& tensor(const std::string& prompt, const LayerInfo& layer, const std::string& name);
  const Tensor& tensor_at(const std::string& path, const LayerInfo& layer, const std::string& name);
  // Opens what is a branch's own in its group, and the projections in the prompt's layer.
  OpenByName of_branch(const std::string& prompt, size_t branch, const LayerInfo& layer);
  void read_queries(const std::string& prompt, const LayerInfo& layer, const HeadRows& rows, std::span<float> into);
  // Reads rows of a tensor that is an array; returns false if it is none. Called without the lock: an array may be
  // fetched from another library, which has locks of its own.
  bool read_array(const std::string& prompt, const LayerInfo& layer, const HeadRows& rows, std::span<float> into) const;
  std::vector<int32_t> integers(const std::string& path, int64_t low, int64_t high) const;
  std::vector<float> floats(const std::string& path, int64_t count, const char* of) const;
  std::vector<int32_t> ascending_tokens(const std::string& path, const LayerInfo& layer) const;
};

const Tensor& Trace::State::tensor(const std::string& prompt, const LayerInfo& layer, const std::string& name) {
  return tensor_at(layer_path(prompt, layer.layer), layer, name);
}

const Tensor& Trace::State::tensor_at(const std::string& path, const LayerInfo& layer, const std::string& name) {
  if (open_layer != path) open_tensors.clear();
  open_layer = path;
  if (const auto it = open_tensors.find(name); it != open_tensors.end()) return it->second;
  const bool has_heads = name != "latent" && name != "rope_k";
  Tensor opened = name == "g" ? open_gradient(h5::open_path(root, path), layer.source_dtype)
                  : has_heads ? open_tensor(root, path + "/" + name, layer.source_dtype)
                              : open_tensor(root, path + "/" + name, layer.source_dtype, 2, "[tokens, width]");
  return open_tensors.emplace(name, std::move(opened)).first->second;
}

OpenByName Trace::State::of_branch(const std::string& prompt, size_t branch, const LayerInfo& layer) {
  return [this, prompt, branch, &layer](const char* name) -> const Tensor& {
    const bool projects = std::string_view(name).starts_with("up_");
    return projects ? tensor(prompt, layer, name)
                    : tensor_at(branch_layer_path(prompt, branch, layer.layer), layer, name);
  };
}

void Trace::State::read_queries(const std::string& prompt, const LayerInfo& layer, const HeadRows& rows,
                                std::span<float> into) {
  const auto of_layer = [&](const char* name) -> const Tensor& { return tensor(prompt, layer, name); };
  if (layer.is_latent()) read_latent_queries(layer, of_layer, rows, into);
  else read_rows(of_layer(rows.name), rows.head, rows.first, rows.count, into, rows.row);
}

bool Trace::State::read_array(const std::string& prompt, const LayerInfo& layer, const HeadRows& rows,
                              std::span<float> into) const {
  if (memory == nullptr) return false;
  const std::string path = layer_path(prompt, layer.layer) + "/" + rows.name;
  const auto found = memory->arrays.find(path);
  if (found == memory->arrays.end()) return false;
  kvreplay::read_rows(found->second, rows.head, rows.first, rows.count, into.data());
  const std::string problem = unusable_number(into, found->second.extents[2], rows.head, rows.first, rows.row);
  if (!problem.empty()) throw TraceError(fmt::format("{}: /{}: {}", memory->label.string(), path, problem));
  return true;
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

Trace::Trace(TraceInfo info) : state_(std::make_unique<State>()) {
  state_->info = std::move(info);
  reading([&] { state_->root = h5::open_root(state_->info.path); });
}

Trace::Trace(const fs::path& path, const TraceScope& scope) : state_(std::make_unique<State>()) {
  check_trace_name(path);
  reading([&] {
    try_in_child(path, [&] { read_info(h5::open_root(path), path, scope); });
    state_->root = h5::open_root(path);
    state_->info = read_info(state_->root, path, scope);
    if (state_->info.trace_id.empty())  // the id covers the whole trace, not just the scope
      state_->info.trace_id = content_id(state_->root, read_info(state_->root, path, {}), array_sha256);
  });
}

Trace::Trace(const TraceInMemory& trace, const TraceScope& scope) : state_(std::make_unique<State>()) {
  state_->memory = &trace;
  reading([&] {
    state_->root = h5::open_image(trace.image, trace.label);
    state_->info = read_info(state_->root, trace.label, scope);
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
  if (state_->read_array(prompt, info, {"k", "token", kv_head, 0, count}, into)) return;
  reading([&] {
    const auto of_layer = [&](const char* name) -> const Tensor& { return state_->tensor(prompt, info, name); };
    if (info.is_latent()) return read_latent_keys(info, of_layer, count, into);
    read_rows(of_layer("k"), kv_head, 0, count, into, "token");
  });
}

void Trace::read_values(const std::string& prompt, int32_t layer_number, int32_t kv_head, int64_t count,
                        std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (state_->read_array(prompt, info, {"v", "token", kv_head, 0, count}, into)) return;
  reading([&] {
    read_rows(state_->tensor(prompt, info, info.is_latent() ? "latent" : "v"), kv_head, 0, count, into, "token");
  });
}

void Trace::read_queries(const std::string& prompt, int32_t layer_number, int32_t q_head, int64_t first, int64_t rows,
                         std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  const HeadRows wanted{"q", "query", q_head, first, rows};
  if (state_->read_array(prompt, info, wanted, into)) return;
  reading([&] { state_->read_queries(prompt, info, wanted, into); });
}

void Trace::read_up_values(const std::string& prompt, int32_t layer_number, int32_t q_head,
                           std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (!info.is_latent()) return Tensors::read_up_values(prompt, layer_number, q_head, into);
  reading([&] { read_rows(state_->tensor(prompt, info, "up_v"), q_head, 0, info.latent.width, into, "channel"); });
}

void Trace::read_out(const std::string& prompt, int32_t layer_number, int32_t q_head, int64_t rows,
                     std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  assert(info.has_out);
  reading([&] { read_rows(state_->tensor(prompt, info, "out"), q_head, 0, rows, into, "query"); });
}

DeviceTensors Trace::on_device(const std::string& prompt, int32_t layer_number) const {
  if (state_->memory == nullptr) return {};
  const auto place = [&](const char* name) -> DeviceTensor {
    const auto found = state_->memory->arrays.find(layer_path(prompt, layer_number) + "/" + name);
    return found == state_->memory->arrays.end() ? DeviceTensor{} : found->second.on_device;
  };
  return {place("q"), place("k"), place("v")};
}

StoredTensor Trace::stored(const std::string& prompt, int32_t layer_number, const std::string& name) const {
  const LayerInfo& info = layer(prompt, layer_number);
  return reading([&] {
    const Tensor& tensor = state_->tensor(prompt, info, name);
    return StoredTensor{tensor.dtype, tensor.array.shape, tensor.array.node.file, offset_of(tensor)};
  });
}

void Trace::read_stored(const std::string& prompt, int32_t layer_number, const std::string& name,
                        std::span<std::byte> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  reading([&] { kvreplay::read_stored(state_->tensor(prompt, info, name), into); });
}

void Trace::read_floats(const std::string& prompt, int32_t layer_number, const std::string& name,
                        std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  const char* row = name == "q" || name == "out" ? "query" : "token";
  const std::vector<int64_t> shape = stored(prompt, layer_number, name).shape;
  const auto head_numbers = static_cast<size_t>(shape[1] * shape[2]);
  for (int64_t head = 0; head < shape[0]; ++head)  // other readers of HDF5 come between two heads
    reading([&] {
      read_rows(state_->tensor(prompt, info, name), head, 0, shape[1],
                into.subspan(static_cast<size_t>(head) * head_numbers, head_numbers), row);
    });
}

std::vector<int32_t> Trace::token_ids(const std::string& prompt_id) const {
  const PromptInfo& info = prompt(prompt_id);
  if (!info.has_tokens) return {};
  return reading([&] { return state_->integers("prompts/" + prompt_id + "/tokens", INT32_MIN, INT32_MAX); });
}

std::optional<std::vector<std::string>> Trace::token_texts(const std::string& prompt_id) const {
  const PromptInfo& info = prompt(prompt_id);
  return reading([&]() -> std::optional<std::vector<std::string>> {
    const h5::Node node = h5::open_path(state_->root, "prompts/" + prompt_id);
    if (!h5::has_child(node, "token_text")) return std::nullopt;
    const h5::Array array = h5::open_array(node, "token_text");
    if (array.shape != std::vector{info.tokens})
      h5::fail(array.node, fmt::format("holds {} texts for {} tokens", array.elements(), info.tokens));
    return h5::read_texts(array);
  });
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
  reading([&] { state_->read_queries(prompt, info, {"repeat_q", "row", q_head, 0, info.repeat_rows}, into); });
}

void Trace::read_repeat_keys(const std::string& prompt, int32_t layer_number, int32_t kv_head,
                             std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.repeat_rows == 0) return Tensors::read_repeat_keys(prompt, layer_number, kv_head, into);
  reading([&] {
    const Tensor& tensor = state_->tensor(prompt, info, "repeat_k");
    if (!info.is_latent()) return read_rows(tensor, kv_head, 0, info.repeat_rows, into, "row");
    std::vector<float> stored(into.size());
    read_rows(tensor, kv_head, 0, info.repeat_rows, stored, "row");
    project_rows(info.latent, stored, {}, into);
  });
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
  reading([&] { state_->read_queries(prompt, info, {"lookahead_q", "row", q_head, 0, info.lookahead_rows}, into); });
}

void Trace::read_branch_keys(const std::string& prompt_id, size_t branch, int32_t layer_number, int32_t kv_head,
                             std::span<float> into) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  const std::vector<BranchInfo>& branches = prompt(prompt_id).branches;
  if (branch >= branches.size()) return Tensors::read_branch_keys(prompt_id, branch, layer_number, kv_head, into);
  reading([&] {
    const OpenByName open = state_->of_branch(prompt_id, branch, info);
    if (info.is_latent()) return read_latent_keys(info, open, branches[branch].tokens, into);
    read_rows(open("k"), kv_head, 0, branches[branch].tokens, into, "token");
  });
}

void Trace::read_branch_values(const std::string& prompt_id, size_t branch, int32_t layer_number, int32_t kv_head,
                               std::span<float> into) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  const std::vector<BranchInfo>& branches = prompt(prompt_id).branches;
  if (branch >= branches.size()) return Tensors::read_branch_values(prompt_id, branch, layer_number, kv_head, into);
  reading([&] {
    const OpenByName open = state_->of_branch(prompt_id, branch, info);
    read_rows(open(info.is_latent() ? "latent" : "v"), kv_head, 0, branches[branch].tokens, into, "token");
  });
}

void Trace::read_branch_queries(const std::string& prompt_id, size_t branch, int32_t layer_number, int32_t q_head,
                                std::span<float> into) const {
  const LayerInfo& info = layer(prompt_id, layer_number);
  const std::vector<BranchInfo>& branches = prompt(prompt_id).branches;
  if (branch >= branches.size()) return Tensors::read_branch_queries(prompt_id, branch, layer_number, q_head, into);
  const HeadRows rows{"q", "query", q_head, 0, branches[branch].tokens};
  reading([&] {
    const OpenByName open = state_->of_branch(prompt_id, branch, info);
    if (info.is_latent()) return read_latent_queries(info, open, rows, into);
    read_rows(open("q"), q_head, 0, rows.count, into, "query");
  });
}

std::vector<int32_t> Trace::branch_token_ids(const std::string& prompt_id, size_t branch) const {
  if (!prompt(prompt_id).branches.at(branch).has_tokens) return {};
  return reading([&] { return state_->integers(branch_path(prompt_id, branch) + "/tokens", INT32_MIN, INT32_MAX); });
}

void Trace::read_output_weights(const std::string& prompt, int32_t layer_number, int32_t q_head,
                                std::span<float> into) const {
  const LayerInfo& info = layer(prompt, layer_number);
  if (info.output_width == 0) return Tensors::read_output_weights(prompt, layer_number, q_head, into);
  if (state_->read_array(prompt, info, {"o_proj", "channel", q_head, 0, info.out_dim()}, into)) return;
  reading([&] { read_rows(state_->tensor(prompt, info, "o_proj"), q_head, 0, info.out_dim(), into, "channel"); });
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
    const bool recorded = info.gradient_recorded && sample == info.gradient_samples;
    read_rows(state_->tensor(prompt, info, recorded ? "g_recorded" : "g_answer"), q_head, 0, info.gradient_rows, into,
              "row");
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
