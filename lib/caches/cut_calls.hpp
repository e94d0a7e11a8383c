#pragma once
#include <optional>
#include <vector>

#include "caches/cut_reading.hpp"
#include "catalog/policy_table.hpp"

namespace kvreplay {

// The policies of kv heads that evict whole pages together (page_heads: tied). The cache spans the layer; each head has
// a policy and scores of its own, and the sums of their page scores decide.
template <class Real>
class TiedHeads {
 public:
  // methods: of each kv head; empty: the heads are not tied.
  TiedHeads(std::vector<BoundMethod> methods, const HeadStream<Real>& stream, Aggregate how);
  bool any() const { return !methods_.empty(); }
  int32_t count() const { return int32_t(methods_.size()); }
  int64_t state_doubles() const;  // for all heads
  // rngs: of each head; empty: made from `rng`.
  void bind(std::span<double> state, const Rng& rng, const std::vector<Rng>& rngs);
  void skip(int32_t tokens) {
    for (CutReading<Real>& reading : readings_) reading.skip(tokens);
  }
  // Calls f(hooks of a head's policy, kv head).
  template <class F>
  void each(F f) const {
    for (size_t b = 0; b < methods_.size(); ++b) f(calls(b), int32_t(b));
  }
  void evict(const CacheStorage<Real>& held, BasicCache<Real>& cache);
  HeadProbabilities of_head(const HeadProbabilities& p, int32_t b) const {
    HeadProbabilities own = p;
    own.heads = p.heads / count();
    own.values += int64_t(b) * own.heads * p.rows;
    if (own.log_sums != nullptr) own.log_sums += b * own.heads;
    return own;
  }

 private:
  TableCalls<Real> calls(size_t b) const {
    const Method& m = methods_[b].method();
    return {const_cast<std::byte*>(methods_[b].policy()), m.host, m.template of<Real>(), false};
  }
  std::vector<BoundMethod> methods_;
  std::vector<CutReading<Real>> readings_;
  std::vector<double> sums_;  // by page
};

// The step hooks of the policies of a cache: one policy, or one for each kv head of a layer. A scorer that reads the
// text at cuts reads it before it evicts.
template <class Real>
struct CutCalls : TableCalls<Real> {
  using Base = TableCalls<Real>;
  CutReading<Real>* reading;
  const CacheStorage<Real>* held;
  TiedHeads<Real>* tied;
  std::optional<Base> listener = {};  // another method that follows the rows, with scores of its own (option `then`)

  bool is_tied() const { return tied != nullptr && tied->any(); }
  bool observes() const { return Base::observes() || (listener && listener->observes()); }
  bool observes_heads() const { return Base::observes_heads() || (observes() && (is_tied() || listener)); }
  bool observes_queries() const { return Base::observes_queries() || (listener && listener->observes_queries()); }
  void read_prompt(const SerialTeam& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) const {
    reading->skip(prompt.size());
    if (!is_tied()) return Base::read_prompt(team, prompt, cache);
    tied->skip(prompt.size());
    tied->each([&](const Base& head, int32_t b) {
      BasicCache<Real> own = cache.block(b);
      head.read_prompt(team, prompt.block(b), own);
    });
  }
  void observe_queries(const SerialTeam& team, const StepQueries<Real>& queries) const {
    if (listener && listener->observes_queries()) listener->observe_queries(team, queries);
    if (!Base::observes_queries()) return;
    if (!is_tied()) return Base::observe_queries(team, queries);
    tied->each([&](const Base& head, int32_t b) {
      StepQueries<Real> own = queries;
      own.heads = queries.heads / tied->count();
      own.values += int64_t(b) * own.heads * queries.head_stride;
      head.observe_queries(team, own);
    });
  }
  using Base::observe;
  void observe(const SerialTeam&, BasicCache<Real>& cache, const HeadProbabilities& p) const {
    if (listener) show(*listener, cache.scores_of(1), p);
    if (!is_tied()) return show(*this, cache, p);
    tied->each([&](const Base& head, int32_t b) { show(head, cache.block(b), tied->of_head(p, b)); });
  }
  void evict(const SerialTeam& team, BasicCache<Real>& cache) const {
    if (is_tied()) return tied->evict(*held, cache);
    reading->read(static_cast<const Base&>(*this), *held, cache);
    Base::evict(team, cache);
  }

 private:
  static void show(const Base& policy, BasicCache<Real> cache, const HeadProbabilities& p) {
    if (!policy.observes()) return;
    if (policy.observes_heads()) return policy.observe(SerialTeam{}, cache, p);
    std::vector<double> group(size_t(p.rows));
    for (int32_t i = 0; i < p.rows; ++i) group[size_t(i)] = p.group(i);
    policy.observe(SerialTeam{}, cache, std::span<const double>(group));
  }
};

}  // namespace kvreplay
