#pragma once
#include <cmath>

#include "device/kernels/block_team.hpp"
#include "device/kernels/policy_task.hpp"
#include "formats/row_coder.hpp"

namespace kvreplay {

// A task in progress, without its policy. Every thread holds the same numbers.
template <Block B>
class PolicyRun {
 public:
  const B& block;
  const PolicyTask& task;
  BlockTeam<B> team;
  BasicCache<float> cache;
  StepRecord record{};
  PolicyEnd end{};

  KVR_DEVICE PolicyRun(const PolicyTask& of, const B& b)
      : block(b),
        task(of),
        team(b, PolicyRoom::of(of.storage.shape, b.threads()).exchange),
        cache(of.storage),
        queries_at_(uint32_t(PolicyRoom::of(of.storage.shape, b.threads()).queries)),
        partial_at_(uint32_t(PolicyRoom::of(of.storage.shape, b.threads()).partial)) {
    if (!of.opens) end = *of.end;
  }
  KVR_DEVICE HeadShape shape() const { return task.storage.shape; }
  static constexpr float kNotAttended = -INFINITY;  // in of_token: the token is not attended to
  KVR_DEVICE bool failed() const { return end.why != PolicyEnd::done; }
  KVR_DEVICE void fail(PolicyEnd::Why why, int32_t token, int32_t code = 0, int32_t at = 0) {
    if (failed()) return;
    end.why = why, end.token = token, end.code = code, end.at = at;
  }
  // Clears memory as the CPU's replay allocates it.
  KVR_DEVICE void open() {
    const CacheStorage<float>& s = task.storage;
    float* const of_token = task.scratch.of_token;
    team.each(task.input.tokens, [&](int32_t i) {
      s.copies[i] = 0;
      if (of_token != nullptr) of_token[i] = kNotAttended;
    });
    for (size_t i = size_t(team.rank()); i < task.state.size(); i += size_t(block.threads())) task.state[i] = 0;
    cache.clear(team);
  }

  KVR_DEVICE Token<float> token_at(int32_t t) const {
    const CacheStorage<float>& s = task.storage;
    const uint8_t* const classes = task.input.classes;
    return {{s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
            {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)},
            t,
            classes == nullptr ? TokenClass::plain : TokenClass(classes[t])};
  }
  KVR_DEVICE Prompt<float> prompt() const {
    const PolicyInput& in = task.input;
    const CacheStorage<float>& held = task.storage;
    typename Prompt<float>::View view{};
    view.keys = held.keys, view.values = held.values;
    view.key_block = held.key_block, view.value_block = held.value_block;
    view.tokens = in.tokens, view.size = in.prompt, view.shape = held.shape;
    view.aggregate = task.rules.aggregate, view.scale = double(in.rule.scale);
    view.softcap = double(in.rule.softcap), view.sink_logits = in.sink_logits;
    view.column_sums = in.column_sums, view.column_max_sums = in.column_max_sums;
    view.future_sums = in.future_sums, view.known = in.known;
    view.queries = in.queries, view.query_head = in.query_head;
    view.classes = in.classes, view.positions = in.positions, view.rope = in.rope;
    return Prompt<float>(view);
  }

  // Calls show(t, HeadProbabilities) for prompt rows first .. first + count - 1; count <= PolicyRoom::prompt_rows().
  template <class F>
  KVR_DEVICE void show_prompt_rows(int32_t first, int32_t count, F show) {
    const HeadShape s = shape();
    const float* const keys = task.storage.keys;
    const int64_t key_block = task.storage.key_block;
    load_queries(first, count);
    multiply<false>(first + count, count, task.scratch.products,
                    [&](int32_t i, int32_t b) { return keys + b * key_block + int64_t(i) * s.dim; });
    for (int32_t t = first; t < first + count; ++t) {
      for (int32_t h = 0; h < s.heads; ++h) find_probabilities(t, h, products_of(h * count + t - first));
      show(t, HeadProbabilities{task.scratch.step.by_head, s.heads, t + 1, task.rules.aggregate});
    }
  }

  // ---- One step. PolicyHeads has what core/step.hpp asks of heads.

  // Called when C_t is complete, before it is attended to.
  KVR_DEVICE void multiply_rows(int32_t token, bool scored) {
    load_queries(token, 1);
    const int32_t rows = cache.size();
    const auto key = [&](int32_t i, int32_t b) { return cache.key(i, b).data(); };
    if (task.input.rotation.active()) multiply<true>(rows, 1, task.scratch.products, key, token);
    else multiply<false>(rows, 1, task.scratch.products, key);
    if (!scored || task.scratch.recorded == nullptr) return;
    const CacheStorage<float>& s = task.storage;
    multiply<false>(rows, 1, task.scratch.recorded, [&](int32_t i, int32_t b) {
      const int32_t of = cache.token(i) < 0 ? 0 : cache.token(i);
      return s.keys + b * s.key_block + int64_t(of) * s.shape.dim;
    });
  }
  KVR_DEVICE QueryView<float> view(int32_t head, int32_t token) const {
    return {{query(head, token), size_t(shape().dim)},
            task.input.rule,
            task.input.rotation,
            token,
            nullptr,
            float(sink_logit(head)),
            shape().block_of(head)};
  }
  KVR_DEVICE StepQueries<float> queries_of_step(int32_t token) const {
    const PolicyInput& in = task.input;
    return {query(0, token), in.query_head,       shape().heads,        shape().dim,
            token,           in.positions[token], double(in.rule.scale)};
  }
  KVR_DEVICE float* products_of(int32_t head) const {
    return task.scratch.products + int64_t(head) * task.scratch.rows;
  }
  // Weights of a part of the results.
  KVR_DEVICE float* weights_of(int32_t part, int32_t head) const {
    return task.scratch.weights + (int64_t(part) * shape().heads + head) * int64_t(task.scratch.weights_pitch);
  }
  KVR_DEVICE int32_t offset(int32_t token, int32_t row) const {
    if (!task.input.rotation.active() || cache.token(row) < 0) return 0;
    return task.input.rotation.offset(token, cache.token(row), row, cache.size());
  }
  // First token that a query can see.
  KVR_DEVICE int32_t oldest(int32_t token) const { return task.rules.window.first(token); }
  KVR_DEVICE float* partial() const { return in_shared(partial_at_); }
  // Counts over all rows.
  KVR_DEVICE RowCounts counts() const {
    const int32_t rows = cache.size(), exact_keys = rows - cache.coded_keys();
    RowCounts c{rows, rows, exact_keys, rows - cache.coded_values()};
    if (task.split) {
      c.values = team.count(rows, [&](int32_t i) { return cache.num(i) != 0; });
      c.exact_values = team.count(rows, [&](int32_t i) { return cache.num(i) != 0 && cache.coding(i).value_exact(); });
    }
    if (task.scratch.row != nullptr) c.outliers = task.coder.outliers_of(team, cache);
    return c;
  }

  // For query-time methods: counts the rows that the heads have read together. One head is enough.
  KVR_DEVICE void count_read(const uint8_t* chosen) {
    const int32_t rows = cache.size(), heads = shape().heads;
    const auto either = [&](int32_t i) {
      uint8_t all = kUnread;
      for (int32_t h = 0; h < heads; ++h) all |= chosen[int64_t(h) * rows + i];
      return all;
    };
    const auto key = [&](int32_t i) { return either(i) != kUnread; };
    const auto value = [&](int32_t i) { return (either(i) & kRead) != 0 && (!task.split || cache.num(i) != 0); };
    record.read.rows = team.count(rows, key), record.read.values = team.count(rows, value);
    record.read.exact_keys = record.read.rows, record.read.exact_values = record.read.values;
    record.weighs = team.count(heads * rows, [&](int32_t i) { return chosen[i] == kWeighed; }) > 0;
    if (task.scratch.row == nullptr) return;
    record.read.exact_keys = team.count(rows, [&](int32_t i) { return key(i) && cache.coding(i).key_exact(); });
    record.read.exact_values = team.count(rows, [&](int32_t i) { return value(i) && cache.coding(i).value_exact(); });
  }

  // Called when S_t is complete: codes the rows that the row format has not coded.
  KVR_DEVICE void code_rows(int32_t t) { code_rows(t, task.coder.full_precision.recent - 1); }
  // Called when C_t is complete: codes its newest row if that is not kept exact.
  KVR_DEVICE void code_own_row(int32_t t) {
    if (task.coder.own_row && t >= task.input.prompt) code_rows(t, 0);
  }

  // Checks promises that types cannot enforce.
  KVR_DEVICE void check(int32_t t) {
    if (cache.returned_tokens() > 0) fail(PolicyEnd::returned, t);
    if (cache.failure() > 0) fail(PolicyEnd::method, t, cache.failure(), cache.failed_at());
    if (task.max_rows >= 0 && cache.size() > task.max_rows) fail(PolicyEnd::bound, t, 0, cache.size());
  }

 private:
  // exempt: number of newest rows that are left exact.
  KVR_DEVICE void code_rows(int32_t t, int32_t exempt) {
    if (task.scratch.row == nullptr) return;
    const RowCoder::Coded coded = code_rows_of_block(team, task.coder, cache, exempt, task.scratch.row);
    end.quantised += coded.changed;
    end.coded.add(coded.numbers);
    if (coded.refused != RowCoder::Refusal::none) fail(PolicyEnd::format, t, int32_t(coded.refused), coded.token);
  }
  KVR_DEVICE float* in_shared(uint32_t at) const { return reinterpret_cast<float*>(block.shared() + at); }
  KVR_DEVICE const float* query(int32_t head, int32_t token) const {
    const PolicyInput& in = task.input;
    const int32_t row = in.query_row == nullptr ? token : in.query_row[token];
    return in.queries + head * in.query_head + int64_t(row) * shape().dim;
  }
  KVR_DEVICE double sink_logit(int32_t head) const {
    return task.input.sink_logits == nullptr ? -double(INFINITY) : double(task.input.sink_logits[head]);
  }
  // Queries of tokens first .. first + count - 1: [heads, count, dim].
  KVR_DEVICE void load_queries(int32_t first, int32_t count) {
    const int32_t dim = shape().dim;
    float* const queries = in_shared(queries_at_);
    team.each(shape().heads * count * dim,
              [&](int32_t i) { queries[i] = query(i / dim / count, first + i / dim % count)[i % dim]; });
  }
  // Multiplies rows i < n of every kv head, key(i, block), with `count` loaded queries of each head.
  template <bool kRotates, class K>
  KVR_DEVICE void multiply(int32_t n, int32_t count, float* to, K key, int32_t token = 0) {
    const HeadShape s = shape();
    const int32_t of_block = s.heads / s.blocks * count, rows = task.scratch.rows;
    for (int32_t b = 0; b < s.blocks; ++b)
      KeyProducts::multiply<kRotates>(
          block, n, [&](int32_t i) { return key(i, b); },
          ProductQueries{in_shared(queries_at_) + b * of_block * s.dim, of_block, s.dim},
          ProductTable{to + int64_t(b) * of_block * rows, rows}, task.input.rotation,
          [&](int32_t i) { return offset(token, i); });
  }
  // Probabilities of tokens 0..t of the prompt, from the products of one head. Written after a barrier, when no thread
  // still reads the previous row.
  KVR_DEVICE void find_probabilities(int32_t t, int32_t head, float* products) {
    const LogitRule<float> rule = task.input.rule;
    const int32_t from = oldest(t), n = t + 1 - from;
    const double top = team.largest(n, [&](int32_t i) { return double(rule(products[from + i])); }).score;
    const double sum = team.sum(n, [&](int32_t i) {
      products[from + i] = std::exp(rule(products[from + i]) - float(top));
      return double(products[from + i]);
    });
    const double inverse = 1 / (sum + std::exp(sink_logit(head) - top));
    double* const p = task.scratch.step.by_head + int64_t(head) * (t + 1);
    team.each(t + 1, [&](int32_t i) { p[i] = i < from ? 0.0 : double(products[i]) * inverse; });
  }

  uint32_t queries_at_, partial_at_;  // offsets in shared memory
};

// Codes the due rows of a cache. Never inlined: there are many policies, and coders are long.
template <Block B>
KVR_CALLED KVR_DEVICE RowCoder::Coded code_rows_of_block(const BlockTeam<B>& team, const RowCoder& coder,
                                                         BasicCache<float>& cache, int32_t exempt, double* scratch) {
  return coder.code_new(team, cache, exempt, scratch);
}

}  // namespace kvreplay
