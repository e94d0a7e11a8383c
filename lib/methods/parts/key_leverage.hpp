#pragma once
#include "core/rotary.hpp"
#include "core/selecting.hpp"
#include "methods/parts/leverage.hpp"
#include "methods/parts/sketch.hpp"

namespace kvreplay {

// How far un-rotated keys stand out among each other.
//  1. X = un-rotated keys minus their mean; times Phi [d, sketch], Gaussian / sqrt(sketch), unless sketch is 0.
//  2. lev_j = max(0, x_j^T (X^T X + ridge I)^-1 x_j).
struct KeyLeverage {
  static constexpr int32_t kColumns = 48;  // default of `sketch`, where a key has as many channels
  int32_t sketch;
  std::span<double> mean, key, phi;  // [d], [d], [d, sketch]
  Leverage keys;

  static int32_t columns(const HeadShape& s, int32_t sketch) { return sketch > 0 ? sketch : s.dim; }
  static int64_t doubles(const HeadShape& s, int32_t sketch) {
    return (2 + int64_t(sketch)) * s.dim + Leverage::doubles(columns(s, sketch));
  }
  static KeyLeverage carve(Carver& cut, const HeadShape& s, int32_t sketch) {
    const int64_t d = s.dim;
    const std::span<double> mean = cut(d), key = cut(d), phi = cut(d * sketch);
    return {sketch, mean, key, phi, Leverage::carve(cut, columns(s, sketch))};
  }
  // The sketch that a method uses on keys of `channels` numbers. Throws ParameterError.
  static int32_t resolved_sketch(int32_t sketch, int32_t channels) {
    if (sketch == kDerived) return std::min(kColumns, channels);
    if (sketch > channels)
      throw ParameterError("sketch", "sketch " + std::to_string(sketch) + " exceeds the " + std::to_string(channels) +
                                         " channels of a key; take fewer columns, or 0 for the keys themselves");
    return sketch;
  }
  template <class M>
  static void declare(auto& d) {
    d.integer("sketch", static_cast<int32_t M::*>(&M::sketch), {0, 1 << 20},
              "columns of the random projection of keys; 0: none", "48, or the channels of a key where they are fewer");
    d.real("ridge", static_cast<double M::*>(&M::ridge), {1e-300, 1e300}, "added to the diagonal of X^T X");
  }
  static std::vector<RngArray> rng_arrays(const HeadShape& s, int32_t sketch) {
    if (sketch == 0) return {};
    return {{"U uniforms", RngStream::sketch_matrix, 1, (int64_t(s.dim) * sketch + 1) / 2 * 2}};
  }

  // Calls put(i, lev) for the tokens token(0) .. token(rows - 1).
  template <class Real>
  void find(const Team auto& team, const Rng& rng, const Prompt<Real>& prompt, int32_t rows, double ridge, auto token,
            auto put) const {
    const int32_t d = prompt.shape().dim;
    const auto read_key = [&](int32_t i) {
      unrotate(team, prompt.rope(), prompt.position(token(i)), prompt.key(token(i)), key);
    };
    team.each(d * sketch, [&](int32_t i) {
      phi[size_t(i)] = gaussian(rng, RngStream::sketch_matrix, i) / std::sqrt(double(sketch));
    });
    team.each(d, [&](int32_t c) { mean[size_t(c)] = 0; });
    for (int32_t i = 0; i < rows; ++i) {
      read_key(i);
      team.each(d, [&](int32_t c) { mean[size_t(c)] += key[size_t(c)] / rows; });
    }
    const auto take = [&](int32_t i) { read_key(i), project(team); };
    keys.find(
        team, rows, ridge, [](int32_t) { return 1.0; }, take,
        [&](int32_t i, double leverage) { put(i, leverage > 0 ? leverage : 0); });
  }

 private:
  // Computes a row of X from its key.
  void project(const Team auto& team) const {
    const int32_t d = int32_t(key.size());
    const std::span<double> centred = sketch > 0 ? key : keys.point;
    team.each(d, [&](int32_t c) { centred[size_t(c)] = key[size_t(c)] - mean[size_t(c)]; });
    if (sketch == 0) return;
    weighted_sum(
        d, [&](int32_t c) { return centred[size_t(c)]; },
        [&](int32_t c) { return phi.subspan(size_t(c) * size_t(sketch), size_t(sketch)); }, keys.point);
  }
};

}  // namespace kvreplay
