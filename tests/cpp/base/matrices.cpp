#include "base/matrices.hpp"

#include <catch2/catch.hpp>

using namespace kvreplay;

TEST_CASE("A product of matrices of 2 x 3 and 3 x 2 numbers is the one by hand") {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12};
  CHECK(product_of(a, b, 3) == std::vector<float>{58, 64, 139, 154});
  CHECK(product_of(a, b, 2) == std::vector<float>{27, 30, 33, 61, 68, 75, 95, 106, 117});  // 3 x 2 and 2 x 3
}

TEST_CASE("A product of matrices is summed in double precision") {
  const std::vector<float> a = {16777216, 1, -16777216}, b = {1, 1, 1};  // 2^24 + 1 is no float
  CHECK(product_of(a, b, 3) == std::vector<float>{1});
}
