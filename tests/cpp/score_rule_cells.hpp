#pragma once
#include <vector>

#include "support.hpp"

// Cells of the methods that follow a score rule, with every kind of rule.

namespace kvreplay::test {

inline constexpr const char* kMethods[] = {"h2o", "tova"};
inline constexpr const char* kOthers[] = {"h2o_heavy", "scissorhands", "keyformer"};

inline Cell cell_of_rule(const char* method, int32_t budget, const StreamShape& s, const nlohmann::json& params = {},
                         Aggregate aggregate = Aggregate::sum) {
  CommonOptions options = default_options(method);
  options.gqa_aggregate = aggregate;
  return make_cell(method, budget, s, params.is_null() ? nlohmann::json::object() : params, options);
}
inline std::vector<Cell> both(int32_t budget, const StreamShape& s, const nlohmann::json& params = {}) {
  std::vector<Cell> cells;
  for (const char* method : kMethods) cells.push_back(cell_of_rule(method, budget, s, params));
  return cells;
}

inline std::vector<Cell> every_rule(const StreamShape& s) {
  std::vector<Cell> cells;
  for (const char* method : kMethods)
    for (const int32_t budget : {5, 17, 40})
      for (const int32_t sinks : {0, 4})
        for (const int32_t recent : {0, 1, budget / 2})
          if (sinks + recent < budget)
            cells.push_back(cell_of_rule(method, budget, s, {{"sinks", sinks}, {"recent", recent}},
                                         sinks == 0 ? Aggregate::mean : Aggregate::sum));
  for (const char* method : kOthers)
    for (const int32_t budget : {12, 40})
      for (const int32_t recent : {1, 10})
        for (const Aggregate how : {Aggregate::sum, Aggregate::mean})
          cells.push_back(cell_of_rule(method, budget, s, {{"recent", recent}}, how));
  cells.push_back(cell_of_rule("h2o", 24, s, {{"score_norm", "mean"}}));
  cells.push_back(cell_of_rule("h2o", 24, s, {{"score_norm", "mean"}, {"score_rows", "last:20"}}));
  for (const int32_t hist : {3, 64, 70})
    for (const int32_t drop : {1, 5})
      cells.push_back(cell_of_rule("scissorhands", 24, s, {{"hist", hist}, {"drop", drop}}));
  cells.push_back(cell_of_rule("keyformer", 24, s, {{"noise", false}, {"tau_init", 0.5}, {"gen_len", 7}}));
  return cells;
}

}  // namespace kvreplay::test
