#include "survey/recorded_output.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "base/matrices.hpp"
#include "survey/usual_mistakes.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {

namespace {

// Relative error of a float32 model's sums: tensor cores round the factors of its products to 11 bits.
constexpr double kSumRounding = 1e-3;
// Roundings that a row accumulates: of queries, keys, values, probabilities and the output.
constexpr double kRoundings = 4;
// Safety factor for rounded logits, and the largest deviation that rounding may explain. Recorded models stay below
// half of what both allow.
constexpr double kLogitRoundingFactor = 1.5, kMaxRoundingDeviation = 0.25;

double logit_of(const AttentionRule& rule, double dot) {
  const double logit = rule.scale * dot;
  return rule.softcap > 0 ? rule.softcap * std::tanh(logit / rule.softcap) : logit;
}

double norm_of(std::span<const double> vector) {
  double sum = 0;
  for (const double x : vector) sum += x * x;
  return std::sqrt(sum);
}

double distance(const float* value, std::span<const double> out) {
  double sum = 0;
  for (size_t c = 0; c < out.size(); ++c) sum += (value[c] - out[c]) * (value[c] - out[c]);
  return std::sqrt(sum);
}

// Probabilities of the seen tokens.
std::vector<double> probabilities(const Products& products, const AttentionRule& rule, SeenTokens seen) {
  std::vector<double> p;
  double largest = rule.sink_logit.value_or(-1e300);
  for (int64_t i = seen.first; i < seen.end; ++i) {
    p.push_back(logit_of(rule, products.dot[static_cast<size_t>(i)]));
    largest = std::max(largest, p.back());
  }
  double sum = rule.sink_logit ? std::exp(*rule.sink_logit - largest) : 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

Products products_of(std::span<const double> query, const Rows& keys) {
  Products products;
  for (int64_t i = 0; i < keys.count(); ++i) {
    const float* const key = keys.at(i);
    double dot = 0, squares = 0;
    for (size_t c = 0; c < query.size(); ++c) {
      const double term = query[c] * key[c];
      dot += term;
      squares += term * term;
    }
    products.dot.push_back(dot);
    products.spread.push_back(std::sqrt(squares));
  }
  return products;
}

SeenTokens seen_by(const AttentionRule& rule, int32_t token, int64_t tokens) {
  if (!rule.causal) return {0, tokens};
  const int64_t end = std::clamp<int64_t>(int64_t{token} + rule.ahead + 1, 0, tokens);
  const int64_t first = end > 0 ? rule.window.first(static_cast<int32_t>(end - 1)) : 0;
  return {std::min(first, end), end};
}

std::vector<double> attend_row(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token) {
  const SeenTokens seen = seen_by(rule, token, values.count());
  const std::vector<double> p = probabilities(products, rule, seen);
  std::vector<double> out(static_cast<size_t>(values.width));
  for (size_t i = 0; i < p.size(); ++i) {
    const float* const value = values.at(seen.first + static_cast<int64_t>(i));
    for (size_t c = 0; c < out.size(); ++c) out[c] += p[i] * value[c];
  }
  return out;
}

double deviation(std::span<const double> found, std::span<const double> recorded) {
  double squares = 0;
  for (size_t c = 0; c < found.size(); ++c) squares += (found[c] - recorded[c]) * (found[c] - recorded[c]);
  return squares > 0 ? std::sqrt(squares) / std::max(norm_of(found), norm_of(recorded)) : 0;
}

double rounding_deviation(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token,
                          std::span<const double> out, double unit) {
  const SeenTokens seen = seen_by(rule, token, values.count());
  const std::vector<double> p = probabilities(products, rule, seen);
  const double norm = norm_of(out);
  double moved = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const size_t at = static_cast<size_t>(seen.first) + i;
    const double logit = std::abs(logit_of(rule, products.dot[at]));
    moved += p[i] * (std::abs(rule.scale) * products.spread[at] + logit) *
             distance(values.at(static_cast<int64_t>(at)), out);
  }
  const double of_logits = norm > 0 ? kLogitRoundingFactor * unit * moved / norm : 0;
  return std::min(std::max(kSumRounding, kRoundings * unit) + of_logits, kMaxRoundingDeviation);
}

double rounding_unit(DType type) {
  return type == DType::bfloat16 ? 0x1p-9 : type == DType::float16 ? 0x1p-12 : 0x1p-25;
}

namespace {

constexpr int64_t kMostExplained = 2;  // layers explained per prompt; the others are only counted
constexpr int64_t kLongTrace = 8192;   // in longer traces fewer rows are explained
constexpr size_t kRowsExplainedOfLong = 3;

// True if bfloat16 holds every number exactly; then the model has rounded them to it.
bool fit_bfloat16(std::span<const float> numbers) {
  return std::ranges::all_of(numbers, [](float x) { return (std::bit_cast<uint32_t>(x) & 0xFFFFu) == 0; });
}
bool fit_float16(std::span<const float> numbers) {
  return std::ranges::all_of(numbers, [](float x) { return (std::bit_cast<uint32_t>(x) & 0x1FFFu) == 0; });
}

double unit_of(std::span<const float> numbers) {
  return fit_bfloat16(numbers)  ? rounding_unit(DType::bfloat16)
         : fit_float16(numbers) ? rounding_unit(DType::float16)
                                : rounding_unit(DType::float32);
}

double unit_of(const LayerInfo& layer) {
  const bool bf16 = layer.dtype == DType::bfloat16 || layer.source_dtype == "bfloat16";
  const bool f16 = layer.dtype == DType::float16 || layer.source_dtype == "float16";
  return rounding_unit(bf16 ? DType::bfloat16 : f16 ? DType::float16 : DType::float32);
}

struct Disagreement {
  size_t row = 0;  // index into the head's rows
  double deviation = 0, believed = 0;
  std::vector<double> found;
};

// Keys and values of one kv head, and the checks of its query heads' rows.
class KvHead {
 public:
  KvHead(const Trace& trace, const std::string& prompt, const LayerInfo& layer, int32_t kv_head)
      : trace_(trace),
        prompt_(prompt),
        layer_(layer),
        keys_(static_cast<size_t>(layer.tokens * layer.head_dim)),
        values_(static_cast<size_t>(layer.tokens * layer.v_head_dim)) {
    trace.read_keys(prompt, layer.layer, kv_head, layer.tokens, keys_);
    trace.read_values(prompt, layer.layer, kv_head, layer.tokens, values_);
    unit_ = std::max({unit_of(layer), unit_of(keys_), unit_of(values_)});
  }

  RowsOfHead rows_of(int32_t q_head) const {
    RowsOfHead head{prompt_, layer_.layer, q_head, unit_, {}, {}};
    head.queries.resize(static_cast<size_t>(layer_.query_rows * layer_.head_dim));
    trace_.read_queries(prompt_, layer_.layer, q_head, 0, layer_.query_rows, head.queries);
    const int64_t width = layer_.out_dim();
    std::vector<float> out(static_cast<size_t>(layer_.query_rows * width));
    trace_.read_out(prompt_, layer_.layer, q_head, layer_.query_rows, out);
    head.unit = std::max({unit_, unit_of(head.queries), unit_of(out)});
    const std::vector<int32_t> tokens = trace_.query_positions(prompt_, layer_.layer);
    const int64_t count = std::min(kRowsOfHead, layer_.query_rows);
    for (int64_t i = 1; i <= count; ++i) {
      const int64_t row = i * layer_.query_rows / count - 1;
      const auto query = head.queries.begin() + row * layer_.head_dim;
      const auto recorded = out.begin() + row * width;
      head.rows.push_back(
          {row, tokens[static_cast<size_t>(row)], {query, query + layer_.head_dim}, {recorded, recorded + width}});
    }
    return head;
  }

  // The row with the largest deviation beyond rounding; nullopt if all rows agree.
  std::optional<Disagreement> compare(const RowsOfHead& head) const {
    const AttentionRule rule = stated_rule(trace_, prompt_, layer_, head.q_head);
    const std::vector<float> projected = layer_.is_latent() ? values_of(head.q_head) : std::vector<float>{};
    const Rows values{layer_.is_latent() ? projected : values_, layer_.out_dim()};
    std::optional<Disagreement> worst;
    for (size_t i = 0; i < head.rows.size(); ++i) {
      const RecordedRow& row = head.rows[i];
      const Products products = products_of(row.query, {keys_, layer_.head_dim});
      std::vector<double> found = attend_row(products, values, rule, row.token);
      const double d = deviation(found, row.out);
      const double believed = rounding_deviation(products, values, rule, row.token, found, head.unit);
      if (d > believed && (!worst || d > worst->deviation)) worst = {i, d, believed, std::move(found)};
    }
    return worst;
  }

 private:
  // Values of a query head that reads latents, [tokens, out_dim].
  std::vector<float> values_of(int32_t q_head) const {
    const auto out = static_cast<size_t>(layer_.out_dim()), width = static_cast<size_t>(layer_.v_head_dim);
    std::vector<float> up(width * out);
    trace_.read_up_values(prompt_, layer_.layer, q_head, up);
    return product_of(values_, up, width);
  }

  const Trace& trace_;
  const std::string& prompt_;
  const LayerInfo& layer_;
  std::vector<float> keys_, values_;
  double unit_ = 0;
};

struct WrongLayer {
  RowsOfHead head;  // the first head that disagrees
  Disagreement row;
  int32_t heads = 0;  // number of heads that disagree
};

std::optional<WrongLayer> compare_layer(const Trace& trace, const std::string& prompt, const LayerInfo& layer) {
  std::optional<WrongLayer> wrong;
  for (int32_t kv_head = 0; kv_head < layer.kv_heads; ++kv_head) {
    const KvHead heads(trace, prompt, layer, kv_head);
    for (int32_t i = 0; i < layer.group(); ++i) {
      RowsOfHead head = heads.rows_of(kv_head * layer.group() + i);
      const std::optional<Disagreement> row = heads.compare(head);
      if (!row) continue;
      if (!wrong) wrong = WrongLayer{std::move(head), *row, 0};
      ++wrong->heads;
    }
  }
  return wrong;
}

// For a long trace, explains only the first row, the last and one between: each row costs a pass over all tokens for
// every mistake tried. The disagreeing row must be among them, otherwise nothing would be left to explain.
void limit_rows(int64_t tokens, size_t wrong, std::vector<RecordedRow>& rows) {
  if (tokens <= kLongTrace || rows.size() <= kRowsExplainedOfLong) return;
  const bool at_an_end = wrong == 0 || wrong + 1 == rows.size();
  rows = {rows.front(), rows[at_an_end ? rows.size() / 2 : wrong], rows.back()};
}

std::string describe(const Trace& trace, WrongLayer& wrong) {
  const LayerInfo& layer = trace.layer(wrong.head.prompt, wrong.head.layer);
  const RecordedRow& row = wrong.head.rows[wrong.row.row];
  size_t at = 0;
  for (size_t c = 0; c < row.out.size(); ++c)
    if (std::abs(wrong.row.found[c] - row.out[c]) > std::abs(wrong.row.found[at] - row.out[at])) at = c;
  std::string text = fmt::format(
      "{}: /{}/out: head {}, row {}: attention over q, k and v gives {:.4g} at coordinate {}, recorded is {:.4g} (the "
      "row is off by {:.2g}, rounding explains {:.2g}; {} of {} heads disagree)",
      trace.info().path.string(), layer_path(wrong.head.prompt, layer.layer), wrong.head.q_head, row.row,
      wrong.row.found[at], at, row.out[at], wrong.row.deviation, wrong.row.believed, wrong.heads, layer.q_heads);
  limit_rows(layer.tokens, wrong.row.row, wrong.head.rows);
  const std::optional<Mistake> mistake = layer.is_latent() ? std::nullopt : usual_mistake(trace, wrong.head);
  return text + (mistake
                     ? ". But " + mistake->text
                     : ". None of the usual mistakes explains it: compare scaling, mask, order of heads and rotary "
                       "embedding with the model's attention, or remove the dataset if it belongs to another layer");
}

}  // namespace

std::vector<std::string> wrong_outputs(const Trace& trace) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : trace.info().prompts) {
    int64_t layers = 0;
    for (const LayerInfo& layer : prompt.layers) {
      if (!layer.has_out) continue;
      std::optional<WrongLayer> wrong = compare_layer(trace, prompt.id, layer);
      if (wrong && ++layers <= kMostExplained) lines.push_back(describe(trace, *wrong));
    }
    if (layers > kMostExplained)
      lines.push_back(fmt::format(
          "{}: /prompts/{}: in {} more layers, out disagrees with q, k and v; correct the layers above first",
          trace.info().path.string(), prompt.id, layers - kMostExplained));
  }
  return lines;
}

}  // namespace kvreplay
