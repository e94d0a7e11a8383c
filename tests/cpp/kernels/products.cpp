#include <algorithm>

#include "kernels/cases.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class Real>
struct Operands {
  std::vector<Real> a, b;
};

// Relative to the sum of the absolute terms of an entry, because cancellation costs every instruction set as much.
template <class Real>
double worst_score(const kernels::Table& table, int32_t m, int32_t d, int32_t first, int32_t count) {
  const int32_t keys = first + count, gap = 5;
  const std::vector<Real> q = gaussian<Real>(size_t(m * (d + 3)), 1), k = gaussian<Real>(size_t(keys * d), 2);
  const kernels::KeyPanels<Real> packed = panels(k, keys, d);
  Guarded<Real> out(m, count, gap);
  table.of(Real()).scores(q.data(), d + 3, m, packed.numbers.data() + int64_t(first) * d, d, count, out.data(),
                          out.stride);
  CHECK(out.untouched_outside());
  double worst = 0;
  for (int32_t i = 0; i < m; ++i)
    for (int32_t j = 0; j < count; ++j) {
      double sum = 0, size = 1e-300;
      for (int32_t c = 0; c < d; ++c) {
        const double term = double(q[size_t(i * (d + 3) + c)]) * double(k[size_t((first + j) * d + c)]);
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(double(out.at(i, j)) - sum) / size);
    }
  return worst;
}

template <class Real>
double worst_product(const kernels::Table& table, int32_t m, int32_t k, int32_t n, bool add) {
  const std::vector<Real> a = gaussian<Real>(size_t(m * (k + 2)), 3), b = gaussian<Real>(size_t(k * n), 4);
  Guarded<Real> out(m, n, 7);
  for (int32_t i = 0; i < m && add; ++i)
    for (int32_t j = 0; j < n; ++j) out.data()[i * out.stride + j] = Real(i - j);
  table.of(Real()).multiply(a.data(), k + 2, m, b.data(), k, n, out.data(), out.stride, add);
  CHECK(out.untouched_outside());
  double worst = 0;
  for (int32_t i = 0; i < m; ++i)
    for (int32_t j = 0; j < n; ++j) {
      double sum = add ? i - j : 0, size = std::abs(sum) + 1e-300;
      for (int32_t c = 0; c < k; ++c) {
        const double term = double(a[size_t(i * (k + 2) + c)]) * double(b[size_t(c * n + j)]);
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(double(out.at(i, j)) - sum) / size);
    }
  return worst;
}

template <class Real>
void check_scores(const kernels::Table& table) {
  for (const int32_t m : {0, 1, 2, 3, 7, 8, 9, 17})
    for (const int32_t d : {1, 5, 64, 80})
      for (const int32_t count : {0, 1, 15, 16, 17, 47, 48, 49, 96, 131}) {
        INFO(table.name << ": " << m << " queries, " << count << " keys of " << d);
        CHECK(worst_score<Real>(table, m, d, 0, count) <= sum_tolerance<Real>(d));
        CHECK(worst_score<Real>(table, m, d, 48, count) <= sum_tolerance<Real>(d));
      }
}

template <class Real>
void check_products(const kernels::Table& table) {
  for (const int32_t m : {0, 1, 2, 5, 6, 7, 12, 23})
    for (const int32_t k : {0, 1, 16, 95, 96, 97, 400})
      for (const int32_t n : {0, 1, 3, 15, 24, 64, 65, 80, 128})
        for (const bool add : {false, true}) {
          INFO(table.name << ": " << m << " x " << k << " x " << n << (add ? ", added" : ""));
          CHECK(worst_product<Real>(table, m, k, n, add) <= sum_tolerance<Real>(k));
        }
}

// Whether row `row` of a product has equal bits when computed with all m rows and alone.
template <class Real>
bool row_is_independent(const kernels::Table& table, int32_t m, int32_t row) {
  constexpr int32_t kTerms = 200, kKeys = 131;
  const std::vector<Real> a = gaussian<Real>(size_t(m * kTerms), 5), b = gaussian<Real>(size_t(kTerms * kKeys), 6);
  const kernels::KeyPanels<Real> packed = panels(b, kKeys, kTerms);
  std::vector<Real> all(size_t(m * kKeys)), alone(size_t(kKeys), Real(0));
  const auto same = [&] { return std::equal(alone.begin(), alone.end(), all.begin() + row * kKeys); };
  const kernels::Functions<Real>& f = table.of(Real());
  f.scores(a.data(), kTerms, m, packed.numbers.data(), kTerms, kKeys, all.data(), kKeys);
  f.scores(a.data() + row * kTerms, kTerms, 1, packed.numbers.data(), kTerms, kKeys, alone.data(), kKeys);
  if (!same()) return false;
  f.multiply(a.data(), kTerms, m, b.data(), kTerms, kKeys, all.data(), kKeys, false);
  f.multiply(a.data() + row * kTerms, kTerms, 1, b.data(), kTerms, kKeys, alone.data(), kKeys, false);
  return same();
}

}  // namespace

TEST_CASE("scores of any shape are the products of queries and keys, and nothing else is written", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    check_scores<float>(*table);
    check_scores<double>(*table);
  }
}

TEST_CASE("products of any shape are right, and nothing else is written", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    check_products<float>(*table);
    check_products<double>(*table);
  }
}

TEST_CASE("a row of a product does not depend on the rows it is computed with", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    if (std::string(table->name) == "portable") continue;  // Eigen does not promise this
    for (const int32_t m : {2, 6, 8, 13})
      for (int32_t row = 0; row < m; ++row) {
        INFO(table->name << ": row " << row << " of " << m);
        CHECK(row_is_independent<float>(*table, m, row));
        CHECK(row_is_independent<double>(*table, m, row));
      }
  }
}

TEST_CASE("terms of weight zero after a row's end change no bit of its product", "[kernels]") {
  constexpr int32_t kLong = 300, kShort = 113, kWidth = 64;
  std::vector<float> a = gaussian<float>(kLong, 7);
  const std::vector<float> b = gaussian<float>(kLong * kWidth, 8);
  std::fill(a.begin() + kShort, a.end(), 0.0f);
  for (const kernels::Table* table : tables()) {
    if (std::string(table->name) == "portable") continue;
    std::vector<float> whole(kWidth), part(kWidth);
    table->of_float.multiply(a.data(), kLong, 1, b.data(), kLong, kWidth, whole.data(), kWidth, false);
    table->of_float.multiply(a.data(), kLong, 1, b.data(), kShort, kWidth, part.data(), kWidth, false);
    INFO(table->name);
    CHECK(whole == part);
  }
}

TEST_CASE("a NaN in a product reaches its row or its column and no further", "[kernels]") {
  constexpr int32_t kSize = 70;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const kernels::Table* table : tables()) {
    std::vector<float> a = gaussian<float>(kSize * kSize, 9), out(kSize * kSize);
    const std::vector<float> b = gaussian<float>(kSize * kSize, 10);
    a[3 * kSize + 11] = nan;
    table->of_float.multiply(a.data(), kSize, kSize, b.data(), kSize, kSize, out.data(), kSize, false);
    INFO(table->name);
    for (int32_t i = 0; i < kSize * kSize; ++i) REQUIRE(std::isnan(out[size_t(i)]) == (i / kSize == 3));
    table->of_float.scores(a.data(), kSize, kSize, panels(b, kSize, kSize).numbers.data(), kSize, kSize, out.data(),
                           kSize);
    for (int32_t i = 0; i < kSize * kSize; ++i) REQUIRE(std::isnan(out[size_t(i)]) == (i / kSize == 3));
  }
}

namespace {

// The largest error of the chosen instruction set (KVREPLAY_ISA may name it): scores of the keys from `first` on, in
// panels that may have room for more than k.
double worst_score_of_chosen_isa(const std::vector<float>& q, const std::vector<float>& k,
                                 const kernels::KeyPanels<float>& held, int32_t first) {
  const int32_t d = held.d, rows = int32_t(q.size()) / d, count = int32_t(k.size()) / d - first;
  Guarded<float> out(rows, count, 3);
  kernels::scores(q.data(), d, rows, held, first, count, out.data(), out.stride);
  CHECK(out.untouched_outside());
  double worst = 0;
  for (int32_t i = 0; i < rows; ++i)
    for (int32_t j = 0; j < count; ++j) {
      double sum = 0;
      for (int32_t c = 0; c < d; ++c) sum += double(q[size_t(i * d + c)]) * double(k[size_t((first + j) * d + c)]);
      worst = std::max(worst, std::abs(double(out.at(i, j)) - sum));
    }
  return worst;
}

}  // namespace

TEST_CASE("keys added to panels one by one are scored", "[kernels]") {
  constexpr int32_t kRows = 17, kDim = 24, kKeys = 61;
  const std::vector<float> q = gaussian<float>(kRows * kDim, 1), k = gaussian<float>(kKeys * kDim, 2);
  kernels::KeyPanels<float> held(kKeys + 7, kDim);
  for (int32_t i = kKeys - 1; i >= 0; --i) held.put(i, k.data() + i * kDim);
  CHECK(worst_score_of_chosen_isa(q, k, held, 0) < 1e-4);
}

TEST_CASE("bf16 keys are scored from any panel on, with tiles if the instruction set has them", "[kernels]") {
  constexpr int32_t kRows = 50, kDim = 40, kKeys = 200, kFirst = 2 * kernels::kPanel;
  const std::vector<float> q = gaussian<float>(kRows * kDim, 1);
  std::vector<float> k = gaussian<float>(kKeys * kDim, 2);
  for (float& x : k) x = float(int32_t(x * 32)) / 32;
  const kernels::KeyPanels<float> keys(k.data(), kKeys, kDim);
  CHECK((keys.tiles.term_blocks > 0) == (kernels::chosen().tile_product != nullptr));
  CHECK(worst_score_of_chosen_isa(q, k, keys, kFirst) < 1e-5);
}
