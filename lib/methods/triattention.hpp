#pragma once
#include "core/common_cuts.hpp"
#include "core/rotary.hpp"
#include "core/vectors.hpp"
#include "methods/parts/buffered.hpp"

namespace kvreplay {

// Mean of the queries of one head before rotation (methods/triattention.hpp, steps 1 and 2).
struct MeanQuery {
  std::span<double> mean;   // [dim]
  std::span<double> sizes;  // [pairs] mean modulus of each pair of channels

  template <class Real>
  void take(const Team auto& team, const Prompt<Real>& prompt, int32_t head) const {
    const std::span<const double> of = prompt.mean_query(head), lengths = prompt.query_sizes(head);
    team.each(int32_t(mean.size()), [&](int32_t c) { mean[size_t(c)] = of[size_t(c)]; });
    team.each(int32_t(sizes.size()), [&](int32_t f) { sizes[size_t(f)] = lengths[size_t(f)]; });
  }
  // Writes to `to` the mean query, rotated to position `next` + D and averaged over D = first, 2 first, ... up to
  // `last`. Its product with a stored key is the sum over all pairs of channels, times `weight`, plus the sum over the
  // channels that do not rotate.
  void look_ahead(const Team auto& team, const RopeView& rope, int32_t next, int32_t first, int32_t last, double weight,
                  std::span<double> to) const {
    team.each(int32_t(mean.size()), [&](int32_t c) { to[size_t(c)] = mean[size_t(c)]; });
    team.each(rope.pairs, [&](int32_t f) {
      double c = 0, s = 0;
      int32_t count = 0;
      for (int32_t ahead = first; ahead <= last; ahead *= 2, ++count) {
        const double angle = (double(next) + ahead) * rope.inv_freq[f];
        c += std::cos(angle), s += std::sin(angle);
      }
      rotate_pair(rope, f, weight * c / count, weight * s / count, to.data());
    });
  }
};

// TriAttention, 2026: keys are scored by their distance to future queries, which before rotation have one main
// direction in every pair of channels.
//  1. Calibration, per query head and pair f of channels, on un-rotated queries of this or other text: m_f = mean of
//     q_f as a complex number, a_f = mean |q_f|; means of the channels that do not rotate.
//  2. A cut at time T (position of the newest token + 1), for a key kappa at position p before its rotation:
//     s(j) = mean over offsets D of sum_f |m_f| |kappa_f| cos(w_f (T - p + D) + arg m_f - arg kappa_f)
//          + sum_f (a_f - |m_f|) |kappa_f|  +  <mean, key> over the channels that do not rotate.
//  3. Per query head s is standardised over the candidates; then the largest of the group is the score.
//  4. Keep the top m. `head`: by the mean over layers, for kv head h of each. `union`: by the largest of all heads.
// The stored key contains the factor e^{i w_f p}: sum_f is Re(m_f e^{i w_f (T + D)} conj k_f), so a cut un-rotates
// nothing.
struct TriAttention : Buffered, CommonCuts {
  static constexpr MethodInfo info{
      .name = "triattention",
      .title = "distance to the mean query before rotation, cut once per buffer",
      .source = "TriAttention, arXiv 2604.04921, section 4",
      .tier = 2,
      .memory = "B tokens and up to `buffer` more; means of queries are constants of the model",
      .deviation =
          "calibrated on this prompt's queries unless `calibration` names other text, as the release does; one set "
          "per kv head by default; a prompt longer than the budget competes, while the release keeps its first tokens; "
          "channels that do not rotate count by their mean product.",
      .any_positions = false,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks = Hooks{"read_prompt evict observe_queries layout needs traits state"} + cut_hooks;
  enum class Together { mean, max };
  enum class NormTerm { residual, full };
  int32_t offsets = 65536, sinks = 0, recent = 0;
  Together offset_agg = Together::mean, group = Together::max;
  bool normalise = true, trig_term = true, keep_prompt = false;
  NormTerm norm_term = NormTerm::residual;
  int32_t prompt = 0, room = 0, next = 0;  // next: T
  int32_t pairs = 0;                       // pairs of channels that rotate
  bool interleaved = false;
  std::span<double> state;  // [heads, dim] mean queries, [heads, dim] weights of norms, [dim] frequencies, [dim] a
                            // query, [heads, room] scores

  static void declare(auto& d) {
    declare_buffer<TriAttention>(d);
    d.calibration("queries for calibration: those of this prompt, or of other text");
    d.integer("offsets", &TriAttention::offsets, {1, 1 << 20}, "largest of the distances ahead, 1, 2, 4, ...");
    d.choice("offset_agg", &TriAttention::offset_agg, {"mean", "max"}, "how distances ahead are combined");
    d.choice("group", &TriAttention::group, {"mean", "max"}, "how query heads are combined; with level union max");
    declare_level<TriAttention>(d);
    d.boolean("normalise", &TriAttention::normalise, "whether each query head's scores are standardised");
    d.choice("norm_term", &TriAttention::norm_term, {"residual", "full"},
             "weight of a key's norm: |q_f| minus its mean direction, or all of |q_f|");
    d.boolean("trig_term", &TriAttention::trig_term, "whether distances enter the score");
    d.boolean("keep_prompt", &TriAttention::keep_prompt, "whether the prompt stays and the budget is for later tokens");
    d.integer("sinks", &TriAttention::sinks, {0, kManyTokens}, "first tokens that always stay");
    d.integer("recent", &TriAttention::recent, {0, kManyTokens}, "last tokens that always stay, the newest included");
  }
  void resolve(const MethodContext& context) {
    MethodContext own = context;
    own.serving.keep_prompt = keep_prompt;
    if (keep_prompt && own.serving.prefill_chunk > 0) throw kept_chunks_error();
    Buffered::resolve(own, {.sinks = keep_prompt ? 0 : sinks, .recent = recent});
    prompt = context.prompt_tokens;
    room = int32_t(most_rows(context));
  }
  void traits(Traits& t) const {
    CommonCuts::traits(t);
    Buffered::traits(t);
  }
  Layout layout(const MethodContext& context) const {
    const HeadShape& s = context.shape;
    return {.state_doubles = int64_t(s.heads) * (2 * s.dim + room) + 2 * s.dim, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = true, .rotary = true, .known = {.means = true}}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& p, BasicCache<Real>&) {
    const HeadShape shape = p.shape();
    pairs = p.rope().pairs, interleaved = p.rope().interleaved;
    next = p.position(p.size() - 1) + 1;
    const std::span<double> frequencies = state.subspan(frequencies_at(shape), size_t(pairs));
    team.each(pairs, [&](int32_t f) { frequencies[size_t(f)] = p.rope().inv_freq[f]; });
    for (int32_t h = 0; h < shape.heads; ++h) {
      const MeanQuery known = query_of(shape, h);
      known.take(team, p, h);
      if (norm_term == NormTerm::residual)
        team.each(pairs, [&](int32_t f) { known.sizes[size_t(f)] -= modulus(rope(shape), known.mean, f); });
    }
  }
  template <class Real>
  void observe_queries(const Team auto&, const StepQueries<Real>& queries) {
    next = queries.position + 1;
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (!is_due(plan, cache)) return;
    const int32_t safe = keep_prompt ? prompt : sinks, first = held_sinks(cache, safe),
                  n = cache.size() - first - recent;
    const int32_t count = plan.target(cache.token(cache.size() - 1) + 1) - recent - (keep_prompt ? 0 : first);
    if (n <= count) return;
    if (has_known_cut()) return apply_known_cut(team, cache);
    const HeadShape shape = cache.shape();
    for (int32_t h = 0; h < shape.heads; ++h) score(team, cache, h, first, n);
    team.each(n, [&](int32_t j) {
      const double* const s = scores(shape, 0).data() + j;
      const bool largest = group == Together::max || level == Level::all;
      cache.score(first + j) = aggregate(largest ? Aggregate::max : Aggregate::mean, s, room, shape.heads);
    });
    if (waits_for_other_heads(team, cache, {first, recent}, count)) return;
    cut(
        team, cache, plan, [&](int32_t) { return Protect{.sinks = sinks, .recent = recent}; },
        [&](int32_t i) { return cache.score(i); });
  }

 private:
  MeanQuery query_of(const HeadShape& s, int32_t head) const {
    const size_t dim = size_t(s.dim);
    return {state.subspan(size_t(head) * dim, dim), state.subspan(size_t(s.heads + head) * dim, size_t(pairs))};
  }
  static size_t frequencies_at(const HeadShape& s) { return 2 * size_t(s.heads) * size_t(s.dim); }
  RopeView rope(const HeadShape& s) const { return {&state[frequencies_at(s)], pairs, interleaved}; }
  std::span<double> turned(const HeadShape& s) const {
    return state.subspan(frequencies_at(s) + size_t(s.dim), size_t(s.dim));
  }
  std::span<double> scores(const HeadShape& s, int32_t head) const {
    return state.subspan(frequencies_at(s) + 2 * size_t(s.dim) + size_t(head) * size_t(room), size_t(room));
  }
  // Step 2 and the first half of step 3 for one query head; rows first .. first + n - 1 are candidates.
  void score(const Team auto& team, const auto& cache, int32_t head, int32_t first, int32_t n) const {
    const HeadShape shape = cache.shape();
    const std::span<double> s = scores(shape, head);
    const MeanQuery known = query_of(shape, head);
    const bool all_at_once = offset_agg == Together::mean;
    const auto each_key = [&](auto f) { team.each(n, [&](int32_t j) { f(s[size_t(j)], cache.key(first + j)); }); };
    bool opens = true;
    for (int32_t ahead = 1; ahead <= offsets; ahead *= 2) {
      if (all_at_once && ahead > 1) break;
      const int32_t last = all_at_once ? offsets : ahead;
      known.look_ahead(team, rope(shape), next, ahead, last, trig_term ? 1 : 0, turned(shape));
      each_key([&](double& most, auto key) {
        const double near = wide_dot(turned(shape), key);
        most = opens || near > most ? near : most;
      });
      opens = false;
    }
    each_key([&](double& sum, auto key) {
      for (int32_t f = 0; f < pairs; ++f) sum += known.sizes[size_t(f)] * modulus(rope(shape), key, f);
    });
    if (normalise) standardise(team, s.first(size_t(n)), 1e-6);
  }
};

}  // namespace kvreplay
