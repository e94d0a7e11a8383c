#include "catalog/method.hpp"

namespace kvreplay {

// The names of the axes in configurations.
nlohmann::json to_json(const Axes& axes) {
  return {{"phase", word(axes.phase)},
          {"gqa.level", word(axes.gqa_level)},
          {"gqa.agg", word(axes.gqa_aggregate)},
          {"positions", word(axes.positions)},
          {"order", word(axes.order)}};
}

const char* word(Phase phase) { return phase == Phase::stream ? "stream" : "oneshot"; }

const char* word(GqaLevel level) { return level == GqaLevel::kv ? "kv" : "query"; }

const char* word(Aggregate how) {
  switch (how) {
    case Aggregate::sum:
      return "sum";
    case Aggregate::mean:
      return "mean";
    case Aggregate::max:
      return "max";
    case Aggregate::first:
      return "first";
  }
  return "";
}

const char* word(Positions positions) { return positions == Positions::original ? "original" : "cache"; }

const char* word(Order order) {
  return order == Order::attend_then_evict ? "attend_then_evict" : "evict_then_attend";
}

const Method* find_method(const Registry& methods, const std::string& name_or_alias) {
  if (name_or_alias.empty()) return nullptr;
  for (const Method& method : methods)
    if (method.info.name == name_or_alias || method.info.alias == name_or_alias) return &method;
  return nullptr;
}

}  // namespace kvreplay
