#pragma once
#include <stdexcept>

#include "backend/chain_measure.hpp"
#include "backend/chain_run.hpp"
#include "catalog/chain_programs.hpp"

// Any policy on a device: a block replays one cache by the same text as a CPU thread (core/step.hpp), on
// float32 keys and values as they are. What replay/lane_of.hpp does for a CPU thread stands here for a block;
// formats that code several rows together, and audits, stay there.
//
// Products of a step's queries with the rows are found together, before the first head attends, and the
// outputs of all heads behind the last: a key and a value are read once a step.

namespace kvreplay {

// How a chain's query heads see one step: what core/step.hpp calls an evaluator.
template <class P, Block B>
struct ChainHeads {
  ChainRun<B>& run;
  const P& policy;
  int32_t token, row;  // row: of the results, or -1
  bool attends;

  // Products that stand ready. A token that left the layer's window counts for nothing, as in the exact row,
  // even where a policy still holds it.
  struct Source {
    QueryView<float> view;
    const float* products;
    int32_t oldest;  // token that the query can see
    template <Team T, Cache C>
    KVR_FN float fill(const T& team, const C& cache, std::span<float> e) const {
      return exponentiate_rows(team, view, cache, e, [&](int32_t i) {
        const bool left = cache.token(i) >= 0 && cache.token(i) < oldest;
        return left ? -INFINITY : view.rule(products[i]);
      });
    }
  };
  KVR_DEVICE void opens(const BasicCache<float>&) const {
    if (token >= run.chain.input.prompt) run.record.attended = run.counts();
    if (attends) run.multiply_rows(token, row >= 0);
  }
  KVR_DEVICE QueryView<float> view(int32_t h) const { return run.view(h, token); }
  KVR_DEVICE Source source(int32_t h, const QueryView<float>& v) const {
    return {v, run.products_of(h), run.oldest(token)};
  }
  KVR_DEVICE StepQueries<float> queries_of_step() const { return run.queries_of_step(token); }
  KVR_DEVICE NoOutput sink(int32_t) const { return {}; }
  KVR_DEVICE void done(int32_t h, Normaliser tau, const BasicCache<float>& cache,
                       const uint8_t* chosen) const {
    if (!(tau.sum > 0) || !std::isfinite(tau.sum)) run.fail(ChainEnd::denominator, token);
    if (row < 0 || run.failed()) return;
    QueryView<float> seen = view(h);
    seen.rule.factor = float(logit_factor(policy, cache.size(), token));
    seen.chosen = chosen;
    double spread = kUnset;
    if constexpr (requires { policy.spread(); }) spread = policy.spread();
    ChainMeasure<B>(run, seen, h, row, tau).take(spread);
    if (h + 1 < run.shape().heads) return;
    ChainMeasure<B>::weigh_values(run, row, token);
    if (chosen != nullptr) run.count_read(run.chain.scratch.step.chosen);
  }
};

// What a step, or the prompt's cut, leaves behind.
template <class P, Block B>
struct ChainLedger {
  ChainRun<B>& run;
  const P& policy;

  // S_t stands.
  KVR_DEVICE void close(int32_t t) const {
    run.check(t);
    if (!run.failed()) run.code_rows(t);
    if (run.failed()) return;
    ChainStep& record = run.record;
    record.kept = run.counts();
    record.evictions = run.cache.evictions(), record.quantised = run.end.quantised;
    if constexpr (requires { policy.extra_bytes(record.extra_bytes, run.cache, run.team); })
      policy.extra_bytes(record.extra_bytes, run.cache, run.team);
    if (run.team.rank() == 0) note(t);
    list_rows(t - run.chain.notes.first);
    run.team.sync();  // the cache has been looked at
  }

 private:
  KVR_DEVICE void note(int32_t t) const {
    ChainStep record = run.record;
    if constexpr (requires { policy.extra_bytes(record.extra_bytes, run.cache); })
      policy.extra_bytes(record.extra_bytes, run.cache);
    run.chain.notes.steps[t - run.chain.notes.first] = record;
  }
  KVR_DEVICE void list_rows(int32_t step) const {
    const ChainNotes& notes = run.chain.notes;
    const BasicCache<float>& cache = run.cache;
    if (notes.tokens == nullptr) return;
    const int64_t first = int64_t(step) * cache.capacity();
    run.team.each(cache.size(), [&](int32_t i) {
      notes.tokens[first + i] = cache.token(i);
      if (notes.num != nullptr) notes.num[first + i] = cache.num(i), notes.den[first + i] = cache.den(i);
    });
  }
};

template <class P>
struct ChainKernel {
  static constexpr int kThreads = kChainThreads;
  const ChainBody* chains;
  P* policies;  // of each chain: as it was resolved, and after the launch as it was left
  int64_t count;
  size_t shared;  // ChainRoom::bytes of the chain that needs most

  LaunchShape shape() const { return {count, kThreads, shared}; }

  template <Block B>
  KVR_DEVICE void operator()(const B& block) const {
    const ChainBody& chain = chains[block.index()];
    ChainRun<B> run(chain, block);
    P policy = policies[block.index()];
    if constexpr (HasState<P>) policy.state = chain.state;
    if constexpr (SharesSelection<P>) policy.larger = nullptr;
    replay(run, policy);
    run.team.sync();
    if (block.thread() != 0) return;
    policies[block.index()] = policy;
    *chain.end = run.end;
  }

 private:
  template <Block B>
  KVR_DEVICE static void replay(ChainRun<B>& run, P& policy) {
    const ChainBody& chain = run.chain;
    if (chain.opens) {
      run.open();
      if (!chain.streams_prompt) cut_prompt(run, policy);
    }
    for (int32_t t = chain.first; t < chain.last && !run.failed(); ++t) step(run, policy, t);
  }

  template <Block B>
  KVR_DEVICE static void cut_prompt(ChainRun<B>& run, P& policy) {
    const ChainBody& chain = run.chain;
    if constexpr (ObservesPrompt<P>) observe_prompt(run, policy);
    run.end.reweighted =
        replay_prompt(run.team, policy, run.cache, run.prompt(), chain.rules, chain.reweights);
    run.record = {};
    ChainLedger<P, B>{run, policy}.close(chain.input.prompt - 1);
  }
  template <Block B>
  KVR_DEVICE static void observe_prompt(ChainRun<B>& run, P& policy) {
    const ChainBody& chain = run.chain;
    const int32_t end = chain.input.prompt, at_once = ChainRoom::prompt_rows(run.shape().heads);
    if (chain.rows_from < 0) return;
    for (int32_t t = chain.rows_from; t < end; t += at_once)
      run.show_prompt_rows(
          t, end - t < at_once ? end - t : at_once,
          [&](int32_t row, const HeadProbabilities& p) { policy.observe_prompt(run.team, row, p); });
  }
  template <Block B>
  KVR_DEVICE static void step(ChainRun<B>& run, P& policy, int32_t t) {
    const ChainBody& chain = run.chain;
    const int32_t row = t < chain.input.prompt ? -1 : chain.input.scored[t];
    const bool attends = chain.observes || row >= 0;
    ChainHeads<P, B> heads{run, policy, t, row, attends};
    run.record = {};
    replay_step(run.team, policy, run.cache, run.token_at(t), chain.rules, heads, chain.scratch.step,
                attends);
    ChainLedger<P, B>{run, policy}.close(t);
  }
};

// What a launch asks for, where it was built for the same policy.
template <class P>
ChainKernel<P> chain_kernel(const ChainLaunch& l) {
  if (l.policy_bytes != sizeof(P)) throw std::logic_error("a policy is not what its program was built for");
  return {static_cast<const ChainBody*>(l.bodies), static_cast<P*>(l.policies), l.count, l.shared_bytes};
}

}  // namespace kvreplay
