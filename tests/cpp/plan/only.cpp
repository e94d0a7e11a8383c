#include <catch2/catch.hpp>

#include "base/csv_rows.hpp"
#include "base/errors.hpp"
#include "plan/only.hpp"
#include "sweep/fixture.hpp"

using namespace sweep_test;

namespace {

std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  const Folder folder;
  write_bytes(folder / "f.csv", text);
  std::vector<std::vector<std::string>> rows;
  for (const CsvRow& row : read_csv(folder / "f.csv")) rows.push_back(row.fields);
  return rows;
}

size_t cells_named(const std::vector<Cell>& plan, const std::string& csv) {
  const Folder folder;
  write_bytes(folder / "only.csv", csv);
  return CellFilter(folder / "only.csv").of(plan).size();
}

}  // namespace

TEST_CASE("A CSV file is read with its quotes, its line ends and its empty fields") {
  using Rows = std::vector<std::vector<std::string>>;
  CHECK(rows_of("a,b\r\n\"1,\"\"2\",\n\n,x") == Rows{{"a", "b"}, {"1,\"2", ""}, {"", "x"}});
  CHECK(rows_of("\"two\nlines\",b\nc") == Rows{{"two\nlines", "b"}, {"c"}});
  CHECK(rows_of("").empty());
  CHECK_THROWS_WITH(rows_of("a\n\"b"), Catch::Contains("f.csv:2: error: a quote does not end"));
  CHECK_THROWS_WITH(rows_of("a\n\"b\"c\n"), Catch::Contains("f.csv:2: error: text follows a closing quote"));
  CHECK_THROWS_AS(read_csv("/nowhere/f.csv"), ConfigError);
}

TEST_CASE("A filter selects the cells that a row names; an empty field matches all") {
  const Folder folder;
  const std::vector<Cell> plan = plan_of(folder, kTwoBudgets).cells;
  REQUIRE(plan.size() == 4 * 7);
  CHECK(cells_named(plan, "layer,kv_head\n0,1\n") == 7);
  CHECK(cells_named(plan, "method,budget_tokens\nh2o,16\nuniform,\n") == 4 * (1 + 4));
  CHECK(cells_named(plan, "method,budget_tokens\nexact,\n,32\n") == 4 * (1 + 1 + 2));
  CHECK(cells_named(plan, "seed\n1\n") == 4 * 2);
  CHECK(cells_named(plan, "given,method\n{},h2o\n") == 4 * 2);
  CHECK(cells_named(plan, "prompt\n" + plan[0].place.prompt + "\n") == plan.size());
}

TEST_CASE("A filter is refused if a row names no cell, or if it is not a table of cells") {
  const Folder folder;
  const std::vector<Cell> plan = plan_of(folder, kTwoBudgets).cells;
  CHECK_THROWS_WITH(cells_named(plan, "layer\n9\n"), Catch::Contains("only.csv:2: error: names no cell"));
  CHECK_THROWS_WITH(cells_named(plan, "layer,method\n0,h2o\n\n0,exact\n,h3o\n9,\n"),
                    Catch::Contains("only.csv:5: error: names no cell"));
  CHECK_THROWS_WITH(cells_named(plan, "layer\n"), Catch::Contains("only.csv:1: error: has no row"));
  CHECK_THROWS_WITH(cells_named(plan, "leyer\n9\n"), Catch::Contains("did you mean layer?"));
  CHECK_THROWS_WITH(cells_named(plan, "layer,seed\n9\n"), Catch::Contains("only.csv:2: error: has 1 fields"));
  CHECK_THROWS_WITH(cells_named(plan, ""), Catch::Contains("is empty"));
}
