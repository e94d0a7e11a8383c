#include "calibration/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/calibration_file.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kRowsAtOnce = 2048;

RopeView view_of(const LayerInfo& layer) {
  if (!layer.rope) return {};
  const Rope& rope = *layer.rope;
  return {rope.inv_freq.data(), int32_t(rope.inv_freq.size()), rope.layout == Rope::Layout::interleaved,
          rope.attention_factor};
}

// The prompts of the trace whose queries the calibration uses.
std::vector<std::string> prompts_for(const TraceInfo& trace, const std::string& replayed, const Calibration& c) {
  if (c.source == Calibration::Source::prompt) return {c.name};
  std::vector<std::string> ids = trace.prompt_ids();
  std::erase(ids, replayed);
  return ids;
}

// Positions of the real and the imaginary channel of pair f. Channels from 2 * pairs on have no rotary embedding.
struct Channels {
  size_t pairs;
  bool interleaved;
  size_t real(size_t f) const { return interleaved ? 2 * f : f; }
  size_t imaginary(size_t f) const { return interleaved ? 2 * f + 1 : f + pairs; }
};
Channels channels_of(const RopeView& rope) { return {size_t(rope.pairs), rope.interleaved}; }

// The attention factor by channel; channels without rotary embedding have none.
struct AttentionFactor {
  const RopeView& rope;
  double operator()(size_t channel) const { return channel < 2 * size_t(rope.pairs) ? rope.attention_factor : 1; }
};

// Files hold queries without the attention factor; recorded keys and queries include it.
KnownQueries from_file(const CalibrationLayer& file, const LayerInfo& layer, int32_t first, int32_t count) {
  const RopeView rope = view_of(layer);
  const Channels at = channels_of(rope);
  const size_t dim = size_t(layer.head_dim), rest = dim - 2 * at.pairs;
  KnownQueries known{count, layer.head_dim, rope.pairs};
  for (size_t h = size_t(first); h < size_t(first + count); ++h) {
    if (!file.q_abs_mean.empty() || !file.q_rest_mean.empty()) {
      std::vector<double> mean(dim);
      for (size_t f = 0; f < at.pairs; ++f) {
        mean[at.real(f)] = rope.attention_factor * file.q_mean[2 * (h * at.pairs + f)];
        mean[at.imaginary(f)] = rope.attention_factor * file.q_mean[2 * (h * at.pairs + f) + 1];
        known.sizes.push_back(rope.attention_factor * file.q_abs_mean[h * at.pairs + f]);
      }
      for (size_t c = 0; c < rest; ++c) mean[2 * at.pairs + c] = file.q_rest_mean[h * rest + c];
      known.means.insert(known.means.end(), mean.begin(), mean.end());
    }
    const auto row = [&](auto& to, const auto& all, size_t which) {
      if (!all.empty())
        to.insert(to.end(), all.begin() + int64_t(which * dim), all.begin() + int64_t((which + 1) * dim));
    };
    const AttentionFactor factor{rope};
    for (size_t a = 0; a < (file.q_cov.empty() ? 0 : dim); ++a) {
      known.full_means.push_back(factor(a) * file.q_mean_full[h * dim + a]);
      for (size_t b = 0; b < dim; ++b)
        known.covariances.push_back(factor(a) * factor(b) * file.q_cov[(h * dim + a) * dim + b]);
    }
    row(known.directions, file.q_dir, h / size_t(layer.group()));
    row(known.channels, file.channel_rank, h);
  }
  return known;
}

CalibrationLayer to_file(const KnownQueries& known, const LayerInfo& layer) {
  const RopeView rope = view_of(layer);
  const Channels at = channels_of(rope);
  const size_t dim = size_t(layer.head_dim), group = size_t(layer.group());
  CalibrationLayer file;
  file.channel_rank = known.channels;
  file.q_dir.assign(size_t(layer.kv_heads) * dim, 0);
  for (size_t h = 0; h < size_t(layer.q_heads); ++h) {
    const auto mean = std::span(known.means).subspan(h * dim, dim);
    for (size_t f = 0; f < at.pairs; ++f) {
      file.q_mean.push_back(mean[at.real(f)] / rope.attention_factor);
      file.q_mean.push_back(mean[at.imaginary(f)] / rope.attention_factor);
      file.q_abs_mean.push_back(known.sizes[h * at.pairs + f] / rope.attention_factor);
    }
    for (size_t c = 2 * at.pairs; c < dim; ++c) file.q_rest_mean.push_back(mean[c]);
    const AttentionFactor factor{rope};
    for (size_t a = 0; a < dim; ++a) {
      file.q_mean_full.push_back(known.full_means[h * dim + a] / factor(a));
      for (size_t b = 0; b < dim; ++b)
        file.q_cov.push_back(known.covariances[(h * dim + a) * dim + b] / factor(a) / factor(b));
    }
    for (size_t c = 0; c < dim; ++c) file.q_dir[h / group * dim + c] += known.directions[h * dim + c] / double(group);
  }
  return file;
}

bool same_shape(const LayerInfo& a, const LayerInfo& b) {
  return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

Refusal prompt_calibration_obstacle(const TraceInfo& trace, const PromptInfo& replayed, const LayerInfo& layer,
                                    const Calibration& c, const Wording& words) {
  const std::string file = trace.path.string(), said = words.option("calibration", word(c));
  const std::vector<std::string> ids = prompts_for(trace, replayed.id, c);
  if (c.source == Calibration::Source::prompt && c.name == replayed.id)
    return {.rule = said + " is the replayed prompt itself, whose later queries are not known yet",
            .remedy = "write self, others, or another prompt"};
  if (ids.empty())
    return {
        .rule = fmt::format("{} needs another prompt, and {} only {}", said, words.trace(file, "hold"), replayed.id),
        .remedy = "write self, or file:PATH of another trace's (`kvreplay calibrate`)"};
  for (const std::string& id : ids) {
    const PromptInfo* prompt = trace.find(id);
    if (prompt == nullptr) return {.rule = fmt::format("{}: {}", said, trace.lacks(id))};
    const auto same = std::find_if(prompt->layers.begin(), prompt->layers.end(),
                                   [&](const LayerInfo& l) { return l.layer == layer.layer; });
    if (same == prompt->layers.end())
      return {
          .rule = fmt::format("{}: not every prompt of {} holds the layers that are replayed", said, file),
          .remedy = fmt::format("record them for every prompt, or leave them out of {}", words.key("select.layers")),
          .places = {{layer.layer}, {id}}};
    if (!same_shape(*same, layer))
      return {.rule = fmt::format("{}: prompts of {} have other heads than prompt {}", said, file, replayed.id),
              .remedy = "write self, or name a prompt of the same model",
              .places = {{layer.layer}, {id}}};
  }
  return {};
}

Refusal file_calibration_obstacle(const TraceInfo& trace, const PromptInfo& replayed, const LayerInfo& layer,
                                  const Calibration& c, StatisticsNeeds needs, const Wording& words) {
  if (const std::string why = calibration_file_problem(c.name, layer, needs); !why.empty())
    return refusal_of_group(why, {fmt::format("/layers/{:03}", layer.layer), fmt::format("layer {:03}", layer.layer)});
  const CalibrationOrigin origin = read_calibration_origin(c.name);
  const bool same = origin.trace_id == trace.trace_id &&
                    std::find(origin.prompts.begin(), origin.prompts.end(), replayed.id) != origin.prompts.end();
  if (!same) return {};
  return {.rule = fmt::format("{}: its prompts ({}) include {{values}} of this very trace (trace_id {}), whose later "
                              "queries are not known yet",
                              c.name, join(origin.prompts), trace.trace_id),
          .remedy = fmt::format("write it from other prompts (`kvreplay calibrate --prompts`), or take {}",
                                words.option("calibration", "others")),
          .values = {replayed.id}};
}

}  // namespace

QueryRows rows_of(const Tensors& trace, const std::string& prompt, int32_t layer, int32_t first_head) {
  const LayerInfo& info = trace.layer(prompt, layer);
  const size_t dim = size_t(info.head_dim);
  const auto show_head = [&trace, &info, prompt, first_head, dim](int32_t head, const QueryRows::Show& show) {
    const std::vector<int32_t> tokens = trace.query_positions(prompt, info.layer), at = trace.position_ids(prompt);
    std::vector<float> keys(size_t(info.tokens) * dim), queries;
    trace.read_keys(prompt, info.layer, (first_head + head) / info.group(), info.tokens, keys);
    std::vector<double> query(dim), key(dim);
    for (int64_t first = 0; first < int64_t(tokens.size()); first += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, int64_t(tokens.size()) - first);
      queries.resize(size_t(count) * dim);
      trace.read_queries(prompt, info.layer, first_head + head, first, count, queries);
      for (int64_t row = 0; row < count; ++row) {
        const size_t token = size_t(tokens[size_t(first + row)]);
        std::copy_n(queries.begin() + row * int64_t(dim), dim, query.begin());
        std::copy_n(keys.begin() + int64_t(token * dim), dim, key.begin());
        show(query, key, at[token]);
      }
    }
  };
  return {info.query_rows, show_head};
}

KnownQueries known_queries(const Tensors& trace, const Place& place, const Calibration& calibration,
                           StatisticsNeeds needs) {
  const LayerInfo& layer = trace.layer(place.prompt, place.layer);
  const bool whole = place.kv_head == Place::kWholeLayer;
  const int32_t first = whole ? 0 : place.kv_head * layer.group(), heads = whole ? layer.q_heads : layer.group();
  if (calibration.source == Calibration::Source::file)
    return from_file(read_calibration_layer(calibration.name, layer, needs), layer, first, heads);
  std::vector<QueryRows> prompts;
  for (const std::string& id : prompts_for(trace.info(), place.prompt, calibration))
    prompts.push_back(rows_of(trace, id, place.layer, first));
  return learn(prompts, {heads, layer.head_dim, view_of(layer)}, needs);
}

Refusal calibration_obstacle(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                             const Calibration& calibration, StatisticsNeeds needs, const Wording& words) {
  if (!calibration.is_offline()) return {};
  if (calibration.source == Calibration::Source::file)
    return file_calibration_obstacle(trace, prompt, layer, calibration, needs, words);
  return prompt_calibration_obstacle(trace, prompt, layer, calibration, words);
}

void write_calibration(const Tensors& trace, const std::vector<std::string>& prompts, const std::filesystem::path& file,
                       int32_t sinks) {
  CalibrationOrigin origin{trace.info().trace_id, prompts, 0, sinks};
  std::vector<std::pair<LayerInfo, CalibrationLayer>> layers;
  for (const LayerInfo& layer : trace.prompt(prompts.front()).layers) {
    std::vector<QueryRows> rows;
    for (const std::string& id : prompts) {
      if (!same_shape(trace.layer(id, layer.layer), layer))
        throw TraceError(
            fmt::format("{}: layer {} of prompt {} has other heads than that of prompt {}: choose prompts of "
                        "one model with --prompts",
                        trace.info().path.string(), layer.layer, id, prompts.front()));
      rows.push_back(rows_of(trace, id, layer.layer, 0));
    }
    const KnownQueries known = learn(rows, {layer.q_heads, layer.head_dim, view_of(layer)},
                                     {.means = true, .directions = true, .channels = true, .moments_after = sinks});
    origin.count = std::max(origin.count, known.rows);
    layers.emplace_back(layer, to_file(known, layer));
  }
  write_calibration_file(file, origin, layers);
}

}  // namespace kvreplay
