#pragma once
#include "kernels/kernels.hpp"
#include "replay/lane.hpp"

// Rows of a cache that holds tokens of the trace as they stand: their sums come from the shared strip, and
// what is measured of them does not depend on how the sums were shared.

namespace kvreplay {

// Sums of the strip over the tokens that a row attends to, against the row's own shift.
struct RowMass {
  double z = 0;       // sum of den_i e_i, a sink logit included: the denominator
  double tokens = 0;  // sum of e_i
  int32_t attended = 0;
  // Outside, numbers against the whole row's maximum have lost their digits or their range.
  bool safe() const { return z > 1e-30 && z < 1e30; }
};

// What a sink logit adds to a denominator.
template <class Real>
double sink_share(const HeadStream<Real>& stream, int32_t head, double shift) {
  return stream.sink_logits.empty() ? 0.0 : std::exp(double(stream.sink_logits[size_t(head)]) - shift);
}

template <class Real>
void find_scored(const Tile<Real>& tile, std::vector<int32_t>& rows) {
  rows.clear();
  for (int32_t r = 0; r < int32_t(tile.rows.size()); ++r)
    if (tile.scored[size_t(r)] != 0) rows.push_back(r);
}

// Before the rows of a tile: makes room for what is asked besides outputs.
template <class Real>
void open_side_outputs(const LaneWatch& watch, bool prefix, LaneTile<Real>& result) {
  result.has_set = watch.set_error;
  if (prefix) result.prefix.resize(result.cells(), result.v_dim);
  if (!watch.needles.empty()) result.needles.assign(result.cells() * (watch.needles.size() + 1), -1.0);
}

// One row of the results of a lane.
template <class Real>
struct PlainRow {
  const HeadStream<Real>& stream;
  const Tile<Real>& tile;
  const LaneWatch& watch;
  LaneTile<Real>& result;
  int32_t first_head, head, row;  // of the lane in the stream; of the row in the lane

  int32_t stream_head() const { return first_head + head; }
  int32_t token() const { return tile.rows[size_t(row)]; }
  size_t in_tile() const { return size_t(tile.at(stream_head(), row)); }
  size_t in_result() const { return result.at(head, row); }
  double sink() const { return sink_share(stream, stream_head(), double(tile.shift[in_tile()])); }
  const Real* strip() const { return tile.strip_row(stream_head(), row); }
  Real* out() const { return result.out.data() + in_result() * size_t(result.v_dim); }

  // visit(f) calls f(token, num, den) for every attended token, once. plain: every weight is 1.
  template <class V>
  void measure(const RowMass& mass, Normaliser tau, const RowRanking* ranking, bool plain, V visit) const {
    const double exact = tile.z[in_tile()];
    const double shift = tau.shift - double(tile.shift[in_tile()]);
    RowMeasure& m = result.measures[in_result()];
    m.tau = tau.sum / exact * (shift == 0 ? 1 : std::exp(shift));
    if (shift != 0) m.log_tau = std::log(tau.sum / exact) + shift;
    m.kept_mass = mass.tokens / exact;
    m.attended = mass.attended;
    m.plain = plain;
    if (!(tau.sum > 0) || !std::isfinite(tau.sum)) throw LaneError(no_denominator(token()));
    if (ranking != nullptr) recall(m, *ranking, visit);
    if (!watch.needles.empty()) find_needles(visit);
  }
  // out = (a + b) / z
  void put(const Real* a, const Real* b, double z) const {
    const double inverse = 1 / z;
    const bool fits = inverse < 1e30 && inverse > 1e-30;
    kernels::finish(a, b, fits ? Real(inverse) : Real(1), result.v_dim, out());
    if (!fits) put(out(), z);
  }
  // out = n / z; n may be out().
  void put(const Real* n, double z) const {
    const double inverse = 1 / z;
    Real* const to = out();
    if (inverse < 1e30 && inverse > 1e-30) {
      const Real factor = Real(inverse);
      for (int32_t c = 0; c < result.v_dim; ++c) to[c] = n[c] * factor;
    } else {
      for (int32_t c = 0; c < result.v_dim; ++c) to[c] = Real(double(n[c]) * inverse);
    }
  }
  // Everything, from the row's own dot products: e_i = exp(l_i - shift) against the largest attended logit.
  // take(token, num, den, e) is given each of them.
  template <class V, class F>
  Normaliser attend_alone(V visit, F take) const {
    const int32_t h = stream_head(), block = stream.shape.block_of(h);
    const std::span<const Real> query{stream.query(h, token()), size_t(stream.shape.dim)};
    const auto logit = [&](int32_t i) {
      const Real* key = stream.block_keys(block) + int64_t(i) * stream.shape.dim;
      return double(stream.rule(dot_product(std::span<const Real>{key, size_t(stream.shape.dim)}, query)));
    };
    double shift = stream.sink_logits.empty() ? -INFINITY : double(stream.sink_logits[size_t(h)]);
    visit([&](int32_t i, double num, double den) {
      const double w = std::max(num, den);
      if (w > 0) shift = std::max(shift, logit(i) + (w == 1 ? 0.0 : std::log(w)));
    });
    Normaliser tau{sink_share(stream, h, shift), shift};
    visit([&](int32_t i, double num, double den) {
      const double e = std::exp(logit(i) - shift);
      tau.sum += den * e;
      take(i, num, den, e);
    });
    return tau;
  }
  // The same with the outputs; not for lanes that need the e_i.
  template <class V>
  void evaluate_alone(const RowMass& mass, const RowRanking* ranking, bool plain, V visit) const {
    struct Total {
      std::vector<double> out;
      double z = 0;
    };
    const size_t width = size_t(result.v_dim);
    Total all{std::vector<double>(width)}, prompt = all, set = all;
    const Real* values = stream.block_values(stream.shape.block_of(stream_head()));
    const auto add = [&](Total& sums, int32_t i, double num, double den) {
      sums.z += den;
      for (size_t c = 0; c < width; ++c) sums.out[c] += num * double(values[size_t(i) * width + c]);
    };
    const Normaliser tau = attend_alone(visit, [&](int32_t i, double num, double den, double e) {
      add(all, i, num * e, 0);
      add(set, i, e, e);
      if (i < stream.prompt) add(prompt, i, num * e, den * e);
    });
    measure(mass, tau, ranking, plain, visit);
    const double sink = sink_share(stream, stream_head(), tau.shift);
    const auto store = [&](const Total& sums, double scale, std::vector<Real>& to) {
      for (size_t c = 0; c < width; ++c) to[in_result() * width + c] = Real(sums.out[c] * scale);
    };
    store(all, 1 / tau.sum, result.out);
    if (!result.prefix.out.empty()) {
      store(prompt, 1, result.prefix.out);
      result.prefix.weight[in_result()] = prompt.z + sink;
    }
    if (plain || !result.has_set) return;
    if (result.set.out.empty()) result.set.resize(result.cells(), result.v_dim);
    store(set, 1, result.set.out);
    result.set.weight[in_result()] = set.z + sink;
  }

 private:
  template <class V>
  void recall(RowMeasure& m, const RowRanking& ranking, V visit) const {
    if (m.attended == 0) return;
    int32_t hits = 0;
    visit([&](int32_t i, double, double) { hits += ranking.rank[size_t(i)] < m.attended ? 1 : 0; });
    m.index_recall = double(hits) / m.attended;
    m.top_mass = ranking.top_mass[std::min(size_t(m.attended), ranking.top_mass.size()) - 1];
  }
  template <class V>
  void find_needles(V visit) const {
    std::vector<int32_t> tokens;
    visit([&](int32_t i, double, double) { tokens.push_back(i); });
    needle_shares(strip(), std::span<const int32_t>(tokens), std::span<const TokenSpan>(watch.needles),
                  result.needles.data() + in_result() * (watch.needles.size() + 1));
  }
};

}  // namespace kvreplay
