#include <catch2/catch.hpp>

#include "theory/buzz.hpp"

// BUZZ's sizes by hand. methods/stream.cpp tests that the policy follows them for 20000 steps.

using kvreplay::theory::Buzz;
using kvreplay::theory::buzz_threshold_to_window;
using kvreplay::theory::buzz_window;

namespace {

constexpr auto kReference = Buzz::Variant::reference, kPaper = Buzz::Variant::paper;

}  // namespace

// X = 201: 41, then 41/3 up + 160/5 up = 14 + 32 = 46, 16 + 31 = 47, 16 + 31.
TEST_CASE("BUZZ's recursion with ceilings, step by step", "[theory]") {
  const Buzz buzz = Buzz::of(4, 37, 5, 200, kReference);
  CHECK(buzz.first_pass() == 41);
  CHECK(buzz.next_pass(41) == 46);
  CHECK(buzz.next_pass(46) == 47);
  CHECK(buzz.next_pass(47) == 47);
  CHECK(Buzz::of(4, 37, 5, 200, kPaper).first_pass() == 40);
}

TEST_CASE("BUZZ's fixed points at T = 200 are 47, 68, 81 with ceilings and 46.2, 66.7, 80 without", "[theory]") {
  const struct {
    int64_t stride, fixed;
    double star;
  } rows[] = {{5, 47, 200 * 6.0 / 26}, {4, 68, 200 / 3.0}, {3, 81, 80}};
  for (const auto& [stride, fixed, star] : rows) {
    const Buzz buzz = Buzz::of(4, 37, stride, 200, kReference);
    CHECK(buzz.limit().low == fixed);
    CHECK(buzz.limit().high == fixed);
    CHECK(buzz.fixed_point() == Approx(star));
    CHECK(buzz.low_point() == Approx(42 + star));
    CHECK(buzz.mean_size() == Approx(41 + (star + 200) / 2));
  }
  const auto paper = Buzz::of(4, 37, 4, 200, kPaper).limit();  // 67 -> 34 + 34, 68 -> 34 + 33
  CHECK(paper.low == 67);
  CHECK(paper.high == 68);
}

TEST_CASE("BUZZ attends k + w + T + 1, its paper variant one less, and more after one pass over a long prompt",
          "[theory]") {
  const Buzz buzz = Buzz::of(4, 50, 3, 125, kReference), paper = Buzz::of(4, 50, 3, 125, kPaper);
  CHECK(buzz.peak_attended() == 180);
  CHECK(buzz.peak_kept() == 179);
  CHECK(paper.peak_attended() == 179);
  CHECK(buzz.after_prompt(900) == 54 + 282);
  CHECK(buzz.peak_attended(900) == 337);
  CHECK(buzz.after_prompt(179) == 179);  // a middle of 125 is not thinned
  CHECK(buzz.after_prompt(180) == 54 + 42);
  CHECK(buzz.peak_attended(180) == 180);
  CHECK(Buzz::of(4, 50, 3, 1, kReference).peak_kept() == 56);  // two tokens that no pass can thin
}

TEST_CASE("BUZZ's parameter rule, and strides that it cannot bound", "[theory]") {
  CHECK(buzz_threshold_to_window(5) == Approx(26.0 / 6));
  CHECK(buzz_threshold_to_window(3) == 2.5);
  CHECK(buzz_threshold_to_window(4) == 3);
  CHECK(buzz_window(1000, 4) == 250);
  CHECK(buzz_window(1000, 5) == 187);  // floor(1000/(1 + 26/6)) = floor(187.5)
  CHECK_FALSE(Buzz::of(4, 50, 2, 100, kReference).bounded());
  CHECK_FALSE(Buzz::of(4, 50, 1, 100, kReference).bounded());
  CHECK(Buzz::of(4, 50, 3, 100, kReference).bounded());
}

TEST_CASE("BUZZ's limit stays near the fixed point for all strides and thresholds", "[theory]") {
  for (int64_t stride = 3; stride <= 40; ++stride)
    for (const int64_t threshold : {1, 2, 3, 10, 100, 12345, 1 << 30}) {
      INFO("s=" << stride << " T=" << threshold);
      const Buzz buzz = Buzz::of(0, 1, stride, threshold, kReference);
      const auto [low, high] = buzz.limit();
      CHECK(low <= high);
      CHECK(double(low) >= buzz.fixed_point());
      // ceilings, and the extra token that `reference` waits for, add less than 2 + 1/s per pass
      const double shrinks = 1 - 1.0 / double(buzz.old_step) + 1.0 / double(stride);
      CHECK(double(high) <= buzz.fixed_point() + (2 + 1.0 / double(stride)) / shrinks);
    }
}
