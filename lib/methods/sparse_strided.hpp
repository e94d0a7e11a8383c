#pragma once
#include "methods/parts/sparse_pattern.hpp"

namespace kvreplay {

// The strided pattern of sparse transformers, a static baseline of H2O.
//  1. Row t keeps the last w tokens and every token j with j mod l = l-1.
//  2. Tokens outside the pattern are evicted.  3. `with_h2o`: the top floor(B/2) by A of the tokens outside stay.
struct SparseStrided : SparsePattern<SparseStrided> {
  static constexpr MethodInfo info{
      .name = "sparse_strided",
      .title = "sparse pattern: window + every l-th token",
      .source = "baseline of H2O, Zhang et al. 2023, Table 1 and Fig. 1",
      .tier = 1,
      .memory = "at most B tokens; with_h2o one score each",
      .deviation = "our definition: no code was released, and the paper gives no sizes.",
      .oneshots = false,
  };
  static constexpr Hooks hooks{"read_prompt evict observe layout needs traits"};
  int32_t w = kDerived, l = kDerived;

  static void declare(auto& d) {
    d.integer("w", &SparseStrided::w, {1, kManyTokens}, "last tokens that stay", "floor(B'/2)");
    d.integer("l", &SparseStrided::l, {2, kManyTokens}, "every l-th token stays", "ceil(n / (B' - w))");
    declare_heavy(d);
  }
  void shape(int32_t room, int32_t n) {
    if (w == kDerived) w = room / 2;
    if (w < 1 || w >= room)
      throw ParameterError("w", "a window of " + std::to_string(w) + " and every l-th token do not fit a budget of " +
                                    std::to_string(room) + "; w must be at least 1 and below that, " +
                                    "so lower w or raise the budget");
    const int32_t fits = (n + room - w - 1) / (room - w);
    if (l == kDerived) l = fits < 2 ? 2 : fits;
    if (w + (n - w) / l > room)
      throw ParameterError("l", "w " + std::to_string(w) + " and one token in every " + std::to_string(l) +
                                    " grow to " + std::to_string(w + (n - w) / l) + " tokens, more than " +
                                    std::to_string(room) + "; l " + std::to_string(fits) + " fits");
  }
  bool inside(int32_t j, int32_t t) const { return j > t - w || j % l == l - 1; }
};

}  // namespace kvreplay
