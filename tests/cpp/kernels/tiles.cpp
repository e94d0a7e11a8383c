#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cases.hpp"

// Products on tiles. The tiles here are emulated with plain numbers, so the code is tested on machines without tiles.
// On a machine with tiles the cases run on them too.

namespace kvreplay::kernels {
namespace {

struct Tiles {
  float sums[4][16][16];
  uint16_t halves[8][16][32];
  template <int T>
  void zero() {
    std::memset(sums[T], 0, sizeof sums[T]);
  }
  template <int T>
  void load(const uint16_t* p, int64_t stride) {
    for (int64_t i = 0; i < 16; ++i) std::memcpy(halves[T][i], p + i * stride, sizeof halves[T][i]);
  }
  static float number(uint16_t half) { return std::bit_cast<float>(uint32_t(half) << 16); }
  template <int C, int A, int B>
  void multiply() {
    for (int i = 0; i < 16; ++i)
      for (int r = 0; r < 16; ++r)
        for (int j = 0; j < 16; ++j) {
          sums[C][i][j] += number(halves[A][i][2 * r]) * number(halves[B][r][2 * j]);
          sums[C][i][j] += number(halves[A][i][2 * r + 1]) * number(halves[B][r][2 * j + 1]);
        }
  }
  template <int T>
  void store(float* p, int64_t stride) {
    for (int64_t i = 0; i < 16; ++i) std::memcpy(p + i * stride, sums[T][i], sizeof sums[T][i]);
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/tile_kernels.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Product {
  std::string name;
  kernels::TileProduct run;
};

std::vector<Product> products() {
  std::vector<Product> all = {{"plain numbers", kernels::tile_product}};
  for (const kernels::Path& path : kernels::paths())
    if (path.table != nullptr && path.table->tile_product != nullptr)
      all.push_back({path.name, path.table->tile_product});
  return all;
}

// Truncates each float to `digits` of its 24 binary digits.
std::vector<float> with_digits(std::vector<float> x, int digits) {
  for (float& number : x) number = std::bit_cast<float>(std::bit_cast<uint32_t>(number) & (~0u << (24 - digits)));
  return x;
}

kernels::TileMatrix tiles(const kernels::TilePanels& b) { return {b.numbers.data(), b.term_blocks}; }

// Errors of rows in the Euclidean norm, relative to the row's norm. For a row of so few numbers that all of them may
// cancel, they are relative to the sums of its absolute terms.
struct Errors {
  double mean, worst;
};
constexpr int32_t kFewColumns = 16;

Errors errors(const Product& product, const std::vector<float>& a, const std::vector<float>& b, int32_t m,
              int32_t terms, int32_t columns) {
  const kernels::TilePanels packed(b.data(), terms, columns, columns, 1);
  Guarded<float> out(m, columns, 3);
  product.run(a.data(), terms, m, tiles(packed), terms, columns, out.data(), out.stride);
  CHECK(out.untouched_outside());
  Errors e = {0, 0};
  for (int32_t i = 0; i < m; ++i) {
    double error = 0, norm = 1e-300;
    for (int32_t j = 0; j < columns; ++j) {
      double sum = 0, size = 0;
      for (int32_t c = 0; c < terms; ++c) {
        const double term = double(a[size_t(i * terms + c)]) * double(b[size_t(c * columns + j)]);
        sum += term;
        size += std::abs(term);
      }
      error += std::pow(double(out.at(i, j)) - sum, 2);
      norm += columns < kFewColumns ? size * size : sum * sum;
    }
    e.mean += std::sqrt(error / norm) / m;
    e.worst = std::max(e.worst, std::sqrt(error / norm));
  }
  return e;
}

std::vector<float> bf16_columns(int32_t terms, int32_t columns) {
  return with_digits(gaussian<float>(size_t(terms * columns), 2), 8);
}

}  // namespace

TEST_CASE("products on tiles are right for any shape and digits, and write nothing else", "[kernels]") {
  for (const Product& product : products())
    for (const int digits : {8, 11, 24})
      for (const int32_t m : {0, 1, 17, 32, 50})
        for (const int32_t terms : {0, 1, 31, 33, 513})
          for (const int32_t columns : {0, 1, 17, 48, 80}) {
            const Errors e = errors(product, with_digits(gaussian<float>(size_t(m * terms), 1), digits),
                                    bf16_columns(terms, columns), m, terms, columns);
            INFO(product.name << ", " << digits << " digits: " << m << " x " << terms << " x " << columns);
            CHECK(e.mean <= 1e-6);
            CHECK(e.worst <= 2e-6);
          }
}

TEST_CASE("products of bf16 numbers on tiles lose nothing but the rounding of sums", "[kernels]") {
  for (const Product& product : products()) {
    const Errors e = errors(product, with_digits(gaussian<float>(40 * 64, 1), 8), bf16_columns(64, 48), 40, 64, 48);
    INFO(product.name << ": " << e.worst);
    CHECK(e.worst <= 5e-7);
  }
}

TEST_CASE("columns use tiles if every number is a bf16 number", "[kernels]") {
  std::vector<float> x = bf16_columns(64, 48);
  const auto packed = [&] { return kernels::TilePanels(x.data(), 64, 48, 48, 1).term_blocks > 0; };
  CHECK(packed());
  x.back() = 1 + 0x1p-8f;
  CHECK_FALSE(packed());
}

TEST_CASE("a row of a product on tiles does not depend on the rows it is computed with", "[kernels]") {
  constexpr int32_t kRows = 37, kTerms = 70, kColumns = 48;
  std::vector<float> a = gaussian<float>(kRows * kTerms, 1);
  const std::vector<float> b = bf16_columns(kTerms, kColumns);
  for (const int32_t row : {5, 31, 36})  // rows of one part among others, and last in their block
    std::fill(a.begin() + row * kTerms, a.begin() + (row + 1) * kTerms, 1.5f);
  const kernels::TilePanels packed(b.data(), kTerms, kColumns, kColumns, 1);
  for (const Product& product : products()) {
    std::vector<float> all(kRows * kColumns), alone(kColumns);
    product.run(a.data(), kTerms, kRows, tiles(packed), kTerms, kColumns, all.data(), kColumns);
    for (int32_t i = 0; i < kRows; ++i) {
      product.run(a.data() + i * kTerms, kTerms, 1, tiles(packed), kTerms, kColumns, alone.data(), kColumns);
      INFO(product.name << ": row " << i);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + i * kColumns));
    }
  }
}

TEST_CASE("a NaN reaches its row of a product on tiles and no other", "[kernels]") {
  std::vector<float> a = gaussian<float>(20 * 40, 1);
  const std::vector<float> b = bf16_columns(40, 32);
  a[7 * 40 + 3] = std::bit_cast<float>(0x7fffffffu);  // a NaN that rounding must not turn into a number
  const kernels::TilePanels packed(b.data(), 40, 32, 32, 1);
  for (const Product& product : products()) {
    std::vector<float> out(20 * 32);
    product.run(a.data(), 40, 20, tiles(packed), 40, 32, out.data(), 32);
    INFO(product.name);
    for (int32_t i = 0; i < 20 * 32; ++i) REQUIRE(std::isnan(out[size_t(i)]) == (i / 32 == 7));
  }
}
