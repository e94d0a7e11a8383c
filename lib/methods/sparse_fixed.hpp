#pragma once
#include "methods/parts/sparse_pattern.hpp"

namespace kvreplay {

// The fixed pattern of sparse transformers, a static baseline of H2O.
//  1. Row t keeps its own block of l tokens and the last c tokens of each finished block. If no c is left for l =
//     floor(B'/2): c = 1 and the shortest blocks that fit, which needs a budget of about 2 sqrt(n).
//  2. Tokens outside the pattern are evicted.  3. `with_h2o`: the top floor(B/2) by A of the tokens outside stay.
struct SparseFixed : SparsePattern<SparseFixed> {
  static constexpr MethodInfo info{
      .name = "sparse_fixed",
      .title = "sparse pattern: own block + ends of blocks",
      .source = "baseline of H2O, Zhang et al. 2023, Table 1 and Fig. 1",
      .tier = 1,
      .memory = "at most B tokens; with_h2o one score each",
      .deviation = "our definition: no code was released, and the paper gives no sizes.",
      .oneshots = false,
  };
  static constexpr Hooks hooks{"read_prompt evict observe layout needs traits"};
  int32_t l = kDerived, c = kDerived;

  static void declare(auto& d) {
    d.integer("l", &SparseFixed::l, {1, kManyTokens}, "tokens per block", "floor(B'/2)");
    d.integer("c", &SparseFixed::c, {1, kManyTokens}, "last tokens of a finished block that stay",
              "floor((B' - l) / ceil(n / l))");
    declare_heavy(d);
  }
  void shape(int32_t room, int32_t n) {
    const bool own = l != kDerived || c != kDerived;
    if (l == kDerived) l = room / 2 > 0 ? room / 2 : 1;
    if (c == kDerived) c = (room - l) / blocks(n);
    if (c <= 0 && !own)
      for (c = 1, l = 1; l + blocks(n) > room;)
        if (++l > room)
          throw ParameterError("", "no block length fits " + std::to_string(n) + " tokens into a budget of " +
                                       std::to_string(room) + "; raise it, or replay fewer tokens");
    const int64_t most = l + int64_t(c < l ? c : l) * (blocks(n) - 1);
    if (c < 1 || most > room)
      throw ParameterError("l", "blocks of " + std::to_string(l) + " with their last " + std::to_string(c < 1 ? 1 : c) +
                                    " do not fit " + std::to_string(room) +
                                    " tokens; set other l and c, or leave both out");
  }
  bool inside(int32_t j, int32_t t) const { return j / l == t / l || j % l >= l - c; }

 private:
  int32_t blocks(int32_t n) const { return (n + l - 1) / l; }
};

}  // namespace kvreplay
