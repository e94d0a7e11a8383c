#include "survey/usual_mistakes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "survey/recorded_output.hpp"

namespace kvreplay {
namespace {

// A later explanation must be this much better than an earlier, simpler one.
constexpr double kSameScale = 1e-6;  // relative; float32 text is no more precise
constexpr double kClearlyBetter = 0.7;
constexpr int32_t kMostOtherHeads = 64;
constexpr int32_t kFarthestShift = 3;

// Rows, the products of their queries with some keys, and values.
struct Case {
  std::vector<RecordedRow> rows;
  std::vector<Products> products;
  Rows values;
};

struct Outcome {
  double mean = 0;     // mean deviation
  double squares = 0;  // sum of squared deviations
};

Outcome outcome_of(const Case& tried, const AttentionRule& rule) {
  Outcome outcome;
  for (size_t i = 0; i < tried.rows.size(); ++i) {
    const RecordedRow& row = tried.rows[i];
    const double d = deviation(attend_row(tried.products[i], tried.values, rule, row.token), row.out);
    outcome.mean += d / static_cast<double>(tried.rows.size());
    outcome.squares += d * d;
  }
  return outcome;
}

bool agrees_within_rounding(const Case& tried, const AttentionRule& rule, double unit) {
  for (size_t i = 0; i < tried.rows.size(); ++i) {
    const RecordedRow& row = tried.rows[i];
    const std::vector<double> out = attend_row(tried.products[i], tried.values, rule, row.token);
    if (deviation(out, row.out) > rounding_deviation(tried.products[i], tried.values, rule, row.token, out, unit))
      return false;
  }
  return !tried.rows.empty();
}

// Finds the minimum of `cost` between low and high: a logarithmic grid, then golden section around the best grid point.
template <class Cost>
double least_at(double low, double high, int32_t points, const Cost& cost) {
  const double step = std::log(high / low) / (points - 1);
  const auto at = [&](double i) { return low * std::exp(step * i); };
  double best = 0, least = INFINITY;
  for (int32_t i = 0; i < points; ++i)
    if (const double c = cost(at(i)); c < least) least = c, best = i;
  constexpr double kGolden = 0.618033988749895;
  double a = best - 1, b = best + 1;
  for (int32_t round = 0; round < 30; ++round) {
    const double x = b - kGolden * (b - a), y = a + kGolden * (b - a);
    if (cost(at(x)) < cost(at(y))) b = y;
    else a = x;
  }
  return at((a + b) / 2);
}

// Squared deviations of the rows for every window from 1 to the number of tokens.
std::vector<double> cost_of_windows(const Case& tried, const AttentionRule& rule) {
  std::vector<double> cost(static_cast<size_t>(tried.values.count()));
  for (size_t i = 0; i < tried.rows.size(); ++i) {
    const RecordedRow& row = tried.rows[i];
    const std::vector<double>& dots = tried.products[i].dot;
    std::vector<double> sum(row.out.size()), mean(row.out.size());
    const double largest = rule.scale * *std::max_element(dots.begin(), dots.begin() + row.token + 1);
    double weight = 0, last = 0;
    for (int64_t w = 1; w <= tried.values.count(); ++w) {
      if (const int64_t token = row.token + 1 - w; token >= 0) {
        const double e = std::exp(rule.scale * dots[static_cast<size_t>(token)] - largest);
        const float* const value = tried.values.at(token);
        weight += e;
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += e * value[c];
        for (size_t c = 0; c < sum.size(); ++c) mean[c] = weight > 0 ? sum[c] / weight : 0;
        last = deviation(mean, row.out);
      }
      cost[static_cast<size_t>(w - 1)] += last * last;
    }
  }
  return cost;
}

class Mistakes {
 public:
  Mistakes(const Trace& trace, const RowsOfHead& head)
      : trace_(trace),
        head_(head),
        layer_(trace.layer(head.prompt, head.layer)),
        rule_(stated_rule(trace, head.prompt, layer_, head.q_head)),
        keys_(keys_of(head.q_head / layer_.group())),
        values_(values_of(head.q_head / layer_.group())),
        stated_(case_of(head.rows, keys_, values_)) {}

  std::optional<Mistake> run() {
    try_scales();
    try_masks();
    try_windows();
    try_chunks();
    try_softcaps();
    try_sinks();
    try_swapped();
    try_other_heads();
    try_rotations();
    try_other_rows();
    return best_;
  }

 private:
  std::vector<float> keys_of(int32_t kv_head) const {
    std::vector<float> keys(static_cast<size_t>(layer_.tokens * layer_.head_dim));
    trace_.read_keys(head_.prompt, layer_.layer, kv_head, layer_.tokens, keys);
    return keys;
  }
  std::vector<float> values_of(int32_t kv_head) const {
    std::vector<float> values(static_cast<size_t>(layer_.tokens * layer_.v_head_dim));
    trace_.read_values(head_.prompt, layer_.layer, kv_head, layer_.tokens, values);
    return values;
  }
  Case case_of(std::vector<RecordedRow> rows, const std::vector<float>& keys, const std::vector<float>& values) const {
    Case made{std::move(rows), {}, {values, layer_.v_head_dim}};
    for (const RecordedRow& row : made.rows) made.products.push_back(products_of(row.query, {keys, layer_.head_dim}));
    return made;
  }

  void consider(const Case& tried, const AttentionRule& rule, const std::string& text) {
    if (tried.rows.empty()) return;
    const double mean = outcome_of(tried, rule).mean;
    if (best_ && mean >= kClearlyBetter * best_->deviation) return;
    if (agrees_within_rounding(tried, rule, head_.unit)) best_ = {text, mean};
  }

  void try_scales() {
    const auto consider_scale = [&](double scale, const std::string& named, const std::string& remedy) {
      if (std::abs(scale - rule_.scale) <= kSameScale * rule_.scale) return;  // equals the stated scale
      AttentionRule rule = rule_;
      rule.scale = scale;
      consider(
          stated_, rule,
          fmt::format("with scaling {:.6g}{} instead of {:.6g} they agree: {}", scale, named, rule_.scale, remedy));
    };
    const double dim = layer_.head_dim;
    const std::string write = "write the attribute scaling that the model uses";
    consider_scale(1 / std::sqrt(dim), " = 1/sqrt(head_dim)", write);
    consider_scale(1, "", "the queries are scaled already: write scaling 1 and q_prescaled 1, or divide them again");
    consider_scale(1 / dim, " = 1/head_dim", write);
    const double solved = least_at(rule_.scale / 4096, rule_.scale * 4096, 49, [&](double scale) {
      AttentionRule rule = rule_;
      rule.scale = scale;
      return outcome_of(stated_, rule).squares;
    });
    consider_scale(solved, "", write);
  }

  void try_masks() {
    AttentionRule rule = rule_;
    rule.causal = false;
    consider(stated_, rule,
             "without a causal mask they agree: the model let rows see what follows them; record it with its mask");
    for (int32_t ahead = -kFarthestShift; ahead <= kFarthestShift; ++ahead) {
      if (ahead == 0) continue;
      rule = rule_;
      rule.ahead = ahead;
      consider(
          stated_, rule,
          fmt::format("where each row sees {} {} than its position says they agree: write q_pos {:+} (or shift the "
                      "rows of q and out), if the model's mask is causal",
                      std::abs(ahead) == 1 ? "one token" : fmt::format("{} tokens", std::abs(ahead)),
                      ahead > 0 ? "more" : "fewer", ahead));
    }
  }

  void try_windows() {
    AttentionRule rule = rule_;
    rule.window = {};
    const auto [sliding, chunk] = std::pair(rule_.window.sliding, rule_.window.chunk);
    if (sliding > 0)
      consider(stated_, rule,
               fmt::format("without the sliding window of {} they agree: write sliding_window 0", sliding));
    if (chunk > 0)
      consider(stated_, rule, fmt::format("without the chunks of {} they agree: write attention_chunk 0", chunk));
    if (rule_.softcap > 0 || rule_.sink_logit) return;
    const std::vector<double> cost = cost_of_windows(stated_, rule_);
    const auto solved = static_cast<int32_t>(std::min_element(cost.begin(), cost.end()) - cost.begin() + 1);
    if (solved == sliding || solved == layer_.tokens) return;
    rule.window = solved;
    const std::string off = std::abs(solved - sliding) == 1 ? " (off by one: a row counts itself)" : "";
    consider(stated_, rule,
             fmt::format("with a sliding window of {} instead of {} they agree{}: write sliding_window {}", solved,
                         chunk > 0      ? fmt::format("chunks of {}", chunk)
                         : sliding == 0 ? "none"
                                        : std::to_string(sliding),
                         off, solved));
  }

  // The first token that the last row sees divides the text into whole chunks.
  void try_chunks() {
    if (rule_.softcap > 0 || rule_.sink_logit || stated_.rows.empty()) return;
    const Case last{{stated_.rows.back()}, {stated_.products.back()}, stated_.values};
    const std::vector<double> cost = cost_of_windows(last, rule_);
    const auto seen = static_cast<int32_t>(std::min_element(cost.begin(), cost.end()) - cost.begin() + 1);
    const int32_t first = last.rows.front().token + 1 - seen;
    AttentionRule rule = rule_;
    for (int32_t chunk = first; chunk >= seen; --chunk) {
      rule.window = {0, chunk};
      if (first % chunk != 0 || rule.window == rule_.window) continue;
      consider(stated_, rule,
               fmt::format("with chunks of {} instead of {} they agree: write attention_chunk {}", chunk,
                           rule_.window.any() ? std::to_string(rule_.window.most()) : "none", chunk));
    }
  }

  void try_softcaps() {
    AttentionRule rule = rule_;
    const auto consider_cap = [&](double cap) {
      rule.softcap = cap;
      consider(stated_, rule,
               fmt::format("with a soft cap of {:.4g} instead of {} they agree: write softcap {:.4g}", cap,
                           rule_.softcap > 0 ? fmt::format("{:.4g}", rule_.softcap) : "none", cap));
    };
    rule.softcap = 0;
    if (rule_.softcap > 0)
      consider(stated_, rule, fmt::format("without the soft cap of {:.4g} they agree: write softcap 0", rule_.softcap));
    for (const double cap : {50.0, 30.0, 20.0}) consider_cap(cap);
    consider_cap(least_at(0.5, 512, 21, [&](double cap) {
      rule.softcap = cap;
      return outcome_of(stated_, rule).squares;
    }));
  }

  // A sink logit shrinks a row's output but keeps its direction.
  void try_sinks() {
    AttentionRule rule = rule_;
    rule.sink_logit = std::nullopt;
    if (rule_.sink_logit)
      consider(stated_, rule,
               fmt::format("without the sink logit {:.4g} they agree: leave the dataset sinks out", *rule_.sink_logit));
    std::vector<double> logits;
    for (size_t i = 0; i < stated_.rows.size(); ++i)
      if (const auto logit = sink_of(i, rule)) logits.push_back(*logit);
    if (logits.empty()) return;
    std::ranges::nth_element(logits, logits.begin() + static_cast<int64_t>(logits.size() / 2));
    rule.sink_logit = logits[logits.size() / 2];
    consider(stated_, rule,
             fmt::format("with a sink logit of {:.4g} instead of {} they agree: write the dataset sinks, float32 [Hq]",
                         *rule.sink_logit, rule_.sink_logit ? fmt::format("{:.4g}", *rule_.sink_logit) : "none"));
  }

  // The sink logit that would make the row agree.
  std::optional<double> sink_of(size_t i, const AttentionRule& without) const {
    const RecordedRow& row = stated_.rows[i];
    const std::vector<double> out = attend_row(stated_.products[i], stated_.values, without, row.token);
    const double size = std::inner_product(out.begin(), out.end(), out.begin(), 0.0);
    const double share = std::inner_product(out.begin(), out.end(), row.out.begin(), 0.0) / std::max(size, 1e-300);
    if (share <= 0 || share >= 1) return std::nullopt;
    const SeenTokens seen = seen_by(without, row.token, stated_.values.count());
    double largest = -1e300, sum = 0;
    const auto logit = [&](int64_t token) {
      const double l = without.scale * stated_.products[i].dot[static_cast<size_t>(token)];
      return without.softcap > 0 ? without.softcap * std::tanh(l / without.softcap) : l;
    };
    for (int64_t token = seen.first; token < seen.end; ++token) largest = std::max(largest, logit(token));
    for (int64_t token = seen.first; token < seen.end; ++token) sum += std::exp(logit(token) - largest);
    return largest + std::log(sum) + std::log(1 / share - 1);
  }

  void try_swapped() {
    if (layer_.head_dim != layer_.v_head_dim) return;
    consider(case_of(head_.rows, values_, keys_), rule_, "with k and v exchanged they agree: exchange the datasets");
  }

  void try_other_heads() {
    const int32_t stated = head_.q_head / layer_.group(), interleaved = head_.q_head % layer_.kv_heads;
    const auto consider_head = [&](int32_t kv_head, const std::string& text) {
      const std::vector<float> keys = keys_of(kv_head), values = values_of(kv_head);
      consider(case_of(head_.rows, keys, values), rule_, text);
    };
    if (interleaved != stated)
      consider_head(
          interleaved,
          fmt::format("with kv head {} = {} % {} instead of {} / {} they agree: the query heads are interleaved; "
                      "order q and out so that query head h reads kv head h / {}",
                      interleaved, head_.q_head, layer_.kv_heads, head_.q_head, layer_.group(), layer_.group()));
    for (int32_t kv_head = 0; kv_head < std::min(layer_.kv_heads, kMostOtherHeads); ++kv_head)
      if (kv_head != stated && kv_head != interleaved)
        consider_head(kv_head,
                      fmt::format("with kv head {} instead of {} they agree: order the heads so that query head h "
                                  "reads kv head h / {}",
                                  kv_head, stated, layer_.group()));
  }

  void try_rotations() {
    if (!layer_.rope) return;
    consider_turned(1, 1,
                    "q and k rotated by rope_json they agree: they are not rotated yet; record what attention sees");
    consider_turned(-1, -1, "q and k rotated back they agree: they are rotated twice");
    consider_turned(1, 0, "q rotated by rope_json they agree: q is not rotated yet, k is");
    consider_turned(0, 1, "k rotated by rope_json they agree: k is not rotated yet, q is");
    consider_turned(-1, 0, "q rotated back they agree: q is rotated twice");
    consider_turned(0, -1, "k rotated back they agree: k is rotated twice");
  }

  void consider_turned(int32_t q_times, int32_t k_times, const std::string& text) {
    const Rope& rope = *layer_.rope;
    const RopeView view{rope.inv_freq.data(), static_cast<int32_t>(rope.inv_freq.size()),
                        rope.layout == Rope::Layout::interleaved, rope.attention_factor};
    const std::vector<int32_t> positions = trace_.position_ids(head_.prompt);
    std::vector<RecordedRow> rows = head_.rows;
    for (RecordedRow& row : rows)
      if (q_times != 0) turn_row(view, positions[static_cast<size_t>(row.token)], q_times, row.query.data());
    std::vector<float> keys = keys_;
    std::vector<double> key(static_cast<size_t>(layer_.head_dim));
    for (int64_t token = 0; k_times != 0 && token < layer_.tokens; ++token) {
      const auto at = keys.begin() + token * layer_.head_dim;
      std::copy_n(at, layer_.head_dim, key.begin());
      turn_row(view, positions[static_cast<size_t>(token)], k_times, key.data());
      std::transform(key.begin(), key.end(), at, [](double x) { return static_cast<float>(x); });
    }
    consider(case_of(std::move(rows), keys, values_), rule_, "with " + text);
  }

  // Tries rows of q that belong to neighbouring rows of out, or of k, v and out.
  void try_other_rows() {
    const std::vector<int32_t> tokens = trace_.query_positions(head_.prompt, layer_.layer);
    for (const int32_t shift : {-1, 1}) {
      for (const bool out_alone : {true, false}) {
        std::vector<RecordedRow> rows;
        for (RecordedRow row : head_.rows) {
          const int64_t other = row.row + shift;
          if (other < 0 || other >= layer_.query_rows) continue;
          const auto query = head_.queries.begin() + other * layer_.head_dim;
          row.query.assign(query, query + layer_.head_dim);
          if (out_alone) row.token = tokens[static_cast<size_t>(other)];
          rows.push_back(std::move(row));
        }
        consider(case_of(std::move(rows), keys_, values_), rule_,
                 fmt::format("with row r{:+} of q for row r of out they agree: shift {} by one row", shift,
                             out_alone ? "out" : "q"));
      }
    }
  }

  const Trace& trace_;
  const RowsOfHead& head_;
  const LayerInfo& layer_;
  const AttentionRule rule_;
  const std::vector<float> keys_, values_;
  const Case stated_;
  std::optional<Mistake> best_;
};

}  // namespace

AttentionRule stated_rule(const Trace& trace, const std::string& prompt, const LayerInfo& layer, int32_t q_head) {
  AttentionRule rule;
  rule.scale = layer.scaling;
  rule.softcap = layer.softcap;
  rule.window = layer.window();
  if (layer.has_sinks) rule.sink_logit = trace.sink_logits(prompt, layer.layer)[static_cast<size_t>(q_head)];
  return rule;
}

std::optional<Mistake> usual_mistake(const Trace& trace, const RowsOfHead& head) { return Mistakes(trace, head).run(); }

}  // namespace kvreplay
