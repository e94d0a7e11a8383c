#pragma once
#include <optional>
#include <string>
#include <vector>

#include "survey/recorded_output.hpp"
#include "trace/trace.hpp"

// Common mistakes in writing a trace, tried one after another on rows whose recorded output disagrees.

namespace kvreplay {

struct RowsOfHead {
  std::string prompt;
  int32_t layer = 0, q_head = 0;
  double unit = 0;  // rounding, see rounding_unit
  std::vector<RecordedRow> rows;
  std::vector<float> queries;  // [query_rows, head_dim], all queries of the head
};

// The attention rule that the trace's metadata states for this query head.
AttentionRule stated_rule(const Trace& trace, const std::string& prompt, const LayerInfo& layer, int32_t q_head);

struct Mistake {
  std::string text;  // the change that makes the rows agree, and the remedy
  double deviation;  // mean deviation of the rows after that change
};
// The mistake that brings all rows closest to the recorded output, among those that bring every row within rounding.
// nullopt if there is none.
std::optional<Mistake> usual_mistake(const Trace& trace, const RowsOfHead& head);

}  // namespace kvreplay
