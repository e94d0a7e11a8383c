#include <algorithm>
#include <bit>

#include "kernels/cases.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class Real>
std::vector<Real> exponentials(const kernels::Table& table, std::vector<Real> x, Real scale = 1, Real shift = 0) {
  table.of(Real()).exponentiate(x.data(), int32_t(x.size()), scale, shift);
  return x;
}

// Every `step`-th float in [from, 0], and 0.
std::vector<float> floats_down_to(float from, uint32_t step) {
  std::vector<float> x;
  for (uint32_t bits = 0x80000000u; bits <= std::bit_cast<uint32_t>(from); bits += step)
    x.push_back(std::bit_cast<float>(bits));
  return x;
}

double worst_relative_error(const kernels::Table& table, const std::vector<float>& x) {
  const std::vector<float> e = exponentials(table, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double right = std::exp(double(x[i]));
    worst = std::max(worst, std::abs(double(e[i]) - right) / right);
  }
  return worst;
}

// A row as in the exact pass: logits times 1/8, minus their maximum.
std::vector<float> logits(int32_t n, uint32_t seed) {
  std::vector<float> x = gaussian<float>(size_t(n), seed);
  for (float& number : x) number *= 25;
  return x;
}

}  // namespace

TEST_CASE("the exponential has a relative error below 2e-7 on [-87, 0]", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    const double worst = worst_relative_error(*table, floats_down_to(-87, 211));
    INFO(table->name << ": " << worst);
    CHECK(worst <= 2e-7);
  }
}

TEST_CASE("the exponential of doubles has a relative error below 1e-14 on [-708, 0]", "[kernels]") {
  std::vector<double> x;
  for (double y = 0; y > -708; y -= 0.00137) x.push_back(y);
  for (const kernels::Table* table : tables()) {
    const std::vector<double> e = exponentials(*table, x);
    long double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(e[i] / std::exp((long double)x[i]) - 1));
    INFO(table->name << ": " << double(worst));
    CHECK(worst <= 1e-14L);
  }
}

TEST_CASE("an exponential is 1 at 0, 0 at minus infinity and far below, NaN at NaN", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    INFO(table->name);
    const std::vector<float> x = {
        0, -0.0f, -kInfinity, kNaN, -104.5f, -1e30f, std::numeric_limits<float>::lowest(), -1e-40f};
    const std::vector<float> e = exponentials(*table, x);
    CHECK(e[0] == 1);
    CHECK(e[1] == 1);
    CHECK(e[2] == 0);
    CHECK(std::isnan(e[3]));
    CHECK(e[4] == 0);
    CHECK(e[5] == 0);
    CHECK(e[6] == 0);
    CHECK(e[7] == 1);
    const double infinity = std::numeric_limits<double>::infinity();
    const std::vector<double> wide = exponentials<double>(*table, {0, -infinity, double(kNaN), -800, -1e300});
    CHECK(wide[0] == 1);
    CHECK(wide[1] == 0);
    CHECK(std::isnan(wide[2]));
    CHECK(wide[3] == 0);
    CHECK(wide[4] == 0);
  }
}

TEST_CASE("an exponential is 0 or normal, so later code meets no denormals", "[kernels]") {
  std::vector<float> x;
  for (float y = -86.9f; y > -105; y -= 0.00037f) x.push_back(y);
  for (const kernels::Table* table : tables()) {
    INFO(table->name);
    const std::vector<float> e = exponentials(*table, x);
    for (size_t i = 0; i < x.size(); ++i) REQUIRE((e[i] == 0 || std::isnormal(e[i])));
    for (size_t i = 0; i < x.size(); ++i) REQUIRE((x[i] < -87.3366f) <= (e[i] == 0));
    for (size_t i = 0; i < x.size(); ++i) REQUIRE((x[i] > -87.33f) <= (e[i] > 0));
  }
}

TEST_CASE("scale and shift cost at most one rounding of the exponent", "[kernels]") {
  const float scale = 0.127f, shift = 11.3f;
  for (const kernels::Table* table : tables()) {
    const std::vector<float> x = logits(1000, 1), e = exponentials(*table, x, scale, shift);
    INFO(table->name);
    for (size_t i = 0; i < x.size(); ++i) {
      const double y = double(scale) * double(x[i]) - double(shift), right = std::exp(y);
      REQUIRE(std::abs(double(e[i]) - right) <= right * (2e-7 + 0x1p-23 * std::abs(y)));
    }
  }
}

TEST_CASE("sums of a row and of its squares are accurate to 1.5e-7, and nothing beyond the row is written",
          "[kernels]") {
  for (const kernels::Table* table : tables())
    for (const int32_t n : {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 1000, 4099}) {
      INFO(table->name << ": " << n);
      Guarded<float> row(1, n, 0);
      const std::vector<float> x = logits(n, uint32_t(n));
      std::copy(x.begin(), x.end(), row.data());
      const kernels::RowSums sums = table->of_float.exponentiate(row.data(), n, 0.125f, 9);
      CHECK(row.untouched_outside());
      double sum = 0, squares = 0;
      for (int32_t i = 0; i < n; ++i) sum += row.at(0, i), squares += double(row.at(0, i)) * row.at(0, i);
      CHECK(std::abs(sums.sum - sum) <= 1.5e-7 * sum);
      CHECK(std::abs(sums.squares - squares) <= 1.5e-7 * squares);
    }
}

TEST_CASE("sums of equal numbers, whose roundings all have one sign, are accurate to 1.5e-7 too", "[kernels]") {
  for (const kernels::Table* table : tables())
    for (float y = 0; y > -3; y -= 0.037f) {
      std::vector<float> row(4096, y);
      const kernels::RowSums sums = table->of_float.exponentiate(row.data(), 4096, 1, 0);
      INFO(table->name << ": " << y);
      CHECK(sums.sum == Approx(4096.0 * row[0]).epsilon(1.5e-7).margin(0));
      CHECK(sums.squares == Approx(4096.0 * row[0] * row[0]).epsilon(1.5e-7).margin(0));
    }
}

TEST_CASE("one NaN in a row makes its sums NaN", "[kernels]") {
  for (const kernels::Table* table : tables())
    for (const int32_t n : {1, 9, 64, 100})
      for (int32_t at = 0; at < n; ++at) {
        std::vector<float> row(size_t(n), -1.0f);
        std::vector<double> wide(size_t(n), -1.0);
        row[size_t(at)] = kNaN;
        wide[size_t(at)] = double(kNaN);
        INFO(table->name << ": number " << at << " of " << n);
        CHECK(std::isnan(table->of_float.row_maximum(row.data(), n)));
        CHECK(std::isnan(table->of_double.row_maximum(wide.data(), n)));
        CHECK(std::isnan(table->of_float.sum_x_log_x(row.data(), n)));
        CHECK(std::isnan(table->of_float.exponentiate(row.data(), n, 1, 0).sum));
        CHECK(std::isnan(table->of_double.exponentiate(wide.data(), n, 1, 0).squares));
      }
}

TEST_CASE("the maximum of a row is found at any place", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    INFO(table->name);
    CHECK(table->of_float.row_maximum(nullptr, 0) == -kInfinity);
    CHECK(table->of_double.row_maximum(nullptr, 0) == -std::numeric_limits<double>::infinity());
    for (const int32_t n : {1, 2, 7, 16, 31, 33, 64, 77})
      for (int32_t at = 0; at < n; ++at) {
        std::vector<float> row(size_t(n), -kInfinity);
        std::vector<double> wide(size_t(n), -1e300);
        row[size_t(at)] = -3;
        wide[size_t(at)] = -1e200;
        REQUIRE(table->of_float.row_maximum(row.data(), n) == -3);
        REQUIRE(table->of_double.row_maximum(wide.data(), n) == -1e200);
      }
    const std::vector<float> barred(40, -kInfinity);
    CHECK(table->of_float.row_maximum(barred.data(), 40) == -kInfinity);
  }
}

TEST_CASE("a gather copies the requested numbers and adds them in double", "[kernels]") {
  const std::vector<float> from = gaussian<float>(5000, 1);
  const std::vector<double> wide(from.begin(), from.end());
  std::mt19937 random(2);
  for (const kernels::Table* table : tables())
    for (const int32_t n : {0, 1, 3, 8, 15, 16, 17, 63, 64, 65, 300, 2048}) {
      std::vector<int32_t> index(size_t(n), 0);
      for (int32_t& i : index) i = int32_t(random() % 5000);
      Guarded<float> out(1, n, 0);
      Guarded<double> wide_out(1, n, 0);
      const double sum = table->of_float.gather(from.data(), index.data(), n, out.data());
      const double wide_sum = table->of_double.gather(wide.data(), index.data(), n, wide_out.data());
      INFO(table->name << ": " << n);
      CHECK(out.untouched_outside());
      CHECK(wide_out.untouched_outside());
      double right = 0;
      for (int32_t i = 0; i < n; ++i) {
        REQUIRE(out.at(0, i) == from[size_t(index[size_t(i)])]);
        REQUIRE(wide_out.at(0, i) == wide[size_t(index[size_t(i)])]);
        right += double(out.at(0, i));
      }
      CHECK(std::abs(sum - right) <= 1e-12 * n);
      CHECK(std::abs(wide_sum - right) <= 1e-12 * n);
    }
}

TEST_CASE("x ln x is summed in double, and is 0 at 0 and at denormals", "[kernels]") {
  for (const kernels::Table* table : tables())
    for (const int32_t n : {0, 1, 2, 5, 8, 9, 16, 100}) {
      std::vector<float> x;
      for (int32_t i = 0; i < n; ++i) x.push_back(std::exp(-float(i * i) / 20));
      if (n > 5) x[2] = 0, x[4] = 1e-40f;
      const std::vector<double> wide(x.begin(), x.end());
      double right = 0;
      for (const float number : x)
        if (std::isnormal(number)) right += double(number) * std::log(double(number));
      INFO(table->name << ": " << n);
      CHECK(std::abs(table->of_float.sum_x_log_x(x.data(), n) - right) <= 1e-14 * n);
      CHECK(std::abs(table->of_double.sum_x_log_x(wide.data(), n) - right) <= 1e-14 * n);
    }
}

TEST_CASE("x ln x of one number is accurate to 1e-15 of the logarithm's size over all exponents", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    INFO(table->name);
    for (double x = 3e-308; x < 1e300; x *= 1.0173) {
      const long double right = (long double)x * std::log((long double)x);
      const double sum = table->of_double.sum_x_log_x(&x, 1);
      REQUIRE(std::abs(sum - right) <= 1e-15L * (std::abs(right) + 1e-2L * x));
    }
  }
}

TEST_CASE("logarithms in place are accurate, near 1 too, and leave the numbers after the row alone", "[kernels]") {
  for (const kernels::Table* table : tables())
    for (const int32_t n : {0, 1, 3, 8, 9, 100}) {
      std::vector<double> x;
      for (int32_t i = 0; i < n; ++i)
        x.push_back(i % 3 == 0 ? 1 - std::ldexp(1, -i % 50 - 2) : std::ldexp(1.3, i - 60));
      std::vector<double> row = x;
      row.push_back(7);
      table->logarithms(row.data(), n);
      INFO(table->name << ": " << n);
      for (size_t i = 0; i < x.size(); ++i) CHECK(row[i] == Approx(std::log(x[i])).epsilon(1e-14));
      CHECK(row.back() == 7);
    }
}

TEST_CASE("squared distances have equal bits on every instruction set and in every lane", "[kernels]") {
  constexpr int32_t kDim = 67, kLanes = kernels::kLanes;
  std::vector<double> others = gaussian<double>(kDim * kLanes, 1);
  const std::vector<double> point = gaussian<double>(kDim, 2);
  for (int32_t c = 0; c < kDim; ++c) others[size_t(c * kLanes + 13)] = others[size_t(c * kLanes + 2)];
  std::vector<double> right(kLanes, 0.0);
  for (int32_t c = 0; c < kDim; ++c)
    for (int32_t i = 0; i < kLanes; ++i) {
      const double difference = others[size_t(c * kLanes + i)] - point[size_t(c)];
      right[size_t(i)] += difference * difference;
    }
  for (const kernels::Table* table : tables()) {
    Guarded<double> out(1, kLanes, 0);
    table->squared_distances(others.data(), point.data(), kDim, out.data());
    INFO(table->name);
    CHECK(out.untouched_outside());
    for (int32_t i = 0; i < kLanes; ++i) CHECK(out.at(0, i) == right[size_t(i)]);
    CHECK(out.at(0, 2) == out.at(0, 13));
  }
}
