#pragma once
#include <stdexcept>

#include "catalog/policy_table.hpp"
#include "core/policy.hpp"
#include "device/kernels/policy_rows.hpp"
#include "device/kernels/policy_run.hpp"

// Any policy on a device: a block replays one cache with the same code as a CPU thread (core/step.hpp), on float32 keys
// and values. This file does for a block what caches/cache_replay.hpp and evaluate/stepwise.hpp do for a CPU thread.
// Formats that code several rows together, and audits, run only there.
//
// Products of a step's queries with the rows are computed together before the first head attends, and the outputs of
// all heads after the last: a step reads each key and each value once.

namespace kvreplay {

// A cache's query heads in one step, with the interface that core/step.hpp asks for.
template <class P, Block B>
struct PolicyHeads {
  PolicyRun<B>& run;
  P& policy;
  int32_t token, row;  // row: index in the results, or -1
  bool attends;

  // Products that are ready. A token outside the layer's window counts as absent, as in the exact row, even if a policy
  // still holds it.
  struct Source {
    QueryView<float> view;
    const float* products;
    int32_t oldest;  // first token that the query can see
    template <Team T, Cache C>
    KVR_FN float fill(const T& team, const C& cache, std::span<float> e) const {
      return exponentiate_rows(team, view, cache, e, [&](int32_t i) {
        const bool left = cache.token(i) >= 0 && cache.token(i) < oldest;
        return left ? -INFINITY : view.rule(products[i]);
      });
    }
  };
  KVR_DEVICE void opens(const BasicCache<float>&) const {
    run.code_own_row(token);
    if (token >= run.task.input.prompt) run.record.attended = run.counts();
    if (attends) run.multiply_rows(token, row >= 0);
  }
  KVR_DEVICE QueryView<float> view(int32_t h) const { return run.view(h, token); }
  KVR_DEVICE Source source(int32_t h, const QueryView<float>& v) const {
    return {v, run.products_of(h), run.oldest(token)};
  }
  KVR_DEVICE StepQueries<float> queries_of_step() const { return run.queries_of_step(token); }
  KVR_DEVICE NoOutput writer(int32_t) const { return {}; }
  KVR_DEVICE void done(int32_t h, Normaliser tau, const BasicCache<float>& cache, const uint8_t* chosen) const {
    if (!tau.any()) run.fail(PolicyEnd::denominator, token);
    if (row < 0 || run.failed()) return;
    QueryView<float> seen = view(h);
    seen.rule.factor = float(DirectCalls<P, float>{policy, false}.logit_factor(cache.size(), token));
    seen.chosen = chosen;
    double spread = kUnset;
    if constexpr (requires { policy.spread(); }) spread = policy.spread();
    PolicyRows<B>(run, seen, h, row, tau).take(spread);
    if (h + 1 < run.shape().heads) return;
    PolicyRows<B>::weigh_values(run, row, token);
    if (chosen != nullptr) run.count_read(run.task.scratch.step.chosen);
  }
};

// Records the state after a step, or after the prompt's cut.
template <class P, Block B>
struct PolicySteps {
  PolicyRun<B>& run;
  const P& policy;

  // Called when S_t is complete.
  KVR_DEVICE void close(int32_t t) const {
    run.check(t);
    if (!run.failed()) run.code_rows(t);
    if (run.failed()) return;
    StepRecord& record = run.record;
    record.kept = run.counts();
    record.evictions = run.cache.evictions(), record.quantised = run.end.quantised;
    if constexpr (requires { policy.extra_bytes(record.extra, run.cache, run.team); })
      policy.extra_bytes(record.extra, run.cache, run.team);
    if (run.team.rank() == 0) note(t);
    list_rows(t - run.task.notes.first);
    run.team.sync();  // all threads have read the cache
  }

 private:
  KVR_DEVICE void note(int32_t t) const {
    StepRecord record = run.record;
    if constexpr (requires { policy.extra_bytes(record.extra, run.cache); })
      policy.extra_bytes(record.extra, run.cache);
    run.task.notes.steps[t - run.task.notes.first] = record;
  }
  KVR_DEVICE void list_rows(int32_t step) const {
    const PolicyNotes& notes = run.task.notes;
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
struct PolicyKernel {
  static constexpr int kThreads = kPolicyThreads;
  const PolicyTask* tasks;
  P* policies;  // one for each task: as resolved, after the launch its final state
  int64_t count;
  size_t shared;  // PolicyRoom::bytes of the policy that needs most

  LaunchShape shape() const { return {count, kThreads, shared}; }

  template <Block B>
  KVR_DEVICE void operator()(const B& block) const {
    const PolicyTask& task = tasks[block.index()];
    PolicyRun<B> run(task, block);
    P policy = policies[block.index()];
    if constexpr (HasState<P>) policy.state = task.state;
    if constexpr (SharesSelection<P>) policy.larger = nullptr;
    replay(run, policy);
    run.team.sync();
    if (block.thread() != 0) return;
    policies[block.index()] = policy;
    *task.end = run.end;
  }

 private:
  template <Block B>
  KVR_DEVICE static void replay(PolicyRun<B>& run, P& policy) {
    const PolicyTask& task = run.task;
    if (task.opens) {
      run.open();
      if (!task.streams_prompt) cut_prompt(run, policy);
    }
    for (int32_t t = task.first; t < task.last && !run.failed(); ++t) step(run, policy, t);
  }

  template <Block B>
  KVR_DEVICE static void cut_prompt(PolicyRun<B>& run, P& policy) {
    const PolicyTask& task = run.task;
    if constexpr (ObservesPrompt<P>) observe_prompt(run, policy);
    run.end.reweighted = replay_prompt(run.team, DirectCalls<P, float>{policy, task.chooses}, run.cache, run.prompt(),
                                       task.rules, task.reweights);
    run.record = {};
    PolicySteps<P, B>{run, policy}.close(task.input.prompt - 1);
  }
  template <Block B>
  KVR_DEVICE static void observe_prompt(PolicyRun<B>& run, P& policy) {
    const PolicyTask& task = run.task;
    const int32_t end = task.input.prompt, at_once = PolicyRoom::prompt_rows(run.shape().heads);
    if (task.rows_from < 0) return;
    for (int32_t t = task.rows_from; t < end; t += at_once)
      run.show_prompt_rows(t, end - t < at_once ? end - t : at_once,
                           [&](int32_t row, const HeadProbabilities& p) { policy.observe_prompt(run.team, row, p); });
  }
  template <Block B>
  KVR_DEVICE static void step(PolicyRun<B>& run, P& policy, int32_t t) {
    const PolicyTask& task = run.task;
    const int32_t row = t < task.input.prompt ? -1 : task.input.scored[t];
    const bool attends = task.observes || row >= 0;
    PolicyHeads<P, B> heads{run, policy, t, row, attends};
    run.record = {};
    replay_step(run.team, DirectCalls<P, float>{policy, task.chooses}, run.cache, run.token_at(t), task.rules, heads,
                task.scratch.step, attends);
    PolicySteps<P, B>{run, policy}.close(t);
  }
};

// The kernel for a launch. Throws if its program was built for another policy.
template <class P>
PolicyKernel<P> policy_kernel(const DeviceLaunch& l) {
  if (l.policy_bytes != sizeof(P)) throw std::logic_error("a policy is not what its program was built for");
  return {static_cast<const PolicyTask*>(l.tasks), static_cast<P*>(l.policies), l.count, l.shared_bytes};
}

}  // namespace kvreplay
