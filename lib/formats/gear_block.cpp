#include "formats/gear_block.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// Gram-Schmidt, run twice for accuracy. A vector that depends on earlier ones becomes zero.
void orthonormalise(std::vector<Vector>& columns) {
  constexpr double kDependent = 1e-12;
  for (size_t j = 0; j < columns.size(); ++j) {
    Vector& x = columns[j];
    const double before = std::max(1e-300, std::sqrt(dot(x, x)));
    for (int pass = 0; pass < 2; ++pass) {
      Vector projection(x.size(), 0.0);
      for (size_t k = 0; k < j; ++k) {
        const double along = dot(columns[k], x);
        for (size_t i = 0; i < x.size(); ++i) projection[i] += along * columns[k][i];
      }
      for (size_t i = 0; i < x.size(); ++i) x[i] -= projection[i];
    }
    const double length = std::sqrt(dot(x, x));
    const double factor = length > kDependent * before ? 1 / length : 0;
    for (double& number : x) number *= factor;
  }
}

void add_low_rank(const Vector& residual, size_t width, size_t rank, Vector& coded) {
  const size_t rows = residual.size() / width;
  std::vector<Vector> left(rank, Vector(rows)), right(rank, Vector(width, 0.0));
  for (size_t j = 0; j < rank; ++j) right[j][j] = 1;
  for (int iteration = 0; iteration < 2; ++iteration) {
    for (size_t j = 0; j < rank; ++j)
      for (size_t i = 0; i < rows; ++i)
        left[j][i] = std::inner_product(right[j].begin(), right[j].end(), residual.begin() + int64_t(i * width), 0.0);
    orthonormalise(left);
    for (size_t j = 0; j < rank; ++j) {
      std::fill(right[j].begin(), right[j].end(), 0.0);
      for (size_t i = 0; i < rows; ++i)
        for (size_t c = 0; c < width; ++c) right[j][c] += left[j][i] * residual[i * width + c];
    }
  }
  for (size_t j = 0; j < rank; ++j)
    for (size_t i = 0; i < rows; ++i)
      for (size_t c = 0; c < width; ++c) coded[i * width + c] += left[j][i] * right[j][c];
}

void restore_outliers(const Vector& exact, size_t count, Vector& coded) {
  std::vector<size_t> order(exact.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto missed = [&](size_t i) { return std::abs(exact[i] - coded[i]); };
  std::nth_element(order.begin(), order.begin() + int64_t(count), order.end(),
                   [&](size_t a, size_t b) { return missed(a) > missed(b) || (missed(a) == missed(b) && a < b); });
  for (size_t i = 0; i < count; ++i) coded[order[i]] = exact[order[i]];
}

// `count` numbers of a block at first, first + step, first + 2 step, ...
struct Line {
  size_t first, step, count;
  size_t at(size_t i) const { return first + i * step; }
};
Line line_of(RowPart part, size_t rows, size_t width, size_t i) {
  return part == RowPart::key ? Line{i, width, rows} : Line{i * width, 1, width};
}

// Appends the positions of the `each` smallest and the `each` largest numbers of a line.
void add_extremes(const Vector& block, const Line& line, size_t each, std::vector<size_t>& to) {
  std::vector<size_t> order(line.count);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto number = [&](size_t i) { return block[line.at(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return number(a) < number(b); });
  for (size_t i = 0; i < each; ++i) to.push_back(line.at(order[i]));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return number(a) > number(b); });
  for (size_t i = 0; i < each; ++i) to.push_back(line.at(order[i]));
}

Correction code_outliers_first(const Gear& gear, RowPart part, size_t width, Vector& block,
                               const std::function<void(Vector&)>& code) {
  const Vector exact = block;
  const size_t rows = block.size() / width, lines = part == RowPart::key ? width : rows;
  std::vector<size_t> outliers;
  for (size_t i = 0; i < lines; ++i) {
    const Line line = line_of(part, rows, width, i);
    const auto each = size_t(gear.outliers * double(line.count) / 200);
    const size_t before = outliers.size();
    add_extremes(exact, line, each, outliers);
    double mean = 0;
    for (size_t j = 0; j < line.count; ++j) mean += exact[line.at(j)] / double(line.count);
    for (size_t j = before; j < outliers.size(); ++j) block[outliers[j]] = mean;
  }
  code(block);
  for (const size_t i : outliers) block[i] = exact[i];
  const Correction kept{int32_t(std::min({size_t(gear.rank), rows, width})), int32_t(outliers.size())};
  Vector residual(exact.size());
  std::transform(exact.begin(), exact.end(), block.begin(), residual.begin(), std::minus<>());
  add_low_rank(residual, width, size_t(kept.rank), block);
  return kept;
}

}  // namespace

Correction correct(const std::vector<double>& exact, int32_t width, int32_t rank, double percent,
                   std::vector<double>& coded) {
  const int32_t rows = int32_t(exact.size()) / width;
  Correction kept{std::min({rank, rows, width}), int32_t(percent * double(exact.size()) / 100)};
  Vector residual(exact.size());
  std::transform(exact.begin(), exact.end(), coded.begin(), residual.begin(), std::minus<>());
  add_low_rank(residual, size_t(width), size_t(kept.rank), coded);
  restore_outliers(exact, size_t(kept.outliers), coded);
  return kept;
}

Correction code_gear(const Gear& gear, RowPart part, int32_t width, std::vector<double>& block,
                     const std::function<void(std::vector<double>&)>& code) {
  if (gear.order == Gear::Order::outliers_first) return code_outliers_first(gear, part, size_t(width), block, code);
  const Vector exact = block;
  code(block);
  return correct(exact, width, gear.rank, gear.outliers, block);
}

}  // namespace kvreplay
