#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/bf16.hpp"
#include "core/halves.hpp"

namespace kvreplay {
namespace {

// IEEE 754 binary16 by its definition, with arithmetic.
double half_by_definition(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST_CASE("float16 widens by its definition, for all 65536 bit patterns") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = half_by_definition(static_cast<uint16_t>(bits));
    const float found = widen_float16(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(found));
    } else {
      REQUIRE(double{found} == expected);
      REQUIRE(std::signbit(found) == std::signbit(expected));
    }
  }
}

TEST_CASE("Narrowing undoes widening for every number of both 16-bit formats") {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (!std::isnan(widen_float16(bits))) REQUIRE(narrow_float16(widen_float16(bits)) == bits);
    if (!std::isnan(from_bf16(bits))) REQUIRE(to_bf16(from_bf16(bits)) == bits);
  }
}

TEST_CASE("Narrowing to float16 rounds to nearest, ties to even") {
  CHECK(narrow_float16(1 + 0x1p-11f) == 0x3C00);  // half way between 1 and the next number: 1 is even
  CHECK(narrow_float16(1 + 0x1p-11f + 0x1p-20f) == 0x3C01);
  CHECK(narrow_float16(1 + 3 * 0x1p-11f) == 0x3C02);  // half way: the number above is even
  CHECK(narrow_float16(0x1p-25f) == 0x0000);          // half of the smallest subnormal
  CHECK(narrow_float16(0x1.8p-25f) == 0x0001);
  CHECK(narrow_float16(0x1.ffep-15f) == 0x0400);  // rounds up into the normal numbers
  CHECK(narrow_float16(65519.0f) == 0x7BFF);
  CHECK(narrow_float16(65520.0f) == 0x7C00);
  CHECK(narrow_float16(-0.0f) == 0x8000);
  CHECK(std::isnan(widen_float16(narrow_float16(std::nanf("")))));
}

TEST_CASE("bfloat16 is the upper half of a float") {
  CHECK(from_bf16(0x3F80) == 1.0f);
  CHECK(from_bf16(0x0001) == 0x1p-133f);
  CHECK(std::isinf(from_bf16(0x7F80)));
  CHECK(to_bf16(1 + 0x1p-8f) == 0x3F80);      // a tie, to even
  CHECK(to_bf16(1 + 3 * 0x1p-8f) == 0x3F82);  // a tie, to even
  CHECK(std::isnan(from_bf16(to_bf16(std::nanf("")))));
}

}  // namespace
}  // namespace kvreplay
