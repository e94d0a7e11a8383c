#include <catch2/catch.hpp>

#include "score_rule_cells.hpp"

// Score rules beside the policies' own code, which an audit runs step by step.

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("a score rule keeps the tokens that its policy keeps, for every rule and budget", "[evaluate]") {
  RunOptions audit;
  audit.audit = true;
  // After a short prompt no token is far ahead of the others, so that every vote decides.
  for (const int32_t prompt : {8, 60}) {
    const StreamShape s{.tokens = 90, .prompt = prompt, .heads = 3};
    const std::vector<Cell> cells = every_rule(s);
    for (const Look look : {Look::gaussian, Look::sinks, Look::zero_rows}) {
      const auto stream = make_stream<float>(s, 84, look);
      const RunResult by_rule = replay(stream, cells), by_policy = replay(stream, cells, audit);
      for (size_t i = 0; i < cells.size(); ++i) {
        INFO(prompt << " " << int(look) << " " << cells[i].method().info.name << " " << params_of(cells[i]).dump());
        CHECK(by_rule.cells[i].ok);
        CHECK(by_rule.cells[i].kept.flat == by_policy.cells[i].kept.flat);
        CHECK(by_rule.cells[i].kept.off == by_policy.cells[i].kept.off);
      }
    }
  }
}
