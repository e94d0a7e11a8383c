#pragma once
#include <cstdint>

namespace kvreplay {

// How rows that a method evicts become part of rows that stay (option `merge`).
struct Merge {
  // A is the attention that a token has received from all rows so far, S the cosine of two stored keys.
  // - cam: CaM, Zhang et al. 2024. With probability min(1, A / mean A of the `next` kept tokens to its right), a
  //   token's value is added to them in equal parts. Keys and denominators stay.
  // - d2o: D2O, Wan et al. 2024. If the largest S with a kept key reaches a threshold, which follows the mean of S from
  //   cut to cut, key and value join that row by weights e^S against the row's weight e (`release`: S x is added, and
  //   the sum divided by one more than the number of joining rows).
  // - pivot: LOOK-M, Wan et al. 2024, the text part. The row with the largest S becomes the mean of itself and of the
  //   midpoints between itself and each row that joins it.
  // - weighted_v: arXiv 2503.01330. The next kept value becomes the mean of both values, weighted by average attention.
  // - gaussian: KVMerger, Wang et al. 2024. Each run of evicted neighbours with S > `threshold` becomes one row, by
  //   Gaussian weights around the key with the largest A. These rows are kept beyond the budget.
  enum class Rule { none, cam, d2o, pivot, weighted_v, gaussian };
  // keep: a row counts for as many tokens as it took in (num, den); none: for one.
  enum class Mass { none, keep };
  enum class Attention { accumulated, step };  // cam: attention from all rows so far, or from the last one
  Rule rule = Rule::none;
  Mass mass = Mass::none;
  Attention attention = Attention::accumulated;
  int32_t next = 32;
  bool release = false;
  double threshold = 0.75;

  bool is_none() const { return rule == Rule::none; }
  bool uses_attention() const { return rule == Rule::cam || rule == Rule::weighted_v || rule == Rule::gaussian; }
  bool changes_keys() const { return rule == Rule::d2o || rule == Rule::pivot || rule == Rule::gaussian; }
  bool random() const { return rule == Rule::cam; }
};

}  // namespace kvreplay
