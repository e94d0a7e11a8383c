#include "trace/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "trace/content_id.hpp"
#include "trace/h5_array.hpp"
#include "trace/tensor_read.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

std::string mebibytes(int64_t bytes) { return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20)); }

json rope_json(const LayerInfo& layer) {
  if (!layer.rope) return nullptr;
  const Rope& rope = *layer.rope;
  return {{"type", rope.type},
          {"theta", rope.theta},
          {"attention_factor", rope.attention_factor},
          {"layout", rope.layout == Rope::Layout::half_split ? "half_split" : "interleaved"},
          {"rotary_dims", rope.rotary_dims}};
}

json latent_json(const LatentInfo& latent) {
  if (latent.width == 0) return nullptr;
  return {{"width", latent.width}, {"rope", latent.rope}, {"key", latent.key}, {"value", latent.value}};
}

json layer_json(const LayerInfo& l) {
  return {{"layer", l.layer},
          {"q_heads", l.q_heads},
          {"kv_heads", l.kv_heads},
          {"head_dim", l.head_dim},
          {"v_head_dim", l.v_head_dim},
          {"tokens", l.tokens},
          {"query_rows", l.query_rows},
          {"dtype", name_of(l.dtype)},
          {"source_dtype", l.source_dtype},
          {"scaling", l.scaling},
          {"sliding_window", l.sliding_window},
          {"attention_chunk", l.attention_chunk},
          {"softcap", l.softcap},
          {"q_prescaled", l.q_prescaled},
          {"rope", rope_json(l)},
          {"rope_recorded", l.rope_recorded},
          {"rope_unknown", l.rope_unknown},
          {"latent", latent_json(l.latent)},
          {"kv_layer", l.kv_layer < 0 ? json() : json(l.kv_layer)},
          {"out", l.has_out},
          {"sinks", l.has_sinks},
          {"q_pos", l.has_q_pos},
          {"repeat_rows", l.repeat_rows},
          {"repeat_in_norm", l.has_repeat_norm},
          {"resid_in_norm", l.has_in_norm},
          {"lookahead_rows", l.lookahead_rows},
          {"bytes", bytes_of(l)}};
}

int64_t output_count(const SegmentsInfo& segments) { return std::ranges::count(segments.kind, SegmentKind::output); }

int64_t branch_tokens(const PromptInfo& prompt) {
  int64_t tokens = 0;
  for (const BranchInfo& branch : prompt.branches) tokens += branch.tokens;
  return tokens;
}

json repeat_json(const RepeatInfo& repeat) {
  if (repeat.chunks() == 0) return nullptr;
  return {{"context_tokens", repeat.context_tokens}, {"chunks", repeat.chunks()}, {"rows", repeat.row_count()}};
}

json lookahead_json(const LookaheadInfo& lookahead) {
  if (lookahead.rows == 0) return nullptr;
  return {{"context_tokens", lookahead.context_tokens},
          {"rows", lookahead.rows},
          {"budget", lookahead.budget},
          {"window", lookahead.window},
          {"kernel", lookahead.kernel}};
}

json segments_json(const SegmentsInfo& segments) {
  if (segments.count() == 0) return nullptr;
  std::vector<int> kinds;
  for (const SegmentKind kind : segments.kind) kinds.push_back(static_cast<int>(kind));
  return {{"count", segments.count()},
          {"outputs", output_count(segments)},
          {"start", segments.start},
          {"kind", kinds},
          {"names", segments.names}};
}

json branches_json(const PromptInfo& prompt) {
  if (prompt.branches.empty()) return nullptr;
  json all = json::array();
  for (const BranchInfo& branch : prompt.branches)
    all.push_back(
        {{"id", branch.id}, {"name", branch.name}, {"tokens", branch.tokens}, {"input_tokens", branch.input_tokens}});
  return {{"context_tokens", prompt.context_tokens}, {"count", prompt.branches.size()}, {"branches", std::move(all)}};
}

json prompt_json(const PromptInfo& prompt) {
  json layers = json::array();
  for (const LayerInfo& layer : prompt.layers) layers.push_back(layer_json(layer));
  return {{"id", prompt.id},
          {"tokens", prompt.tokens},
          {"n_prompt", prompt.n_prompt},
          {"n_generated", prompt.n_generated},
          {"source", prompt.source},
          {"token_ids", prompt.has_tokens},
          {"token_classes", prompt.has_classes},
          {"repeat", repeat_json(prompt.repeat)},
          {"lookahead", lookahead_json(prompt.lookahead)},
          {"segments", segments_json(prompt.segments)},
          {"branches", branches_json(prompt)},
          {"bytes", bytes_of(prompt)},
          {"layers", std::move(layers)}};
}

// ---- checksums

struct Checks {
  int64_t tensors = 0, with_sha256 = 0, with_fletcher32 = 0;
};

void visit_arrays(const h5::Node& group, const std::function<void(const h5::Array&)>& use) {
  for (const std::string& name : h5::members(group)) {
    const h5::Node child = h5::open_child(group, name);
    if (child.is_dataset()) use(h5::open_array(group, name));
  }
}

// Groups that hold rows of a layer: the prompt's, and those of its branches.
std::vector<std::string> layer_groups(const PromptInfo& prompt, int32_t layer) {
  std::vector<std::string> groups{layer_path(prompt.id, layer)};
  for (size_t b = 0; b < prompt.branches.size(); ++b) groups.push_back(branch_layer_path(prompt.id, b, layer));
  return groups;
}

Checks count_checks(const Trace& trace) {
  const h5::Lock lock;
  Checks checks;
  try {
    const h5::Node root = h5::open_root(trace.info().path);
    for (const PromptInfo& prompt : trace.info().prompts)
      for (const LayerInfo& layer : prompt.layers)
        for (const std::string& group : layer_groups(prompt, layer.layer))
          visit_arrays(h5::open_path(root, group), [&](const h5::Array& array) {
            ++checks.tensors;
            checks.with_sha256 += h5::has_attribute(array.node, "sha256");
            checks.with_fletcher32 += array.filters.find("fletcher32") != std::string::npos;
          });
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
  return checks;
}

// ---- text

std::string window_text(const LayerInfo& l) { return l.sliding_window == 0 ? "-" : std::to_string(l.sliding_window); }

std::string rope_text(const LayerInfo& l) {
  if (!l.rope) return l.rope_recorded ? "none" : l.rope_unknown ? "unknown" : "not recorded";
  const std::string partial = l.rope->rotary_dims == l.head_dim ? "" : fmt::format(", {} dims", l.rope->rotary_dims);
  return l.rope->theta > 0 ? fmt::format("theta {:g}{}", l.rope->theta, partial) : l.rope->type + partial;
}

std::string extras_text(const LayerInfo& l) {
  std::string text;
  if (l.query_rows != l.tokens) text += fmt::format(" {} query rows", l.query_rows);
  if (l.is_latent()) text += fmt::format(" latent {} + {}", l.latent.width, l.latent.rope);
  if (l.kv_layer >= 0) text += fmt::format(" kv of layer {}", l.kv_layer);
  if (l.attention_chunk > 0) text += fmt::format(" chunks of {}", l.attention_chunk);
  if (l.softcap > 0) text += fmt::format(" softcap {:g}", l.softcap);
  if (l.has_sinks) text += " sinks";
  if (l.has_out) text += " out";
  if (l.gradient_samples > 0)
    text += fmt::format(" gradient of {} rows, {} samples{}", l.gradient_rows, l.gradient_samples,
                        l.gradient_answer ? " and the answer" : "");
  if (l.repeat_rows > 0)
    text += fmt::format(" {} repeat rows{}", l.repeat_rows, l.has_repeat_norm ? " with norms" : "");
  if (l.lookahead_rows > 0) text += fmt::format(" {} lookahead rows", l.lookahead_rows);
  if (l.has_in_norm) text += " input norms";
  if (l.q_prescaled) text += " q prescaled";
  return text;
}

void add_layer_text(const LayerInfo& l, std::string& text) {
  text += fmt::format("  {:>5}  {:>7}  {:>8}  {:>8}  {:>10}  {:<8}  {:>9.4g}  {:>6}  {:>12}  {}{}\n", l.layer,
                      l.q_heads, l.kv_heads, l.head_dim, l.v_head_dim, name_of(l.dtype), l.scaling, window_text(l),
                      mebibytes(bytes_of(l)), rope_text(l), extras_text(l));
}

void add_prompt_text(const PromptInfo& prompt, std::string& text) {
  text += fmt::format("\nprompt {}: {} tokens ({} prompt, {} generated), {} layers, {}{}\n", prompt.id, prompt.tokens,
                      prompt.n_prompt, prompt.n_generated, prompt.layers.size(), mebibytes(bytes_of(prompt)),
                      prompt.source.empty() ? "" : ", from " + prompt.source);
  if (const RepeatInfo& repeat = prompt.repeat; repeat.chunks() > 0)
    text += fmt::format("  its first {} tokens repeated, in {} {}\n", repeat.context_tokens, repeat.chunks(),
                        repeat.chunks() == 1 ? "chunk" : "chunks");
  if (const LookaheadInfo& ahead = prompt.lookahead; ahead.rows > 0)
    text += fmt::format("  {} rows generated behind its first {} tokens{}\n", ahead.rows, ahead.context_tokens,
                        ahead.budget == 0 ? "" : fmt::format(", cut to {}", ahead.budget));
  if (const SegmentsInfo& segments = prompt.segments; segments.count() > 0)
    text += fmt::format("  turns: {} segments, {} of them outputs\n", segments.count(), output_count(segments));
  if (!prompt.branches.empty())
    text +=
        fmt::format("  {} {} behind its first {} tokens, {} rows in all\n", prompt.branches.size(),
                    prompt.branches.size() == 1 ? "branch" : "branches", prompt.context_tokens, branch_tokens(prompt));
  text += fmt::format("  {:>5}  {:>7}  {:>8}  {:>8}  {:>10}  {:<8}  {:>9}  {:>6}  {:>12}  {}\n", "layer", "q heads",
                      "kv heads", "head dim", "v head dim", "dtype", "scaling", "window", "size", "rope");
  for (const LayerInfo& layer : prompt.layers) add_layer_text(layer, text);
}

// ---- deep check

class DeepCheck {
 public:
  explicit DeepCheck(const Trace& trace) : trace_(trace) {}

  std::vector<std::string> run() {
    for (const PromptInfo& prompt : trace_.info().prompts) {
      attempt([&] { trace_.token_ids(prompt.id); });
      attempt([&] { trace_.token_classes(prompt.id); });
      attempt([&] { trace_.position_ids(prompt.id); });
      attempt([&] { compare_digests("prompts/" + prompt.id); });
      if (prompt.repeat.chunks() > 0) attempt([&] { compare_digests("prompts/" + prompt.id + "/repeat"); });
      if (prompt.lookahead.rows > 0) attempt([&] { compare_digests("prompts/" + prompt.id + "/lookahead"); });
      if (prompt.segments.count() > 0) attempt([&] { compare_digests("prompts/" + prompt.id + "/segments"); });
      for (const LayerInfo& layer : prompt.layers) check_layer(prompt.id, layer);
      for (size_t b = 0; b < prompt.branches.size(); ++b) check_branch(prompt, b);
    }
    return std::move(problems_);
  }

 private:
  void attempt(const std::function<void()>& work) {
    try {
      work();
    } catch (const TraceError& error) {
      add(error.what());
    } catch (const h5::Problem& problem) {
      add(problem.what());
    }
  }

  void add(const std::string& problem) {
    if (std::ranges::find(problems_, problem) == problems_.end()) problems_.push_back(problem);
  }

  std::span<float> rows_of(int64_t rows, int64_t width) {
    buffer_.resize(static_cast<size_t>(rows * width));
    return buffer_;
  }

  void check_layer(const std::string& prompt, const LayerInfo& l) {
    const auto buffer = [&](int64_t rows, int64_t width) { return rows_of(rows, width); };
    attempt([&] {
      for (int32_t h = 0; h < l.q_heads; ++h)
        trace_.read_queries(prompt, l.layer, h, 0, l.query_rows, buffer(l.query_rows, l.head_dim));
    });
    attempt([&] {
      for (int32_t h = 0; h < l.kv_heads; ++h)
        trace_.read_keys(prompt, l.layer, h, l.tokens, buffer(l.tokens, l.head_dim));
    });
    attempt([&] {
      for (int32_t h = 0; h < l.kv_heads; ++h)
        trace_.read_values(prompt, l.layer, h, l.tokens, buffer(l.tokens, l.v_head_dim));
    });
    attempt([&] {
      for (int32_t h = 0; l.has_out && h < l.q_heads; ++h)
        trace_.read_out(prompt, l.layer, h, l.query_rows, buffer(l.query_rows, l.out_dim()));
    });
    attempt([&] {
      for (int32_t h = 0; h < l.q_heads; ++h)
        for (int32_t s = 0; s < l.all_gradients(); ++s)
          trace_.read_gradient(prompt, l.layer, h, s, buffer(l.gradient_rows, l.out_dim()));
    });
    attempt([&] { read_more(prompt, l, "repeat_q", l.q_heads, buffer(l.repeat_rows, l.query_width())); });
    attempt([&] { read_more(prompt, l, "repeat_k", l.kv_heads, buffer(l.repeat_rows, l.head_dim)); });
    attempt([&] { read_more(prompt, l, "lookahead_q", l.q_heads, buffer(l.lookahead_rows, l.query_width())); });
    attempt([&] { trace_.gradient_rows(prompt, l.layer); });
    attempt([&] { trace_.query_positions(prompt, l.layer); });
    attempt([&] { trace_.sink_logits(prompt, l.layer); });
    attempt([&] { compare_digests(layer_path(prompt, l.layer)); });
  }

  void check_branch(const PromptInfo& prompt, size_t b) {
    const int64_t rows = prompt.branches[b].tokens;
    attempt([&] { trace_.branch_token_ids(prompt.id, b); });
    attempt([&] { compare_digests(branch_path(prompt.id, b)); });
    for (const LayerInfo& l : prompt.layers) {
      attempt([&] {
        for (int32_t h = 0; h < l.q_heads; ++h)
          trace_.read_branch_queries(prompt.id, b, l.layer, h, rows_of(rows, l.head_dim));
      });
      attempt([&] {
        for (int32_t h = 0; h < l.kv_heads; ++h)
          trace_.read_branch_keys(prompt.id, b, l.layer, h, rows_of(rows, l.head_dim));
      });
      attempt([&] {
        for (int32_t h = 0; h < l.kv_heads; ++h)
          trace_.read_branch_values(prompt.id, b, l.layer, h, rows_of(rows, l.v_head_dim));
      });
      attempt([&] { compare_digests(branch_layer_path(prompt.id, b, l.layer)); });
    }
  }

  // Reads a tensor whose rows follow the prompt's (repeat, lookahead). An empty buffer means that the tensor is
  // missing.
  void read_more(const std::string& prompt, const LayerInfo& l, const char* name, int32_t heads,
                 std::span<float> into) {
    if (into.empty()) return;
    const h5::Lock lock;
    const h5::Node root = h5::open_root(trace_.info().path);
    const Tensor tensor = open_tensor(h5::open_path(root, layer_path(prompt, l.layer)), name, l.source_dtype);
    for (int32_t h = 0; h < heads; ++h) read_rows(tensor, h, 0, tensor.rows(), into, "row");
  }

  void compare_digests(const std::string& group) {
    const h5::Lock lock;
    const h5::Node root = h5::open_root(trace_.info().path);
    visit_arrays(h5::open_path(root, group), [&](const h5::Array& array) {
      const auto recorded = h5::text(array.node, "sha256");
      if (!recorded) return;
      attempt([&] {
        const std::string found = array_sha256(array);
        if (found != *recorded)
          add(fmt::format("{}: its numbers have sha256 {}, recorded is {}. Make or copy the file again",
                          array.node.where(), found, *recorded));
      });
    });
  }

  const Trace& trace_;
  std::vector<std::string> problems_;
  std::vector<float> buffer_;
};

}  // namespace

std::string inspect_json(const Trace& trace) {
  const TraceInfo& info = trace.info();
  const Checks checks = count_checks(trace);
  json prompts = json::array();
  int64_t bytes = 0;
  for (const PromptInfo& prompt : info.prompts) {
    prompts.push_back(prompt_json(prompt));
    bytes += bytes_of(prompt);
  }
  const json all = {{"path", info.path.string()},
                    {"trace_id", info.trace_id},
                    {"model", info.model},
                    {"revision", info.revision},
                    {"created_utc", info.created_utc},
                    {"dumper", info.dumper},
                    {"n_layers", info.n_layers},
                    {"bytes", bytes},
                    {"checks",
                     {{"structure", "ok"},
                      {"datasets", checks.tensors},
                      {"with_sha256", checks.with_sha256},
                      {"with_fletcher32", checks.with_fletcher32}}},
                    {"prompts", std::move(prompts)}};
  return all.dump(2);
}

std::string inspect_text(const Trace& trace) {
  const TraceInfo& info = trace.info();
  const Checks checks = count_checks(trace);
  int64_t bytes = 0;
  for (const PromptInfo& prompt : info.prompts) bytes += bytes_of(prompt);
  std::string text =
      fmt::format("trace     {}\nmodel     {}{}, {} layers\ntrace id  {}\n", info.path.string(), info.model,
                  info.revision.empty() ? "" : " @ " + info.revision, info.n_layers, info.trace_id);
  if (!info.created_utc.empty() || !info.dumper.empty())
    text += fmt::format("created   {} {}\n", info.created_utc, info.dumper);
  text += fmt::format("size      {} in {} {}\n", mebibytes(bytes), info.prompts.size(),
                      info.prompts.size() == 1 ? "prompt" : "prompts");
  text += fmt::format(
      "checks    structure ok; of {} datasets {} have a sha256, {} Fletcher-32 (validate --deep reads them "
      "all)\n",
      checks.tensors, checks.with_sha256, checks.with_fletcher32);
  for (const PromptInfo& prompt : info.prompts) add_prompt_text(prompt, text);
  return text;
}

std::vector<std::string> deep_check(const Trace& trace) { return DeepCheck(trace).run(); }

}  // namespace kvreplay
