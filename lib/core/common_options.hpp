#pragma once
#include <cstdint>
#include <string>

#include "core/token.hpp"

namespace kvreplay {

enum class Phase { stream, oneshot };                       // convention C6
enum class GqaLevel { kv, query, layer };                   // convention C9: one set per kv head, query head or layer
enum class Positions { original, cache };                   // convention C14
enum class PromptMode { as_run, cut, stream };              // convention C5; as_run: as replay.prompt says
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

enum class Reweight { none, uniform };                       // kept unprotected prompt tokens stand for the others
enum class Allocator { uniform, pyramid, ada, cake, file };  // how a budget is shared over heads and layers

// How stored entries are written (methods.md, row formats).
struct RowFormat {
  enum class Kind : int32_t { source, f32, f16, bf16, int8, int4, kivi, gear };
  Kind kind = Kind::source;
  int32_t bits = 4;        // kivi, gear: 2 or 4
  int32_t group = 0;       // numbers that share offset and step; 0: 64 for int4 and int8, 32 for kivi and gear
  int32_t residual = 128;  // kivi, gear: newest tokens that stay exact
  int32_t rank = 4;        // gear: of the correction
  double outliers = 2;     // gear: per cent of the residuals kept exactly
  bool quantises() const { return kind >= Kind::int8; }
  bool by_block() const { return kind >= Kind::kivi; }  // several rows share offsets and steps
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
  std::string allocator_file;  // of Allocator::file: rows layer,kv_head,tokens
  RowFormat row_format;
};

}  // namespace kvreplay
