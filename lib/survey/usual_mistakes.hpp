#pragma once
#include <optional>
#include <string>
#include <vector>

#include "survey/recorded_row.hpp"
#include "trace/trace.hpp"

// What people get wrong when they write a trace, tried one after the other on rows whose recorded output disagrees.

namespace kvreplay {

struct RowsOfHead {
  std::string prompt;
  int32_t layer = 0, q_head = 0;
  double unit = 0;  // rounding, see rounding_unit
  std::vector<RecordedRow> rows;
  std::vector<float> queries;  // [query_rows, head_dim], all of the head
};

// The rule that the trace states for this query head.
AttentionRule stated_rule(const Trace& trace, const std::string& prompt, const LayerInfo& layer, int32_t q_head);

struct Mistake {
  std::string text;  // what makes the rows agree, and the remedy
  double deviation;  // mean over the rows, with that
};
// The one that brings all rows closest to what is recorded, of those that bring them as close as rounding lets them;
// nullopt where none does.
std::optional<Mistake> usual_mistake(const Trace& trace, const RowsOfHead& head);

}  // namespace kvreplay
