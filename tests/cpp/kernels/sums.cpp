#include <algorithm>

#include "core/bf16.hpp"
#include "kernels/cases.hpp"

// The kernels of caches: sums, masks, scores, and comparisons of two outputs.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr int32_t kSizes[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 513};

template <class Real>
void check_sums(const kernels::Table& table) {
  const double tolerance = sizeof(Real) == 4 ? 1e-12 : 1e-14;
  for (const int32_t n : kSizes) {
    INFO(table.name << " " << n);
    const std::vector<Real> x = gaussian<Real>(size_t(n), 1), factor = gaussian<Real>(size_t(n), 2);
    double sum = 0, weighed = 0, size = 1e-300;
    for (size_t i = 0; i < size_t(n); ++i)
      sum += double(x[i]), weighed += double(Real(x[i] * factor[i])), size += std::abs(double(x[i]));
    CHECK(std::abs(table.of(Real()).sum(x.data(), n) - sum) <= tolerance * size);
    Guarded<Real> out(1, n, 0);
    CHECK(std::abs(table.of(Real()).weigh(x.data(), factor.data(), n, out.data()) - weighed) <= 3 * tolerance * size);
    for (int32_t i = 0; i < n; ++i) CHECK(out.at(0, i) == Real(x[size_t(i)] * factor[size_t(i)]));
    CHECK(out.untouched_outside());
  }
}

template <class Real>
void check_scores(const kernels::Table& table) {
  for (const int32_t n : kSizes)
    for (const double carry : {0.0, 1.0, 0.75}) {
      const std::vector<Real> e = gaussian<Real>(size_t(n), 3);
      Guarded<double> score(1, n, 0);
      std::vector<double> right = gaussian<double>(size_t(n), 4);
      std::copy(right.begin(), right.end(), score.data());
      for (size_t i = 0; i < size_t(n); ++i) right[i] = (carry == 0 ? 0 : carry * right[i]) + double(e[i]) * 0.3;
      table.of(Real()).accumulate(e.data(), 0.3, carry, n, score.data());
      INFO(table.name << " " << n << " " << carry);
      for (int32_t i = 0; i < n; ++i) CHECK(score.at(0, i) == right[size_t(i)]);
      CHECK(score.untouched_outside());
    }
}

template <class Real>
void check_comparison(const kernels::Table& table) {
  for (const int32_t n : kSizes) {
    INFO(table.name << " " << n);
    const std::vector<Real> z = gaussian<Real>(size_t(n), 5), o = gaussian<Real>(size_t(n), 6);
    constexpr double tau = 0.8;
    kernels::Comparison right{};
    kernels::Distance apart{};
    for (size_t i = 0; i < size_t(n); ++i) {
      const double a = double(z[i]), b = double(o[i]), p = std::max(b, kernels::Comparison::kClamp);
      apart.error2 += (a - b) * (a - b), apart.exact2 += b * b;
      right.mine2 += a * a, right.inner += a * b;
      right.positive2 += p * p, right.numerator2 += (tau * a - b) * (tau * a - b);
    }
    const kernels::Comparison got = table.of(Real()).compare(z.data(), o.data(), n, tau);
    const double scale = 1e-13 * (apart.exact2 + right.mine2);
    for (const auto sum : {&kernels::Comparison::mine2, &kernels::Comparison::inner, &kernels::Comparison::positive2,
                           &kernels::Comparison::numerator2})
      CHECK(std::abs(got.*sum - right.*sum) <= scale);
    const kernels::Distance distance = table.of(Real()).distance(z.data(), o.data(), n);
    for (const auto sum : {&kernels::Distance::error2, &kernels::Distance::exact2})
      CHECK(std::abs(distance.*sum - apart.*sum) <= scale);
  }
}

template <class Real>
void check_projection(const kernels::Table& table) {
  for (const int32_t n : kSizes)
    for (const int32_t count : {1, 3, 4, 9}) {
      INFO(table.name << " " << n << " " << count);
      const std::vector<Real> z = gaussian<Real>(size_t(n), 9), o = gaussian<Real>(size_t(n), 10);
      std::vector<uint16_t> directions;
      for (const float x : gaussian<float>(size_t(n * count), 11)) directions.push_back(to_bf16(x));
      Guarded<float> out(1, count, 0);
      table.of(Real()).project(z.data(), o.data(), directions.data(), count, n, out.data());
      for (int32_t i = 0; i < count; ++i) {
        double right = 0, size = 1e-300;
        for (int32_t c = 0; c < n; ++c) {
          const double term = double(from_bf16(directions[size_t(i * n + c)])) * double(z[size_t(c)] - o[size_t(c)]);
          right += term, size += std::abs(term);
        }
        CHECK(std::abs(double(out.at(0, i)) - right) <= 1e-6 * size);
      }
      CHECK(out.untouched_outside());
    }
}

template <class Real>
void check_addition(const kernels::Table& table) {
  for (const int32_t n : kSizes) {
    INFO(table.name << " " << n);
    const std::vector<Real> a = gaussian<Real>(size_t(n), 7), b = gaussian<Real>(size_t(n), 8);
    Guarded<Real> sum(1, n, 0), product(1, n, 0);
    table.of(Real()).add(a.data(), b.data(), Real(0.3), n, sum.data());
    table.of(Real()).finish(a.data(), b.data(), Real(0.3), n, product.data());
    const Real unit = std::numeric_limits<Real>::epsilon();
    for (size_t i = 0; i < size_t(n); ++i) {
      const Real most = std::abs(a[i]) + std::abs(b[i]);
      CHECK(std::abs(sum.data()[i] - (a[i] + Real(0.3) * b[i])) <= unit * most);
      CHECK(std::abs(product.data()[i] - (a[i] + b[i]) * Real(0.3)) <= unit * most);
    }
    CHECK(sum.untouched_outside());
    CHECK(product.untouched_outside());
  }
}

}  // namespace

TEST_CASE("errors are projected on 16-bit directions of any number and width", "[kernels]") {
  for (const kernels::Table* table : tables()) check_projection<float>(*table), check_projection<double>(*table);
}

TEST_CASE("weighted sums and scaled sums of rows write nothing beyond the rows", "[kernels]") {
  for (const kernels::Table* table : tables()) check_addition<float>(*table), check_addition<double>(*table);
}

TEST_CASE("sums and masked sums are computed in double and write their factors", "[kernels]") {
  for (const kernels::Table* table : tables()) check_sums<float>(*table), check_sums<double>(*table);
}

TEST_CASE("scores add to the old score or replace it, with equal bits on every instruction set", "[kernels]") {
  for (const kernels::Table* table : tables()) check_scores<float>(*table), check_scores<double>(*table);
}

TEST_CASE("a score without a carry replaces even a NaN", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    double score[] = {INFINITY, std::nan("")};
    const float e[] = {1, 2};
    table->of_float.accumulate(e, 0.5, 0, 2, score);
    CHECK(score[0] == 0.5);
    CHECK(score[1] == 1);
  }
}

TEST_CASE("the lowest score is found at any place; among equals the newest token", "[kernels]") {
  for (const kernels::Table* table : tables())
    for (const int32_t n : kSizes) {
      std::vector<double> score(size_t(n), 3.0), guard(size_t(n), 0.0);
      std::vector<int32_t> token(static_cast<size_t>(n));
      for (int32_t i = 0; i < n; ++i) token[size_t(i)] = (i * 7919) % 10007;
      for (int32_t at = 0; at < n; at += 1 + n / 9) {
        INFO(table->name << " " << n << " " << at);
        score[size_t(at)] = -1;
        const kernels::Lowest found = table->lowest(score.data(), guard.data(), token.data(), n);
        CHECK(found.score == -1);
        CHECK(found.token == token[size_t(at)]);
        guard[size_t(at)] = INFINITY;  // nothing may be evicted here
        const kernels::Lowest other = table->lowest(score.data(), guard.data(), token.data(), n);
        CHECK(other.score == (n == 1 ? INFINITY : 3));
        int32_t newest = -1;
        for (int32_t i = 0; i < n; ++i)
          if (i != at) newest = std::max(newest, token[size_t(i)]);
        CHECK(other.token == newest);
        score[size_t(at)] = 3, guard[size_t(at)] = 0;
      }
    }
}

TEST_CASE("two equal lowest scores in any two places give the newer token", "[kernels]") {
  constexpr int32_t n = 37;
  for (const kernels::Table* table : tables())
    for (int32_t a = 0; a < n; ++a)
      for (int32_t b = 0; b < n; ++b) {
        if (a == b) continue;
        std::vector<double> score(size_t(n), 2.0), guard(size_t(n), 0.0);
        std::vector<int32_t> token(size_t(n), 7);
        score[size_t(a)] = score[size_t(b)] = 1;
        token[size_t(a)] = 3, token[size_t(b)] = 9;
        const kernels::Lowest found = table->lowest(score.data(), guard.data(), token.data(), n);
        INFO(table->name << " " << a << " " << b);
        REQUIRE(found.token == 9);
        REQUIRE(found.score == 1);
      }
}

TEST_CASE("if every row is guarded there is no lowest score", "[kernels]") {
  for (const kernels::Table* table : tables()) {
    const std::vector<double> score(20, 1.0), guard(20, INFINITY);
    const std::vector<int32_t> token(20, 5);
    CHECK(table->lowest(score.data(), guard.data(), token.data(), 20).token == -1);
    CHECK(table->lowest(score.data(), guard.data(), token.data(), 0).token == -1);
  }
}

TEST_CASE("comparisons of two outputs are summed in double", "[kernels]") {
  for (const kernels::Table* table : tables()) check_comparison<float>(*table), check_comparison<double>(*table);
}
