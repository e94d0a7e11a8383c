#include <catch2/catch.hpp>
#include <filesystem>

#include "exact/oracle_needs.hpp"
#include "theory/balancekv.hpp"
#include "theory/sizes.hpp"
#include "theory/subgen.hpp"
#include "theory/walk.hpp"
#include "trace/h5_file.hpp"

// The papers' formulas against numbers by hand; long ones were computed with 40 digits of decimal arithmetic.

using namespace kvreplay;
using theory::LogNumber;

TEST_CASE("a number stored by its logarithm exceeds the range of a double", "[theory]") {
  const LogNumber huge = LogNumber::exp(800) * LogNumber::exp(800), tiny = LogNumber(1) / huge;
  CHECK(huge.ln() == Approx(1600));
  CHECK_FALSE(huge.plain());
  CHECK(tiny.log10() == Approx(-1600 / std::log(10)));
  CHECK_FALSE(tiny.plain());
  CHECK((huge * tiny).plain() == 1);
  CHECK((huge + huge).ln() == Approx(1600 + std::log(2)));
  CHECK((huge + tiny).ln() == huge.ln());
  CHECK(tiny < 1);
  CHECK(huge > LogNumber::exp(1599));
  CHECK((LogNumber(0) * huge).exact_zero());
  CHECK((LogNumber(0) + 3.0).plain() == 3);
}

TEST_CASE("a plain value exists below 10^15, and rounding up stops there", "[theory]") {
  CHECK(LogNumber(999999999999999.0).plain() == 999999999999999.0);
  CHECK_FALSE(LogNumber(1e15).plain());
  CHECK(LogNumber(18.42).ceil().plain() == 19);
  CHECK(LogNumber(19).ceil().plain() == 19);
  CHECK(LogNumber::exp(100).ceil().ln() == 100);
  CHECK(LogNumber(1000).log10() == 3);
}

// With eps 1/2 and delta r = 0: t = ceil(4 ln 100) = ceil(18.42), s = 4 * 8.
TEST_CASE("SubGen's samples, slots, rows, numbers and time by hand", "[theory]") {
  const auto sizes = theory::SubGen::of(0.5, 0, 7, 100, 8);
  CHECK(sizes.t.plain() == 19);
  CHECK(sizes.s.plain() == 32);
  CHECK(sizes.rows(3).plain() == 3 * 20 + 32);
  CHECK(sizes.numbers(3, 8, 4).plain() == 3 * 20 * 8 + 32 * (8 + 4) + 3 + 1);
  CHECK(sizes.time_per_token(3, 8).plain() == 8 * (3 * 19 + 32));
  const auto doubled = theory::SubGen::of(0.5, 0, 7, 100, 8, 2, 0.5);
  CHECK(doubled.t.plain() == 37);  // ceil(36.84)
  CHECK(doubled.s.plain() == 16);
}

TEST_CASE("SubGen's samples grow as exp(2 delta r), far beyond a double", "[theory]") {
  const auto far = theory::SubGen::of(0.5, 100, 2, 100, 8);
  CHECK(far.t.log10() == Approx(174.9830984).epsilon(1e-9));
  CHECK_FALSE(far.t.plain());
  const auto farther = theory::SubGen::of(0.1, 1000, 1000, 4096, 64);
  CHECK(farther.t.log10() == Approx(868591.8838132).epsilon(1e-9));
  CHECK(farther.rows(1000).log10() == Approx(farther.t.log10() + 3));
  CHECK(theory::subgen_growth(2, 3, std::exp(4)) == Approx(3));  // exp(2 delta r) = n^3
}

TEST_CASE("SubGen's finite-sample errors by hand", "[theory]") {
  CHECK(theory::subgen_numerator_variance(3, 4, 2, 5) == 2);
  CHECK(theory::subgen_numerator_rms(400).plain() == Approx(0.05));
  const int counts[] = {2, 4};
  const double variances[] = {1, 0.5};
  CHECK(theory::subgen_normaliser_variance(
            2, [&](int i) { return counts[i]; }, [&](int i) { return variances[i]; }, 2) == 2 + 4);
}

// r^2/sqrt(d) = 1: ln^2(1024) 4 e^2/0.5 = 2840.08.
TEST_CASE("BalanceKV's batch by hand; one that is not smaller than n keeps everything", "[theory]") {
  const auto sizes = theory::BalanceKv::of(0.5, 2, 64, 16, 16);
  CHECK(theory::largest_logit(2, 16) == 1);
  CHECK(sizes.t.plain() == 2841);
  CHECK(sizes.keeps_everything(64));
  CHECK(sizes.levels == 0);
  CHECK(sizes.pairs().plain() == 2841);
  CHECK_FALSE(sizes.keeps_everything(1e6));
}

// ln^2(10^6) = 190.87; 10^6/191 = 5235.6 lies between 2^12 and 2^13.
TEST_CASE("BalanceKV's levels, pairs, buckets and rows by hand", "[theory]") {
  const auto sizes = theory::BalanceKv::of(1, 0, 1e6, 1, 1);
  CHECK(sizes.t.plain() == 191);
  CHECK(sizes.levels == 13);
  CHECK(sizes.pairs().plain() == 191 * 14);
  CHECK(sizes.buckets == Approx(21.93156857));
  CHECK(sizes.rows().plain() == Approx(191 * 14 * 22.93156857));
  CHECK(sizes.time_per_step().plain() == 191 * 191);
  CHECK(theory::merge_levels(4096, 256) == 4);
  CHECK(theory::merge_levels(4097, 256) == 5);
  CHECK(theory::merge_levels(100, 256) == 0);
}

TEST_CASE("BalanceKV's batch at the norms of real keys is a power of e, not a number", "[theory]") {
  const auto sizes = theory::BalanceKv::of(0.1, 30, 1024, 16, 64);
  CHECK(sizes.t.log10() == Approx(199.4254977).epsilon(1e-9));
  CHECK_FALSE(sizes.t.plain());
  CHECK(sizes.levels == 0);
  CHECK(std::isfinite(theory::BalanceKv::of(1e-100, 1e100, 1e150, 1, 1).rows().log10()));
}

TEST_CASE("SoftmaxBalance's discrepancy and MergeAndReduce's error by hand", "[theory]") {
  // 2 ln(100 * 4/0.01) exp(4/8 + 16/8) 3
  CHECK(theory::softmax_balance_discrepancy({100, 16, 4, 0.01, 2, 4, 3}).plain() == Approx(774.5606318));
  CHECK(theory::softmax_balance_discrepancy({100, 16, 4, 0.01, 2, 4, 3}, 2).plain() == Approx(2 * 774.5606318));
  // 0.1 * 50 * exp(-16/4) * 2
  CHECK(theory::merge_and_reduce_error(0.1, 50, 4, 16, 2).plain() == Approx(0.1831564));
  const LogNumber tiny = theory::merge_and_reduce_error(0.1, 50, 1000, 16, 2);
  CHECK(tiny.log10() == Approx(-108572.6204758).epsilon(1e-9));
  CHECK_FALSE(tiny.plain());
}

TEST_CASE("the walk's constant, threshold, discrepancy, crossover and plateau by hand", "[theory]") {
  CHECK(theory::walk_constant(1000, 0.01) == Approx(345.3877639));
  CHECK(theory::walk_constant(1000, 0) == Approx(621.6979751));                   // delta = 1/n^2
  CHECK(theory::walk_constant(1e30, 1e-300) == Approx(30 * 330 * std::log(10)));  // n/delta overflows
  CHECK(theory::walk_failure_threshold(345, 2).plain() == 1380);
  CHECK(theory::walk_discrepancy(1000, 0.01, 2, 3).plain() == Approx(69.07755279));
  CHECK(theory::walk_discrepancy(1000, 0.01, 2, 3, 10).plain() == Approx(690.7755279));
  CHECK(theory::coin_discrepancy(1024) == 32);
  CHECK(theory::walk_crossover(300, 8) == 1200);
  CHECK(theory::walk_plateau(8) == 2);
}

TEST_CASE("bytes of caches, int4's share, the greedy line and kernel halving by hand", "[theory]") {
  CHECK(theory::cache_bytes(30, 3, 256, 64, 64, 2).plain() == 2 * 30 * 3 * 256 * 64 * 2);
  CHECK(theory::int4_share() == 0.28125);
  CHECK(theory::kGreedyLine == Approx(0.6321205588));
  CHECK(theory::halving_size(1024, 1).plain() == Approx(64));
  CHECK(theory::halving_error(1024, 64, 2).plain() == Approx(2 * 0.1083042470));
}
