#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/row_format.hpp"
#include "core/serving.hpp"
#include "core/share.hpp"
#include "core/token.hpp"

namespace kvreplay {

// Selections that consider how much a token changes the output, on top of the prompt scores S of another method (option
// `wrapper`). S is the mean over the voting rows and the query heads.
struct Wrapper {
  // critical: CriticalKV, Feng et al. 2025, Algorithm 1. The first share of the budget goes by S, the rest by (S + eps)
  // N, with N the L1 norm of the value after the output projection.
  // caote: CAOTE, Goel et al. 2025, section 3. By the change of the output if only this token is evicted.
  enum class Kind { none, critical, caote };
  enum class Level { query, kv };  // caote: changes are computed per query head and summed, or S of the group is used
  Kind kind = Kind::none;
  double alpha = 0.5, eps = 1e-4;  // critical
  Level level = Level::query;      // caote
  bool fast = false;               // caote: the mean value replaces the output

  bool is_none() const { return kind == Kind::none; }
};

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
  // - value_blend: kvpress, merging_press.py. If the largest S reaches `threshold` and is among the share `fraction` of
  //   the cut's largest, the value joins that row by weights max(S, 0) |v| / (|v| + |v of the row| + 1e-6) against 1.
  enum class Rule { none, cam, d2o, pivot, weighted_v, gaussian, value_blend };
  // keep: a row counts for as many tokens as it took in (num, den); none: for one.
  enum class Mass { none, keep };
  enum class Attention { accumulated, step };  // cam: attention from all rows so far, or from the last one
  Rule rule = Rule::none;
  Mass mass = Mass::none;
  Attention attention = Attention::accumulated;
  int32_t next = 32;
  bool release = false;
  double threshold = 0.75;  // used by gaussian and value_blend, which has 0
  double fraction = 1;      // value_blend

  bool is_none() const { return rule == Rule::none; }
  bool uses_attention() const { return rule == Rule::cam || rule == Rule::weighted_v || rule == Rule::gaussian; }
  bool changes_keys() const { return rule == Rule::d2o || rule == Rule::pivot || rule == Rule::gaussian; }
  bool random() const { return rule == Rule::cam; }
};

// Channels that the kept keys of the prompt lack (option `think`). ThinK, Xu et al. 2024, and kvpress, think_press.py.
struct Think {
  double ratio = 0;     // share of the channels of a key that is dropped; 0: none
  int32_t window = 32;  // last queries of the prompt that decide

  bool is_none() const { return ratio == 0; }
  int32_t dropped(int32_t dim) const { return int32_t(ratio * dim + 1e-9); }
};

enum class Phase { stream, oneshot };                       // convention C6
enum class GqaLevel { kv, query, layer };                   // convention C9: one set per kv head, query head or layer
enum class Positions { original, cache };                   // convention C14
enum class PromptMode { as_run, cut, stream };              // convention C5; as_run: follows replay.prompt
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

enum class Reweight { none, uniform };  // uniform: kept unprotected prompt tokens represent the evicted ones
// How a budget is shared over heads and layers.
enum class Allocator { uniform, pyramid, windows, ada, cake, lu_kv, duo, headkv, zigzag, file };

// HeadKV, arXiv 2410.19258 (allocator headkv): an equal part for every head, and a pool that is shared by importance.
struct HeadKv {
  double beta = 1.2;  // 1/beta of the budget forms the pool
  double temp = 1;    // exponent of the importance
  bool operator==(const HeadKv&) const = default;
};

// ZigZagKV, arXiv 2412.09036 (allocator zigzag): a layer gets tokens in proportion to the number of tokens that hold
// most of its scores.
struct ZigZag {
  double mass = 0.9;  // share of the scores that these tokens hold
  int32_t lo = 0;     // tokens that every head starts with; 0: as many as its method protects
  bool operator==(const ZigZag&) const = default;
};

// Options that combine with every method, as in `methods:` of a configuration.
struct CommonOptions {
  Phase phase = Phase::stream;
  GqaLevel gqa_level = GqaLevel::kv;
  Aggregate gqa_aggregate = Aggregate::sum;
  Positions positions = Positions::original;
  Order order = Order::attend_then_evict;
  PromptMode prompt = PromptMode::as_run;
  Reweight reweight = Reweight::none;
  Allocator allocator = Allocator::uniform;
  std::string allocator_file;  // for file: rows layer,kv_head,tokens; for headkv: importance, for duo: gates, or ""
  double window_share = 0.5;   // for windows: share of the budget that a layer with a sliding window gets
  LuKv lu_kv;                  // for lu_kv
  HeadKv headkv;               // for headkv
  ZigZag zigzag;               // for zigzag
  // For duo, and for headkv without a file: parameters of the method duo_attention, which measures how far heads look;
  // by name, as canonical JSON.
  std::map<std::string, std::string> looking = {};
  RowFormat row_format;
  Wrapper wrapper;
  Merge merge;
  Think think;
  Serving serving;

  // Whether the kv heads of a layer are replayed together.
  bool spans_layer() const { return gqa_level == GqaLevel::layer || serving.pages.tied(); }
};

}  // namespace kvreplay
