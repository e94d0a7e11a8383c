#include "trace/suspicious_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {
namespace {

// Models deviate from 1/sqrt(head_dim) by a factor of up to 1.9 (long contexts). A factor that was forgotten or applied
// twice deviates by sqrt(head_dim), which is 4 or more.
constexpr double kMaxScalingRatio = 2.5;

// A prompt with recorded token ids has a known number of tokens, so its axes cannot be swapped.
bool has_swapped_axes(const PromptInfo& prompt, const LayerInfo& layer) {
  return layer.kv_heads > layer.tokens && !prompt.has_tokens;
}

// A recorded `out` tests the scaling directly.
bool has_far_scaling(const LayerInfo& layer) {
  if (layer.has_out) return false;
  const double usual = 1 / std::sqrt(layer.head_dim);
  const bool far = layer.scaling > kMaxScalingRatio * usual || layer.scaling * kMaxScalingRatio < usual;
  return far && !(layer.q_prescaled && layer.scaling == 1);
}

std::string swapped_text(const LayerInfo& l) {
  return fmt::format("has {} heads of {} tokens. Axes are [heads, tokens, dim]: transpose what is [tokens, heads, dim]",
                     l.kv_heads, l.tokens);
}

std::string scaling_text(const LayerInfo& l) {
  return fmt::format(
      "attribute scaling is {:.6g}, far from 1/sqrt(head_dim) = {:.6g}. Compare it with the model's; where "
      "q is scaled already, write scaling 1 and q_prescaled 1",
      l.scaling, 1 / std::sqrt(l.head_dim));
}

std::string layer_count_text(int64_t layers) { return layers > 1 ? fmt::format(" (in {} layers)", layers) : ""; }

// One line per prompt that has such a layer.
template <class IsSuspicious>
std::vector<std::string> lines_of(const TraceInfo& info, const char* dataset, const IsSuspicious& is_suspicious,
                                  std::string (*text)(const LayerInfo&)) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : info.prompts) {
    const auto here = [&](const LayerInfo& layer) { return is_suspicious(prompt, layer); };
    const auto found = std::ranges::find_if(prompt.layers, here);
    if (found == prompt.layers.end()) continue;
    lines.push_back(fmt::format("{}: /{}{}: {}{}", info.path.string(), layer_path(prompt.id, found->layer), dataset,
                                text(*found), layer_count_text(std::ranges::count_if(prompt.layers, here))));
  }
  return lines;
}

}  // namespace

std::vector<std::string> swapped_axes(const TraceInfo& info) {
  return lines_of(info, "/k", has_swapped_axes, swapped_text);
}

std::vector<std::string> far_scalings(const TraceInfo& info) {
  if (info.dumper.starts_with("kvreplay record") || info.dumper.starts_with("kvdump"))
    return {};  // its new and old name
  return lines_of(
      info, "", [](const PromptInfo&, const LayerInfo& layer) { return has_far_scaling(layer); }, scaling_text);
}

std::string odd_positions(std::span<const int64_t> positions) {
  for (size_t i = 1; i < positions.size(); ++i) {
    const int64_t before = positions[i - 1], here = positions[i];
    if (here <= before)
      return fmt::format(
          "position_ids do not rise at row {} ({}, then {}): rows of padding, or of a second sequence, count as tokens "
          "here. Cut them from q, k, v, token_ids and position_ids; give each sequence a file of its own",
          i, before, here);
    if (here > before + 1)
      return fmt::format(
          "position_ids jump at row {} from {} to {}: {} tokens are missing, as in a cache that was cut. A replay "
          "knows only the tokens that it has: save all of them",
          i, before, here, positions.back() - positions.front() + 1 - int64_t(positions.size()));
  }
  if (positions.empty() || positions.front() == 0) return "";
  return fmt::format(
      "position_ids begin at {}: earlier tokens are missing, as if only new ones were saved. A replay knows only the "
      "tokens that it has: save the rows of the prompt, too",
      positions.front());
}

std::vector<std::string> odd_positions(const TraceInfo& info) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : info.prompts)
    if (!prompt.odd_positions.empty())
      lines.push_back(fmt::format("{}: /prompts/{}: {}", info.path.string(), prompt.id, prompt.odd_positions));
  return lines;
}

namespace {

using Names = std::vector<std::string>;

// Names in docs/formats.md, and further names that recorders write.
const Names kRootAttributes = {
    "command_line",    "complete",  "config_json", "created_utc", "dump_json",     "dumper",
    "dumper_version",  "g_labels",  "g_samples",   "g_seed",      "h5py_version",  "head_dim",
    "kvreplay_schema", "model",     "n_kv_heads",  "n_layers",    "n_q_heads",     "revision",
    "rope_json",       "tokenizer", "trace_id",    "v_head_dim",  "torch_version", "transformers_version",
    "written_by"};
const Names kPromptAttributes = {
    "answer_exact", "answer_from", "answer_log_prob", "answer_masked_runs", "final_token",
    "masked_runs",  "n_generated", "n_prompt",        "needle_tokens",      "question_from",
    "sampling",     "seed",        "source",          "task_json",          "text",
    "text_sha256"};
const Names kLayerAttributes = {"attention_chunk", "kv_layer", "q_prescaled", "rope",           "rope_json",
                                "rotary_dims",     "scaling",  "softcap",     "sliding_window", "source_dtype"};
const Names kLookaheadAttributes = {"budget", "context_tokens", "kernel", "window"};
const Names kRepeatAttributes = {"context_tokens", "prev_tokens", "prompt_first", "prompt_next", "suffix"};
const Names kPromptDatasets = {"answer_masked_a",
                               "answer_masked_exact",
                               "answer_masked_logprob",
                               "branches",
                               "g_entropy",
                               "g_logprob",
                               "layers",
                               "lookahead",
                               "masked_a",
                               "masked_distance2",
                               "masked_kl",
                               "masked_kl_rows",
                               "position_ids",
                               "repeat",
                               "segments",
                               "token_class",
                               "token_text",
                               "tokens"};
const Names kSegmentDatasets = {"kind", "start"};
const Names kBranchDatasets = {"layers", "position_ids", "tokens"};
const Names kBranchAttributes = {"final_token", "input_tokens", "name"};
const Names kLookaheadDatasets = {"tokens"};
const Names kRepeatDatasets = {"ctx", "rows", "tokens"};
const Names kLayerDatasets = {
    "g",        "g_answer",      "g_recorded", "g_rows", "k",     "latent",         "lookahead_q",
    "o_proj",   "out",           "out_gate",   "q",      "q_pos", "repeat_in_norm", "repeat_k",
    "repeat_q", "resid_in_norm", "resid_norm", "rope_k", "sinks", "up_k",           "up_v",
    "v"};

// Names from other programs that edit distance would not match.
constexpr std::pair<const char*, const char*> kSynonyms[] = {{"window", "sliding_window"},
                                                             {"attention_chunk_size", "attention_chunk"},
                                                             {"chunk", "attention_chunk"},
                                                             {"scale", "scaling"},
                                                             {"logit_cap", "softcap"},
                                                             {"attn_logit_softcapping", "softcap"},
                                                             {"rope_theta", "rope_json"},
                                                             {"s_aux", "sinks"},
                                                             {"output", "out"},
                                                             {"attn_output", "out"},
                                                             {"positions", "q_pos"}};

std::string intended_name(const std::string& name, const Names& missing) {
  for (const auto& [word, means] : kSynonyms)
    if (name == word && std::ranges::find(missing, means) != missing.end()) return means;
  return nearest_word(name, missing);
}

class Search {
 public:
  // near: report only names that resemble a missing one.
  enum class Tell { all, near };

  void look(const std::string& where, const char* kind, const Names& found, const Names& known, Tell tell) {
    Names missing;
    std::ranges::set_difference(sorted(known), found, std::back_inserter(missing));
    for (const std::string& name : found) {
      if (std::ranges::find(known, name) != known.end()) continue;
      const std::string meant = intended_name(name, missing);
      if (meant.empty() && tell == Tell::near) continue;
      lines_.push_back(fmt::format("{}: {} {} is not read{}. Rename it, or leave it out (docs/formats.md)", where, kind,
                                   name, meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant)));
    }
  }

  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  static Names sorted(Names names) {
    std::ranges::sort(names);
    return names;
  }
  std::vector<std::string> lines_;
};

// Near misses in the groups of turns and branches.
void look_at_turns(Search& search, const h5::Node& node, const PromptInfo& prompt) {
  const auto look = [&](const std::string& group, const Names& attributes, const Names& datasets) {
    const h5::Node of = h5::open_path(node, group);
    search.look(of.where(), "attribute", h5::attribute_names(of), attributes, Search::Tell::near);
    search.look(of.where(), "dataset", h5::members(of), datasets, Search::Tell::near);
  };
  if (prompt.segments.count() > 0) look("segments", {"names"}, kSegmentDatasets);
  for (const BranchInfo& branch : prompt.branches) look("branches/" + branch.id, kBranchAttributes, kBranchDatasets);
}

}  // namespace

std::vector<std::string> unknown_names(const Trace& trace) {
  const h5::Lock lock;
  Search search;
  try {
    const h5::Node root = h5::open_root(trace.info().path);
    search.look(trace.info().path.string(), "attribute", h5::attribute_names(root), kRootAttributes,
                Search::Tell::near);
    for (const PromptInfo& prompt : trace.info().prompts) {
      const h5::Node node = h5::open_path(root, "prompts/" + prompt.id);
      search.look(node.where(), "attribute", h5::attribute_names(node), kPromptAttributes, Search::Tell::near);
      search.look(node.where(), "dataset", h5::members(node), kPromptDatasets, Search::Tell::near);
      if (prompt.repeat.chunks() > 0) {
        const h5::Node of_repeat = h5::open_child(node, "repeat");
        search.look(of_repeat.where(), "attribute", h5::attribute_names(of_repeat), kRepeatAttributes,
                    Search::Tell::near);
        search.look(of_repeat.where(), "dataset", h5::members(of_repeat), kRepeatDatasets, Search::Tell::near);
      }
      if (prompt.lookahead.rows > 0) {
        const h5::Node ahead = h5::open_child(node, "lookahead");
        search.look(ahead.where(), "attribute", h5::attribute_names(ahead), kLookaheadAttributes, Search::Tell::near);
        search.look(ahead.where(), "dataset", h5::members(ahead), kLookaheadDatasets, Search::Tell::near);
      }
      look_at_turns(search, node, prompt);
      for (const LayerInfo& layer : prompt.layers) {
        const h5::Node of_layer = h5::open_path(root, layer_path(prompt.id, layer.layer));
        search.look(of_layer.where(), "attribute", h5::attribute_names(of_layer), kLayerAttributes, Search::Tell::all);
        search.look(of_layer.where(), "dataset", h5::members(of_layer), kLayerDatasets, Search::Tell::all);
      }
    }
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
  return std::move(search).lines();
}

}  // namespace kvreplay
