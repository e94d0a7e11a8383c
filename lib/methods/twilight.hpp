#pragma once
#include "core/linear.hpp"
#include "methods/quest.hpp"

namespace kvreplay {

// A key in 4 bits per number, with an offset and a step of its own (methods/twilight.hpp).
struct FourBitKey {
  double low, step;

  template <class Real>
  explicit FourBitKey(std::span<const Real> key) : low(double(key[0])) {
    constexpr double kLeastRange = 1e-9;
    double high = low;
    for (const Real number : key) {
      const double x = double(number);
      low = x < low ? x : low, high = x > high ? x : high;
    }
    step = (high - low > kLeastRange ? high - low : kLeastRange) / 15;
  }
  double operator()(double x) const { return std::nearbyint((x - low) / step) * step + low; }
};

// Twilight, Lin et al. 2025: candidates by Quest, then as few of them as hold a share p of the attention.
//  1. Candidates: the tokens of Quest's pages at the budget, which is a conservative one (a quarter of the tokens in
//     the paper).
//  2. Per query head: logits with 4-bit keys, softmax over the candidates.
//  3. Keep the smallest number of largest weights whose sum is at least p.
//  4. Exact attention over them.
struct Twilight : Quest {
  static constexpr MethodInfo info{
      .name = "twilight",
      .title = "Quest's pages, pruned to a share p of the attention",
      .source = "Twilight, Lin et al. 2025, section 4",
      .tier = 3,
      .memory = "the full cache, the extremes of its pages and 4-bit keys; the budget bounds the candidates",
      .deviation =
          "kernels find the weights by bisection, and Quest there rounds B / page up. The default p is ours, within "
          "the "
          "published 0.85-0.95. With gqa.level kv the group shares its pages, and each query head prunes them.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt append choose extra_bytes layout traits set_options state"};
  double p = 0.95;
  int32_t candidates = 0;  // tokens whose 4-bit keys the step read

  static void declare(auto& d) {
    d.integer("page", &Twilight::page, {1, kManyTokens}, "tokens per page");
    d.real("p", &Twilight::p, {0, 1}, "share of the candidates' estimated attention that is read, above 0");
    d.layers("dense_layers", &Twilight::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    Quest::resolve(context);
    if (!(p > 0)) throw ParameterError("p", "p 0 reads nothing; set a share above 0");
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = dense ? 0 : Quest::layout(context).state_doubles + 2 * int64_t(tokens)};
  }
  void traits(Traits& t) const {
    Quest::traits(t);
    t.heads_differ = true;
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    Quest::extra_bytes(c, cache);
    const int64_t bytes = (cache.shape().dim + 1) / 2 + 4;
    if (!dense) c.aux_bytes = cache.size() * bytes, c.aux_bytes_read = candidates * bytes;
  }

  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    Quest::choose(team, cache, queries, chosen);
    const int32_t rows = cache.size();
    for (int32_t h = 0; h < queries.heads && !dense; ++h) prune(team, cache, queries, h, chosen + int64_t(h) * rows);
  }

 private:
  // Steps 2 and 3. chosen: the candidates, all read; those that are pruned are not.
  template <class Real>
  void prune(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
             uint8_t* chosen) {
    // Between the extremes and the bounds of Quest.
    Carver cut{state.data() + 2 * int64_t(pages()) * queries.dim};
    const std::span<double> row = cut(tokens), weight = cut(tokens);
    candidates = team.compact(
        cache.size(), [&](int32_t i) { return chosen[i] == kRead; }, [](int32_t i) { return i; },
        [&](int32_t to, int32_t i) { row[size_t(to)] = i; });
    team.each(candidates, [&](int32_t j) {
      const auto key = cache.key(int32_t(row[size_t(j)]));
      const FourBitKey read_back(key);
      double product = 0;
      for (size_t c = 0; c < key.size(); ++c) product += double(queries(head)[c]) * read_back(double(key[c]));
      weight[size_t(j)] = queries.scale * product;
    });
    softmax(team, weight.first(size_t(candidates)));
    const double mass = p < 1 ? p : INFINITY;  // p = 1 reads all candidates, whatever the rounding of the sum
    choose_mass(
        team, candidates, mass, [&](int32_t j) { return weight[size_t(j)]; },
        [&](int32_t j, bool yes) { chosen[int32_t(row[size_t(j)])] = yes ? kRead : kUnread; });
  }
};

}  // namespace kvreplay
