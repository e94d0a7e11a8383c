#pragma once
#include "core/method_info.hpp"
#include "formats/code_books.hpp"
#include "formats/coders/turboquant.hpp"

namespace kvreplay {

// PolarQuant: angles of pairs of numbers, then of pairs of radii, and so on.
//  1. Rotate.
//  2. At level l = 1, 2, ...: code the angle atan2(b, a) of neighbours (a, b); their radius goes to the next level.
//  3. Level 1 codes angles in [0, 2 pi) with equal bins and reads back their middles. Later levels code angles in
//     [0, pi / 2] with the code book of the density sin(2 x)^(2^(l-1) - 1).
//  4. Store the last radii in float16. Read back from the last level to the first.
struct Polar {
  static constexpr FormatInfo info{.name = "polar",
                                   .title = "angles of pairs of pairs",
                                   .source = "PolarQuant, arXiv 2502.02617",
                                   .tier = 3,
                                   .deviation = "no code books fitted to the prompt's angles.",
                                   .multiple_of = 16};
  IntegerList levels = {4, {4, 2, 2, 2}};  // bits of an angle
  TqRotation rotation_kind = TqRotation::haar;

  static void declare(auto& d) {
    d.integers("levels", &Polar::levels, {1, 8}, "bits of an angle, at each level");
    d.choice("rotation", &Polar::rotation_kind, {"haar", "hadamard", "hadamard_signed"},
             "rotation of rows before coding");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    int64_t bits = 0;
    for (int32_t l = 0; l < levels.count; ++l) bits += int64_t(width >> (l + 1)) * levels.values[l];
    return {bytes_of_bits(bits), 2 * (width >> levels.count)};
  }
  RowRotation rotation(RowPart) const { return kTqRotations[int32_t(rotation_kind)]; }
  // The levels of every angle, one code book after another.
  std::vector<double> tables(RowPart, int32_t) const {
    std::vector<double> all;
    for (int32_t l = 0; l < levels.count; ++l) {
      const std::vector<double> book = angle_levels(l + 1, levels.values[l]);
      all.insert(all.end(), book.begin(), book.end());
    }
    return all;
  }

  // After level l the radii are in the first width / 2^l numbers of x. The decoded angles are in `work`, behind those
  // of earlier levels.
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    double *const angles = row.work, *const radii = row.work + row.width();
    int32_t pairs = row.width() / 2;
    int64_t angle = 0, book = 0;
    for (int32_t l = 0; l < levels.count; ++l, pairs /= 2) {
      const std::span<const double> of_level{row.tables + book, size_t(1) << levels.values[l]};
      team.each(pairs, [&](int32_t i) {
        const double a = row.x[size_t(2 * i)], b = row.x[size_t(2 * i + 1)];
        angles[angle + i] = read_angle(std::atan2(b, a), l == 0, of_level);
        radii[i] = std::sqrt(a * a + b * b);
      });
      team.each(pairs, [&](int32_t i) { row.x[size_t(i)] = radii[i]; });
      angle += pairs, book += int64_t(of_level.size());
    }
    const int32_t last = row.width() >> levels.count;
    CodeTally t;
    t.misfits = team.count(last, [&](int32_t i) { return !fits_float16(row.x[size_t(i)]); });
    team.each(last, [&](int32_t i) { row.x[size_t(i)] = to_float16(row.x[size_t(i)]); });
    for (pairs = last; pairs < row.width(); pairs *= 2) {
      angle -= pairs;
      team.each(pairs, [&](int32_t i) { radii[i] = row.x[size_t(i)]; });
      team.each(pairs, [&](int32_t i) {
        row.x[size_t(2 * i)] = radii[i] * std::cos(angles[angle + i]);
        row.x[size_t(2 * i + 1)] = radii[i] * std::sin(angles[angle + i]);
      });
    }
    return t;
  }

 private:
  static double read_angle(double angle, bool around, std::span<const double> book) {
    if (around) {
      constexpr double kTurn = 6.283185307179586;
      const double bin = std::floor((angle < 0 ? angle + kTurn : angle) / kTurn * double(book.size()));
      return book[size_t(clamp_to(bin, 0, double(book.size() - 1)))];
    }
    return nearest_level(book, angle);
  }
};

}  // namespace kvreplay
