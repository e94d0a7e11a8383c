#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/budget_curves.hpp"
#include "core/merge.hpp"
#include "core/row_format.hpp"
#include "core/token.hpp"
#include "core/wrapper.hpp"

namespace kvreplay {

enum class Phase { stream, oneshot };                       // convention C6
enum class GqaLevel { kv, query, layer };                   // convention C9: one set per kv head, query head or layer
enum class Positions { original, cache };                   // convention C14
enum class PromptMode { as_run, cut, stream };              // convention C5; as_run: follows replay.prompt
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

enum class Reweight { none, uniform };  // uniform: kept unprotected prompt tokens represent the evicted ones
// How a budget is shared over heads and layers.
enum class Allocator { uniform, pyramid, windows, ada, cake, lu_kv, duo, headkv, file };

// HeadKV, arXiv 2410.19258 (allocator headkv): an equal part for every head, and a pool that is shared by importance.
struct HeadKv {
  double beta = 1.2;  // 1/beta of the budget forms the pool
  double temp = 1;    // exponent of the importance
  bool operator==(const HeadKv&) const = default;
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
  std::string allocator_file;  // for file: rows layer,kv_head,tokens; for headkv: importance, or ""
  double window_share = 0.5;   // for windows: share of the budget that a layer with a sliding window gets
  LuKv lu_kv;                  // for lu_kv
  HeadKv headkv;               // for headkv
  // For duo, and for headkv without a file: parameters of the method duo_attention, which measures how far heads look;
  // by name, as canonical JSON.
  std::map<std::string, std::string> looking = {};
  RowFormat row_format;
  Wrapper wrapper;
  Merge merge;
};

}  // namespace kvreplay
