#pragma once
#include "core/method_info.hpp"
#include "formats/row_text.hpp"

namespace kvreplay {

// KIVI: integers over the range of a group. Keys are coded by channel in groups of g rows, values by row in groups of g
// channels. New keys stay exact until R of them are waiting; the newest R values always stay exact.
struct Kivi {
  static constexpr FormatInfo info{.name = "kivi",
                                   .title = "keys by channel, values by token, newest rows exact",
                                   .source = "KIVI, Liu et al. 2024, Algorithm 1",
                                   .tier = 2,
                                   .by_block = true};
  int32_t bits = 4, g = 32, R = 128;

  static void declare(auto& d) {
    d.integer("bits", &Kivi::bits, {2, 4}, "bits of a number, 2 or 4");
    d.integer("g", &Kivi::g, {1, 1 << 16}, "rows (keys) or channels (values) that share offset and step");
    d.integer("R", &Kivi::R, {1, kManyTokens}, "newest rows that stay exact, a multiple of g");
  }
  CodedBytes bytes(RowPart part, int32_t width) const {
    return {bytes_of_bits(int64_t(width) * bits), part == RowPart::value ? 4 * int64_t(groups_of(width, g)) : 0};
  }
};

// GEAR: KIVI's groups, plus a low-rank correction of their error and exact outliers.
struct Gear : Kivi {
  enum class Order : int32_t { outliers_first, residual };
  static constexpr FormatInfo info{
      .name = "gear",
      .title = "kivi, outliers and a low rank beside it",
      .source = "GEAR, Kang et al. 2024, in the order of the released code",
      .tier = 3,
      .deviation = "two power iterations from the first unit vectors, not from random ones.",
      .by_block = true};
  int32_t rank = 4;
  Order order = Order::outliers_first;
  double outliers = 2;

  static void declare(auto& d) {
    d.integer("bits", &Gear::bits, {2, 4}, "bits of a number, 2 or 4");
    d.integer("g", &Gear::g, {1, 1 << 16}, "rows (keys) or channels (values) that share offset and step");
    d.integer("R", &Gear::R, {1, kManyTokens}, "newest rows that stay exact, a multiple of g");
    d.integer("rank", &Gear::rank, {0, 256}, "rank of the correction that is added to the codes");
    d.real("outliers", &Gear::outliers, {0, 100}, "per cent of a block's numbers that are kept exactly");
    d.choice("order", &Gear::order, {"outliers_first", "residual"},
             "outliers are chosen before coding, or by the error of codes and low rank");
  }
};

}  // namespace kvreplay
