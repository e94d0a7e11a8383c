#pragma once
#include <cmath>

#include "core/linear.hpp"
#include "core/philox.hpp"
#include "methods/parts/exact_logits.hpp"
#include "theory/normal.hpp"

namespace kvreplay {

// vAttention, Desai et al. 2025: a sample of the residual tokens, as large as a wanted error of the denominator needs.
// Per query head:
//  1. F: the first `sinks`, the newest `local`, and of the rest the `top` tokens of the largest logits (an oracle). The
//     n_s other tokens are the residual. If they are fewer than 2, all are read.
//  2. Base sample: m0 = max(2, floor(base n_s)) tokens of the residual, those of the smallest uniforms.
//  3. With e_j = exp(l_j - max over F): s = standard deviation of e over the base sample, at least 1e-8; D = sum of e
//     over F + n_s / m0 times its sum over the base sample.
//  4. b = floor((z s n_s / (epsilon D))^2) between m0 and n_s, with z the normal quantile at 1 - delta.
//  5. Read F with weight 1, and the b residual tokens of the smallest uniforms with weight n_s / b in both sums.
// With probability 1 - delta the denominator is off by a share of at most epsilon, if sums were normal. The quantile is
// one-sided, as published: both sides together allow 2 delta.
struct VAttention {
  static constexpr MethodInfo info{
      .name = "vattention",
      .title = "top tokens, and a sample of the others of verified size",
      .source = "vAttention, Desai et al. 2025; skylight-org/sparse-attention-hub",
      .tier = 2,
      .memory = "the full cache; the rows read are an output",
      .deviation =
          "the top tokens are an oracle's. The release samples with replacement over the top tokens, too, counts those "
          "twice in D, and draws the final sample anew; here the sample is of the residual, without replacement, and "
          "contains the base sample. The paper's guarantee for the numerator is left out.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .only_level = GqaLevel::query,
      .takes_budget = false,
      .implied_layout = true,
      .reads_full_cache = true,
  };
  static constexpr Hooks hooks{"choose error_bound layout traits rng_arrays set_options state rng"};
  static constexpr double kLeastDeviation = 1e-8;
  int32_t sinks = 128, local = 128, top = 128;
  double base = 0.05, epsilon = 0.05, delta = 0.05;
  LayerSet dense_layers;
  int32_t prompt = 0, tokens = 0;
  double z = 0;
  bool dense = false;
  std::span<double> state;  // [tokens] logits, [tokens] residual rows, [tokens] their uniforms, [tokens] their e
  Rng rng;

  static void declare(auto& d) {
    d.integer("sinks", &VAttention::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("local", &VAttention::local, {1, kManyTokens}, "last tokens that are always read, the newest included");
    d.integer("top", &VAttention::top, {0, kManyTokens}, "other tokens with the largest logits that are always read");
    d.real("base", &VAttention::base, {0, 1}, "share of the residual in the base sample, above 0 and below 1");
    d.real("epsilon", &VAttention::epsilon, {0, 1}, "relative error of the denominator, above 0 and below 1");
    d.real("delta", &VAttention::delta, {0, 1}, "probability of a larger error, above 0 and below 1");
    d.layers("dense_layers", &VAttention::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    check_share("base", base), check_share("epsilon", epsilon), check_share("delta", delta);
    prompt = context.prompt_tokens, tokens = context.tokens;
    dense = dense_layers.has(context.layer);
    z = theory::normal_quantile_above(delta);
  }
  void traits(Traits& t) const { t.random = true; }
  static void set_options(const VAttention&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  ErrorBound error_bound() const { return {ErrorBound::Norm::partition, epsilon, 1 - delta}; }
  // [query heads, decode rows, tokens], flat.
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"u", RngStream::residual_sample, 1, int64_t(context.query_heads) * (tokens - prompt) * tokens}};
  }
  Layout layout(const MethodContext&) const { return {.state_doubles = dense ? 0 : 4 * int64_t(tokens)}; }

  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen,
              double* weights) {
    const int32_t rows = cache.size();
    team.each(rows * queries.heads, [&](int32_t i) { chosen[i] = kRead, weights[i] = 1; });
    const int32_t first = held_sinks(cache, sinks), middle = rows - first - local, residual = middle - top;
    if (dense || residual < 2) return;
    for (int32_t h = 0; h < queries.heads; ++h)
      sample(team, cache, queries, h, {first, middle, residual}, chosen + int64_t(h) * rows,
             weights + int64_t(h) * rows);
  }

 private:
  struct Parts {
    int32_t sinks, middle, residual;  // numbers of rows; the middle lies between sinks and local
  };
  template <class Real>
  void sample(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
              Parts parts, uint8_t* read, double* weights) const {
    const int32_t rows = cache.size(), residual = parts.residual;
    Carver cut{state.data()};
    const std::span<double> logit = cut(tokens), row = cut(tokens), uniform = cut(tokens), e = cut(tokens);
    const auto row_of = [&](int32_t j) { return int32_t(row[size_t(j)]); };
    exact_logits(team, cache, queries, head, logit);
    choose_top(
        team, parts.middle, top, [&](int32_t i) { return logit[size_t(parts.sinks + i)]; },
        [&](int32_t i, bool yes) { read[parts.sinks + i] = yes ? kRead : kUnread; });
    const auto is_read = [&](int32_t i) { return read[i] == kRead; };
    const double most = team.largest(rows, [&](int32_t i) { return is_read(i) ? logit[size_t(i)] : -INFINITY; }).score;
    const double fixed = team.sum(rows, [&](int32_t i) { return is_read(i) ? std::exp(logit[size_t(i)] - most) : 0; });
    team.compact(
        rows, [&](int32_t i) { return !is_read(i); }, [](int32_t i) { return i; },
        [&](int32_t to, int32_t i) { row[size_t(to)] = i; });
    team.each(residual, [&](int32_t j) {
      e[size_t(j)] = std::exp(logit[size_t(row_of(j))] - most);
      uniform[size_t(j)] = draw(queries.first_head + head, queries.token, cache.token(row_of(j)));
    });
    const auto take_first = [&](int32_t count) {
      choose_top(
          team, residual, count, [&](int32_t j) { return -uniform[size_t(j)]; },
          [&](int32_t j, bool yes) { read[row_of(j)] = yes ? kRead : kUnread; });
    };
    take_first(base_size(residual));
    const int32_t size = wanted_size(
        team, residual, fixed, [&](int32_t j) { return is_read(row_of(j)); }, e);
    take_first(size);
    team.each(residual, [&](int32_t j) { weights[row_of(j)] = double(residual) / size; });
  }
  static void check_share(const char* name, double share) {
    if (!(share > 0 && share < 1))
      throw ParameterError(name, std::string(name) + " must lie between 0 and 1; take a number above 0 and below 1");
  }
  double draw(int32_t head, int32_t t, int32_t token) const {
    if (!rng.has_injected()) return rng.uniform(RngStream::residual_sample, t, token, head);
    const int64_t decode_row = int64_t(head) * (tokens - prompt) + t - prompt;
    return rng.uniform(RngStream::residual_sample, decode_row * tokens + token);
  }
  int32_t base_size(int32_t residual) const {
    const auto share = int32_t(base * residual), size = share > 2 ? share : 2;
    return size < residual ? size : residual;
  }
  // Steps 3 and 4. fixed: sum of e over F.
  int32_t wanted_size(const Team auto& team, int32_t residual, double fixed, auto in_base,
                      std::span<const double> e) const {
    const int32_t m = base_size(residual);
    const double sum = team.sum(residual, [&](int32_t j) { return in_base(j) ? e[size_t(j)] : 0.0; }), mean = sum / m;
    const double squares =
        team.sum(residual, [&](int32_t j) { return in_base(j) ? (e[size_t(j)] - mean) * (e[size_t(j)] - mean) : 0.0; });
    const double s = std::fmax(std::sqrt(squares / (m - 1)), kLeastDeviation), all = fixed + double(residual) / m * sum;
    const double root = z * s * residual / (epsilon * all), size = root * root;
    if (!(size < residual)) return residual;  // NaN, too: e exceeded the range of double
    return size > m ? int32_t(size) : m;
  }
};

}  // namespace kvreplay
