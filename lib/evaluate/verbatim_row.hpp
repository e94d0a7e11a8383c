#pragma once
#include <algorithm>

#include "evaluate/evaluator.hpp"
#include "kernels/kernels.hpp"

// Rows of a cache that holds unmodified tokens of the trace. Their sums come from the shared strip; the measured
// numbers do not depend on how the sums were shared.

namespace kvreplay {

// Sums of the strip over the tokens that a row attends to, relative to the exact row's shift.
struct RowMass {
  double z = 0;       // denominator: sum of den_i e_i, including a sink logit
  double tokens = 0;  // sum of e_i
  int32_t attended = 0;
};

// Fills the recalls of a row. each(f) calls f(token, exponential) for the tokens that it attends to; visible: how many
// it could attend to; z: the exact row's sum.
template <class Real, class V>
void each_recall(RowResults<Real>& results, size_t at, const std::vector<int32_t>& ks, const RowRanking& ranking,
                 int32_t visible, double z, const V& each) {
  for (size_t i = 0; i < ks.size(); ++i) {
    const int32_t count = std::min(ks[i], visible);
    double mass = 0;
    int32_t hits = 0;
    each([&](int32_t token, double e) {
      if (ranking.rank[size_t(token)] >= count) return;
      mass += e, ++hits;
    });
    results.recalls[at * ks.size() + i] = {double(hits) / count, mass / z, ranking.top_mass[size_t(count) - 1]};
  }
}

// Tokens that one row attends to, with weights and e_i = exp(l_i - shift); the shift is the largest of their own
// logits.
template <class Real>
struct OwnSoftmax {
  std::vector<int32_t> tokens;
  std::vector<double> num, den;
  std::vector<Real> e;
  Normaliser tau{0, 0};
};

template <class Real>
struct VerbatimRow {
  const HeadStream<Real>& stream;
  const Tile<Real>& tile;
  const RequestedOutputs& asked;
  RowResults<Real>& results;
  int32_t first_head, head, row;  // first head of the cache in the stream; head in the cache; row in the tile

  int32_t stream_head() const { return first_head + head; }
  int32_t token() const { return tile.rows[size_t(row)]; }
  size_t in_tile() const { return size_t(tile.at(stream_head(), row)); }
  size_t in_results() const { return results.at(head, row); }
  double shift() const { return double(tile.shift[in_tile()]); }
  double sink() const { return sink_term(stream.sink_logit(stream_head()), shift()); }
  const Real* strip() const { return tile.strip_row(stream_head(), row); }
  Real* out() const { return results.out.data() + in_results() * size_t(results.v_dim); }

  // each(f) calls f(first, last, num, den) for runs of attended tokens. tau: this row's normaliser, with any shift.
  // plain: every weight is 1. Throws ReplayError if there is no token to attend to.
  template <class V>
  void measure(const RowMass& mass, Normaliser tau, const RowRanking* ranking, bool plain, const V& each) const {
    const double exact = tile.z[in_tile()], off = tau.shift - shift();
    RowResult& r = results.of[in_results()];
    r.tau = tau.sum / exact * (off == 0 ? 1 : std::exp(off));
    if (off != 0) r.log_tau = std::log(tau.sum / exact) + off;
    r.kept_mass = mass.tokens / exact;
    r.attended = mass.attended;
    r.plain = plain;
    if (!tau.any()) throw ReplayError(denominator_error(token()));
    if (ranking != nullptr) recall(r, *ranking, each);
    if (ranking != nullptr && !asked.recall_k.empty()) recall_at_k(*ranking, each);
    if (!asked.needles.empty()) find_needles(each);
    if (!asked.reads) return;
    if (head == 0) note_reads(mass.attended, each);
    r.repeated = results.of[results.at(0, row)].repeated;
  }
  // out = (a + b) / z; out may be one of them.
  void put(const Real* a, const Real* b, double z) const;
  void put(const Real* n, double z) const;  // out = n / z

  // For rows whose sums relative to the exact row's maximum have lost precision.
  template <class V>
  OwnSoftmax<Real> own_softmax(const V& each) const {
    OwnSoftmax<Real> own;
    each([&](int32_t first, int32_t last, double num, double den) {
      for (int32_t i = first; i < last; ++i) own.tokens.push_back(i), own.num.push_back(num), own.den.push_back(den);
    });
    weigh(own);
    return own;
  }
  // Writes measures and all outputs from own_softmax().
  template <class V>
  void put_own_softmax(const RowMass& mass, const RowRanking* ranking, bool plain, const V& each) const {
    const OwnSoftmax<Real> own = own_softmax(each);
    measure(mass, own.tau, ranking, plain, each);
    put_outputs(own, plain);
  }

 private:
  void weigh(OwnSoftmax<Real>& own) const;
  void put_outputs(const OwnSoftmax<Real>& own, bool plain) const;

  template <class V>
  void recall(RowResult& r, const RowRanking& ranking, const V& each) const {
    if (r.attended == 0) return;
    int32_t hits = 0;
    const int32_t* const rank = ranking.rank.data();
    each([&](int32_t first, int32_t last, double, double) {
      for (int32_t i = first; i < last; ++i) hits += rank[i] < r.attended ? 1 : 0;
    });
    r.index_recall = double(hits) / r.attended;
    r.top_mass = ranking.top_mass[std::min(size_t(r.attended), ranking.top_mass.size()) - 1];
  }
  // The heads attend alike. A cache that only evicts attends to tokens of the row before, and to its own.
  template <class V>
  void note_reads(int32_t attended, const V& each) const {
    StepReads& reads = results.reads[size_t(row)];
    bool own = false;
    each([&](int32_t first, int32_t last, double, double) {
      own = own || (first <= token() && token() < last);
      for (int32_t i = first; i < last && results.lists_reads; ++i) reads.read.push_back(i);
    });
    reads.tokens = attended;
    results.of[in_results()].repeated = attended - (own ? 1 : 0);
  }
  template <class V>
  void recall_at_k(const RowRanking& ranking, const V& each) const {
    each_recall(results, in_results(), asked.recall_k, ranking, tile.window.seen(token()), tile.z[in_tile()],
                [&](auto f) {
                  each([&](int32_t first, int32_t last, double, double) {
                    for (int32_t i = first; i < last; ++i) f(i, double(strip()[i]));
                  });
                });
  }
  template <class V>
  void find_needles(const V& each) const {
    std::vector<int32_t> tokens;
    each([&](int32_t first, int32_t last, double, double) {
      for (int32_t i = first; i < last; ++i) tokens.push_back(i);
    });
    needle_shares(strip(), std::span<const int32_t>(tokens), std::span<const TokenSpan>(asked.needles),
                  results.needles.data() + in_results() * (asked.needles.size() + 1));
  }
};

// Call before the rows of a tile: makes room for requested side outputs.
template <class Real>
void open_side_outputs(const RequestedOutputs& asked, bool prefix, RowResults<Real>& results) {
  if (prefix && asked.prefix) results.prefix.resize(results.cells(), results.v_dim);
  if (!asked.needles.empty()) results.needles.assign(results.cells() * (asked.needles.size() + 1), -1.0);
  open_recalls(asked, results);
}

}  // namespace kvreplay
