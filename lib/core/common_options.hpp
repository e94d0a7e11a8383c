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
enum class PromptMode { as_run, cut, stream };              // convention C5; as_run: as replay.prompt says
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

enum class Reweight { none, uniform };  // kept unprotected prompt tokens stand for the others
// How a budget is shared over heads and layers.
enum class Allocator { uniform, pyramid, windows, ada, cake, lu_kv, duo, headkv, file };

// HeadKV, arXiv 2410.19258 (allocator headkv): an equal part, and a pool that goes by importance.
struct HeadKv {
  double beta = 1.2;  // 1/beta of the budget is pooled
  double temp = 1;    // power of the importance
  bool operator==(const HeadKv&) const = default;
};

// What every method can be combined with, as `methods:` of a configuration says.
struct CommonOptions {
  Phase phase = Phase::stream;
  GqaLevel gqa_level = GqaLevel::kv;
  Aggregate gqa_aggregate = Aggregate::sum;
  Positions positions = Positions::original;
  Order order = Order::attend_then_evict;
  PromptMode prompt = PromptMode::as_run;
  Reweight reweight = Reweight::none;
  Allocator allocator = Allocator::uniform;
  std::string allocator_file;  // of Allocator::file: rows layer,kv_head,tokens; of headkv: importance, or ""
  double window_share = 0.5;   // of Allocator::windows: what a layer with a sliding window gets of the budget
  LuKv lu_kv;                  // of Allocator::lu_kv
  HeadKv headkv;               // of Allocator::headkv
  // Of duo, and of headkv without a file: parameters of the method duo_attention, which says how far heads look: by
  // name, as canonical JSON.
  std::map<std::string, std::string> looking = {};
  RowFormat row_format;
  Wrapper wrapper;
  Merge merge;
};

}  // namespace kvreplay
