#pragma once
#include "backend/cuda/block_team.cuh"
#include "core/step.hpp"

// One thread block replays one cache: core/step.hpp as it stands, with the rows' own dot products.

namespace kvreplay {

// One kv head in device memory; queries [heads, tokens, dim], out [tokens - prompt, heads, v_dim].
template <class Real>
struct DeviceHead {
  const Real *keys, *values, *queries;
  const double* column_sums;  // [heads, prompt] or null
  const Real* sink_logits;    // [heads] or null
  Real* out;
  LogitRule<Real> rule;
  Rotation<Real> rotation;
  HeadShape shape;
  int32_t tokens, prompt;
};

template <class P, class Real>
__global__ void replay_kernel(P policy, DeviceHead<Real> head, CacheStorage<Real> storage, StepRules rules,
                              StepScratch<Real> scratch) {
  __shared__ Scored shared[BlockTeam::kMaxThreads];
  const BlockTeam team{shared};
  BasicCache<Real> cache(storage);
  cache.clear(team);
  typename Prompt<Real>::View view{};
  view.keys = head.keys, view.values = head.values, view.column_sums = head.column_sums;
  view.queries = head.queries, view.query_head = int64_t(head.tokens) * head.shape.dim;
  view.size = head.prompt, view.tokens = head.tokens, view.shape = head.shape;
  view.aggregate = rules.aggregate, view.scale = double(head.rule.scale);
  const Prompt<Real> prompt(view);
  replay_prompt(team, policy, cache, prompt, rules);
  const size_t dim = size_t(head.shape.dim), v_dim = size_t(head.shape.v_dim);
  for (int32_t t = head.prompt; t < head.tokens; ++t) {
    const Token<Real> token({head.keys + t * dim, dim}, {head.values + t * v_dim, v_dim}, t);
    Solo<Real> heads{head.queries + t * dim,
                     int64_t(head.tokens) * head.shape.dim,
                     head.rule,
                     head.rotation,
                     t,
                     head.shape,
                     head.sink_logits,
                     head.out + int64_t(t - head.prompt) * head.shape.heads * head.shape.v_dim,
                     nullptr};
    replay_step(team, policy, cache, token, rules, heads, scratch, true);
  }
}

}  // namespace kvreplay
