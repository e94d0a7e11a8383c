#include "support.hpp"

#include <algorithm>

#include "core/philox.hpp"
#include "exact/row_scores.hpp"
#include "list_files.hpp"

namespace kvreplay::test {
namespace {

class Gaussian {
 public:
  Gaussian(uint32_t seed, uint32_t what) : draws_{seed, what, 0, 0} {}
  double operator()() {
    const double u = 1 - draws_.uniform(RngStream::synthetic_traces, next_, 0),
                 v = draws_.uniform(RngStream::synthetic_traces, next_, 1);
    ++next_;
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  Rng draws_;
  int64_t next_ = 0;
};

template <class Real>
void shape_rows(HeadStream<Real>& s, Look look, uint32_t seed) {
  Gaussian noise(seed, 7);
  const size_t d = size_t(s.shape.dim), dv = size_t(s.shape.v_dim);
  std::vector<double> centres(4 * d);
  for (double& c : centres) c = 2 * noise();
  for (size_t i = 0; i < size_t(s.tokens); ++i) {
    Real *k = s.keys.data() + i * d, *v = s.values.data() + i * dv;
    for (size_t c = 0; c < d; ++c) {
      if (look == Look::clustered) k[c] = Real(centres[(i / 8 % 4) * d + c] + 0.2 * double(k[c]));
      if (look == Look::sinks && i < 2) k[c] = Real(3 + 0.1 * double(k[c]));
      if (look == Look::duplicates && i % 3 == 1) k[c] = s.keys[(i - 1) * d + c];
      if (look == Look::zero_rows && i % 5 == 0) k[c] = 0;
      if (look == Look::huge_norms && i % 7 == 0) k[c] = Real(20 * double(k[c]));
    }
    for (size_t c = 0; c < dv; ++c) {
      if (look == Look::duplicates && i % 3 == 1) v[c] = s.values[(i - 1) * dv + c];
      if (look == Look::zero_rows && i % 4 == 0) v[c] = 0;
    }
  }
}

}  // namespace

namespace {

// Two drawn samples of a gradient and those of the recorded tokens and of the answer, in every row after the prompt
// that predicts a token.
Sensitivity make_sensitivity(StreamShape s, uint32_t seed) {
  Sensitivity to{4, s.tokens - s.prompt - 1, s.v_dim, true, true, {}, std::vector<int32_t>(size_t(s.tokens), -1)};
  for (int32_t row = 0; row < to.rows; ++row) to.row_of[size_t(s.prompt + row)] = row;
  Gaussian g(seed, 4);
  for (int32_t i = 0; i < s.heads * to.rows * to.samples * to.v_dim; ++i) to.numbers.push_back(to_bf16(float(g())));
  return to;
}

}  // namespace

// The prompt repeated in two chunks, and an output projection.
template <class Real>
void repeat_prompt(HeadStream<Real>& stream, uint32_t seed) {
  constexpr int32_t kRows = 7, kWidth = 5;
  const HeadShape& s = stream.shape;
  const int32_t half = stream.prompt / 2, chunks = half > 0 ? 2 : 1;
  stream.repeat = {stream.prompt, {0, kRows}, {0, stream.prompt}};
  if (chunks == 2)
    stream.repeat.rows.push_back(2 * kRows), stream.repeat.ctx.insert(stream.repeat.ctx.begin() + 1, half);
  Gaussian numbers(seed, 4);
  const int64_t rows = int64_t(chunks) * kRows;
  for (int64_t i = 0; i < s.heads * rows * s.dim; ++i) stream.repeat_queries.push_back(Real(numbers()));
  for (int64_t i = 0; i < rows * s.dim; ++i) stream.repeat_keys.push_back(Real(numbers()));
  stream.repeat_input_norms.assign(size_t(rows), 3);
  std::vector<float> weights(size_t(s.v_dim) * kWidth);
  for (int32_t h = 0; h < s.heads; ++h) {
    for (float& w : weights) w = float(numbers());
    add_output_norms(stream, weights);
  }
}

template <class Real>
HeadStream<Real> make_stream(StreamShape s, uint32_t seed, Look look) {
  HeadStream<Real> stream;
  stream.shape = {s.dim, s.v_dim, s.heads};
  stream.tokens = s.tokens;
  stream.prompt = s.prompt;
  stream.query_rows = s.tokens;
  stream.rule = {Real(1 / std::sqrt(double(s.dim))), 0};
  Gaussian k(seed, 1), v(seed, 2), q(seed, 3);
  for (int32_t i = 0; i < s.tokens; ++i) {
    stream.query_row.push_back(i);
    stream.positions.push_back(i);
    for (int32_t c = 0; c < s.dim; ++c) stream.keys.push_back(Real(k()));
    for (int32_t c = 0; c < s.v_dim; ++c) stream.values.push_back(Real(v()));
  }
  for (int32_t i = 0; i < s.heads * s.tokens * s.dim; ++i)
    stream.queries.push_back(Real(q() + (look == Look::sinks ? 0.5 : 0)));
  shape_rows(stream, look, seed);
  stream.max_value_norm = 10;
  for (int32_t i = 0; i < s.tokens; ++i)
    stream.classes.push_back(uint8_t(i == 0       ? TokenClass::special
                                     : i % 6 == 4 ? TokenClass::punctuation
                                                  : TokenClass::plain));
  Rope rope;
  for (int32_t i = 0; i < s.dim / 2; ++i) rope.inv_freq.push_back(std::pow(1e4, -2.0 * i / s.dim));
  stream.rotation = std::make_unique<RotationTable<Real>>(rope, s.tokens);
  stream.sensitivity = make_sensitivity(s, seed);
  repeat_prompt(stream, seed);
  return stream;
}

HeadStream<double> layer_of(const HeadStream<double>& a, const HeadStream<double>& b) {
  const StreamShape s{a.tokens, a.prompt, a.shape.dim, a.shape.v_dim, a.shape.heads};
  HeadStream<double> layer = make_stream<double>(s);
  layer.shape.heads = 2 * s.heads, layer.shape.blocks = 2;
  for (auto member : {&HeadStream<double>::keys, &HeadStream<double>::values, &HeadStream<double>::queries,
                      &HeadStream<double>::repeat_keys, &HeadStream<double>::repeat_queries,
                      &HeadStream<double>::output_norms_l1, &HeadStream<double>::output_norms_l2}) {
    layer.*member = a.*member;
    (layer.*member).insert((layer.*member).end(), (b.*member).begin(), (b.*member).end());
  }
  std::vector<uint16_t>& numbers = layer.sensitivity.numbers;
  numbers = a.sensitivity.numbers;
  numbers.insert(numbers.end(), b.sensitivity.numbers.begin(), b.sensitivity.numbers.end());
  return layer;
}

Cell changed(Cell cell, const std::function<void(Variant&)>& change) {
  Variant variant = *cell.variant;
  change(variant);
  variant.params = params_json(BoundMethod(variant.values, cell.context()), variant.options);
  cell.variant = std::make_shared<const Variant>(std::move(variant));
  return cell;
}
Cell streamed(const Cell& cell) {
  return changed(cell, [](Variant& v) { v.prompt_streams = true; });
}
nlohmann::json params_of(const Cell& cell) { return nlohmann::json::parse(cell.variant->params); }

MethodValues values_of(const Method& method, const nlohmann::json& params) {
  MethodValues values(method);
  for (const auto& [name, value] : params.items()) {
    const ParameterSpec* spec = method.parameter(name);
    REQUIRE(spec != nullptr);
    values.set(*spec, value.dump());
  }
  return values;
}
CommonOptions default_options(const std::string& method, const nlohmann::json& params) {
  return values_of(*find_method(registry(), method), params).default_options();
}
nlohmann::json resolved_params(const std::string& method, const nlohmann::json& params, const MethodContext& context) {
  const BoundMethod bound(values_of(*find_method(registry(), method), params), context);
  nlohmann::json all;
  for (const ParameterSpec& spec : bound.method().parameters)
    all[spec.name] = nlohmann::json::parse(parameter_json(spec, bound.policy()));
  return all;
}

Cell make_cell(const std::string& method, std::optional<int32_t> budget, const StreamShape& s,
               const nlohmann::json& params, CommonOptions options, uint32_t seed) {
  const Method* const found = find_method(registry(), method);
  REQUIRE(found != nullptr);
  return make_cell(*found, budget, s, params, options, seed);
}
Cell make_cell(const Method& method, std::optional<int32_t> budget, const StreamShape& s, const nlohmann::json& params,
               CommonOptions options, uint32_t seed) {
  static const auto trace = std::make_shared<const TraceNames>(TraceNames{"trace", "model", 1});
  Variant variant(values_of(method, params));
  variant.trace = trace;
  variant.options = options;
  variant.shape = {s.dim, s.v_dim, options.gqa_level == GqaLevel::query ? 1 : s.heads, 1};
  variant.scale = 1 / std::sqrt(double(s.dim));
  if (!method.lists_in.empty()) variant.kept = sinks_and_recent(budget.value_or(s.tokens), s, options);
  Cell cell;
  if (budget && variant.values.traits().takes_budget) cell.budget = {*budget, double(*budget)};
  cell.seed = seed;
  cell.extent = {s.tokens, s.prompt};
  cell.variant = std::make_shared<const Variant>(std::move(variant));
  return changed(std::move(cell), [](Variant&) {});
}

template <class Real>
RunResult replay(const HeadStream<Real>& stream, const std::vector<Cell>& cells, RunOptions options) {
  options.save = {true, true, true, true};
  HeadReplay<Real> head(stream, options);
  for (const Cell& cell : cells) head.add(cell);
  RunResult result;
  head.run([] { return false; });
  head.report([&](const Cell&, const CellResult& r) { result.cells.push_back(r); });
  return result;
}

std::vector<double> output(const CellResult& r, int32_t head, size_t row) {
  const size_t at = (size_t(head) * r.rows.size() + row) * size_t(r.v_dim);
  return {r.out.begin() + int64_t(at), r.out.begin() + int64_t(at) + r.v_dim};
}
std::vector<int32_t> kept_list(const CellResult& r, size_t i) {
  return {r.kept.flat.begin() + r.kept.off.at(i), r.kept.flat.begin() + r.kept.off.at(i + 1)};
}

template <class Real>
std::vector<double> naive_attention(const HeadStream<Real>& stream, int32_t head, int32_t token,
                                    const std::vector<int32_t>& tokens, const std::vector<double>& num,
                                    const std::vector<double>& den) {
  const Real* q = stream.query(head, token);
  std::vector<double> logits, out(size_t(stream.shape.v_dim), 0.0);
  double top = -1e300, z = 0;
  for (const int32_t i : tokens) {
    double l = 0;
    for (int32_t c = 0; c < stream.shape.dim; ++c)
      l += double(q[c]) * double(stream.keys[size_t(i * stream.shape.dim + c)]);
    logits.push_back(l * double(stream.rule.scale));
    top = std::max(top, logits.back());
  }
  for (size_t j = 0; j < tokens.size(); ++j) {
    const double e = std::exp(logits[j] - top);
    z += e * (den.empty() ? 1.0 : den[j]);
    for (size_t c = 0; c < out.size(); ++c)
      out[c] += e * (num.empty() ? 1.0 : num[j]) * double(stream.values[size_t(tokens[j]) * out.size() + c]);
  }
  for (double& x : out) x /= z;
  return out;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0, most = 1e-300;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
    most = std::max(most, std::abs(b[i]));
  }
  return worst / most;
}

std::vector<std::string> methods_with(bool (*want)(const Method&)) {
  std::vector<std::string> names;
  for (const Method& m : registry())
    if (want(m)) names.push_back(m.info.name);
  return names;
}

template HeadStream<float> make_stream(StreamShape, uint32_t, Look);
template HeadStream<double> make_stream(StreamShape, uint32_t, Look);
template RunResult replay(const HeadStream<float>&, const std::vector<Cell>&, RunOptions);
template RunResult replay(const HeadStream<double>&, const std::vector<Cell>&, RunOptions);
template std::vector<double> naive_attention(const HeadStream<float>&, int32_t, int32_t, const std::vector<int32_t>&,
                                             const std::vector<double>&, const std::vector<double>&);
template std::vector<double> naive_attention(const HeadStream<double>&, int32_t, int32_t, const std::vector<int32_t>&,
                                             const std::vector<double>&, const std::vector<double>&);

}  // namespace kvreplay::test
