#include "results/notes.hpp"

#include <ctime>

#include "base/text.hpp"
#include "results/fixture.hpp"

using namespace results_test;

namespace {

constexpr const char* kOneshot = R"({"phase":"oneshot","gqa.level":"kv","allocator":"uniform","row_format":"source",)";

// A row of a prompt of 96 tokens and 128 in all, cut to its budget.
struct TableRow {
  std::string method = "h2o", given = "{}";
  std::string params = R"({"phase":"stream","gqa.level":"kv","allocator":"uniform","row_format":"source"})";
  int head = 0, budget = 32;
  double error = 0.25;
  std::map<std::string, std::string> others = {};

  Fields fields() const {
    std::map<std::string, std::string> all = {{"trace_id", "t"},
                                              {"prompt", "p0"},
                                              {"layer", "0"},
                                              {"kv_head", std::to_string(head)},
                                              {"method", method},
                                              {"given", given},
                                              {"params", params},
                                              {"status", "ok"},
                                              {"budget_tokens", budget > 0 ? std::to_string(budget) : ""},
                                              {"n_prefill", "96"},
                                              {"n_tokens", "128"},
                                              {"n_evictions", std::to_string(budget > 0 ? 128 - budget : 0)},
                                              {"rel_err_out_mean", number_text(error)},
                                              {"kept_mass_mean", "0.75"},
                                              {"total_bytes", std::to_string(100 * budget)}};
    for (const auto& [name, value] : others) all[name] = value;
    Fields row(columns().size());
    for (const auto& [name, value] : all) row[index_of(name)] = value;
    return row;
  }
};

Notes notes_on(const std::vector<TableRow>& rows) {
  SeenCells seen(registry());
  for (const TableRow& row : rows) seen.add(row.fields());
  return notes_of(seen);
}

// The notes of one kind.
Notes notes_on(const std::vector<TableRow>& rows, NoteKind kind) {
  Notes notes = notes_on(rows);
  std::erase_if(notes, [&](const Note& note) { return note.kind != kind; });
  return notes;
}

// Three heads with different numbers.
std::vector<TableRow> on_heads(TableRow row) {
  std::vector<TableRow> rows;
  for (int head = 0; head < 3; ++head) {
    row.head = head;
    rows.push_back(row);
    rows.back().error += head / 16.0;
  }
  return rows;
}

std::vector<TableRow> both(std::vector<TableRow> a, const std::vector<TableRow>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TableRow snapkv(int window, int budget, double error = 0.25) {
  return {"snapkv",
          R"({"window":)" + std::to_string(window) + "}",
          std::string(kOneshot) + R"("window":)" + std::to_string(window) + R"(,"sinks":0,"recent":0})",
          0,
          budget,
          error,
          {{"n_evictions", std::to_string(96 - budget)}}};
}

}  // namespace

TEST_CASE("Ordinary methods on ordinary heads have no note") {
  CHECK(notes_on(both(on_heads({}), on_heads(snapkv(16, 32, 0.125)))).empty());
}

TEST_CASE("A window that fills the budget is noted with the instance, the budget and a remedy") {
  const Notes notes = notes_on(both(on_heads(snapkv(32, 32)), on_heads(snapkv(16, 32, 0.5))));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::protection_fills_budget);
  REQUIRE(notes[0].instances.size() == 1);
  CHECK(notes[0].instances[0].label() == "snapkv window=32");
  CHECK(notes[0].budgets == std::vector<int32_t>{32});
  CHECK((notes[0].cells == 3 && notes[0].heads == 3));
  CHECK_THAT(notes[0].text, Catch::StartsWith("snapkv window=32 at budget 32, in 3 cells: ") &&
                                Catch::EndsWith("a smaller window or a larger budget"));
}

TEST_CASE("Sinks and recent tokens of a streaming method fill a budget together, and one token less does not") {
  TableRow row{"tova"};
  const std::string options = R"({"phase":"stream","allocator":"uniform","row_format":"source","sinks":4,"recent":)";
  row.params = options + "28}";
  CHECK(notes_on(on_heads(row), NoteKind::protection_fills_budget).size() == 1);
  row.params = options + "27}";
  CHECK(notes_on(on_heads(row), NoteKind::protection_fills_budget).empty());
}

TEST_CASE("If a layer's formula leaves no more than the window, the cells of such layers are counted") {
  TableRow row = snapkv(16, 32);
  row.method = "pyramidkv";
  std::vector<TableRow> rows = on_heads(row);
  rows[2].others = {{"n_evictions", "80"}, {"peak_kept_tokens", "48"}};
  const Notes notes = notes_on(rows, NoteKind::protection_fills_budget);
  REQUIRE(notes.size() == 1);
  CHECK((notes[0].cells == 1 && notes[0].heads == 1));
  CHECK(notes[0].instances[0].brief == "protected tokens fill the budget in 1 of 3 cells");
  rows[2].others["peak_kept_tokens"] = "40";  // a sliding window has dropped the others
  CHECK(notes_on(rows, NoteKind::protection_fills_budget).empty());
  CHECK_THAT(notes[0].text, Catch::StartsWith("pyramidkv window=16 at budget 32, in 1 of 3 cells: "));
}

TEST_CASE("Instances that are equal in every head are one note at all their budgets") {
  std::vector<TableRow> rows;
  for (const int budget : {64, 32})
    for (const char* given : {"{}", R"({"a":1})", R"({"b":2})"})
      rows = both(rows, on_heads({.given = given, .budget = budget}));
  const Notes notes = notes_on(rows);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::instances_equal);
  CHECK(notes[0].budgets == std::vector<int32_t>{32, 64});
  CHECK(notes[0].text ==
        "h2o, h2o a=1 and h2o b=2 are equal in all 3 heads at budgets 32, 64: every measure, the bytes "
        "included");
  CHECK(notes[0].instances[2].brief == "equals h2o and 1 more");
}

TEST_CASE("Two instances differ by one measure of one head, or its bytes; times and theory do not count") {
  const std::vector<TableRow> first = on_heads({});
  std::vector<TableRow> second = on_heads({.given = R"({"a":1})"});
  second[1].others = {{"select_s", "1"}, {"bound_log10_tokens", "3"}};
  CHECK(notes_on(both(first, second)).size() == 1);
  second[1].others = {{"total_bytes", "3201"}};
  CHECK(notes_on(both(first, second)).empty());
  second[1].others = {{"cosine_mean", "0.5"}};
  CHECK(notes_on(both(first, second)).empty());
}

TEST_CASE("Random instances are compared seed by seed") {
  const auto random = [](const char* given, int first) {
    std::vector<TableRow> rows = on_heads({"uniform", given});
    for (TableRow& row : rows) row.others = {{"seed", std::to_string(first++)}};
    return rows;
  };
  CHECK(notes_on(both(random("{}", 0), random(R"({"a":1})", 0))).size() == 1);
  CHECK(notes_on(both(random("{}", 0), random(R"({"a":1})", 1))).empty());
}

TEST_CASE("Budgets that hold all tokens are one note for all methods, and no equality beside it") {
  const std::vector<TableRow> rows =
      both(on_heads({.budget = 128, .error = 0}), on_heads({.method = "tova", .budget = 128, .error = 0}));
  const Notes notes = notes_on(rows);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::budget_holds_all);
  CHECK(notes[0].instances.size() == 2);
  CHECK(notes[0].cells == 6);
}

TEST_CASE("A budget that holds the prompt is noted only for one-shot methods") {
  const Notes notes = notes_on(both(on_heads(snapkv(16, 96)), on_heads({.budget = 96})));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::budget_holds_prompt);
  CHECK(notes[0].instances.size() == 1);
}

TEST_CASE("A method that evicted nothing is noted unless it may hold everything") {
  const std::map<std::string, std::string> idle = {{"n_evictions", "0"}};
  CHECK(notes_on(on_heads({.others = idle}), NoteKind::nothing_evicted).size() == 1);
  CHECK(notes_on(on_heads({.method = "quest", .others = idle})).empty());
  CHECK(notes_on(on_heads({.method = "hosted_elsewhere", .others = idle})).empty());
}

TEST_CASE("Sinks outside a full sliding window are noted") {
  TableRow row{"streaming_llm", "{}", R"({"phase":"stream","allocator":"uniform","sinks":4})"};
  row.others = {{"prompt_full_bytes", "4096"}, {"full_bytes", "4096"}};
  const Notes notes = notes_on(on_heads(row), NoteKind::sinks_leave_window);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0].text, Catch::Contains("attention sinks leave the layer's sliding window"));
  row.others["full_bytes"] = "8192";  // the cache grows: there is no window, or it is not full
  CHECK(notes_on(on_heads(row), NoteKind::sinks_leave_window).empty());
  row.others["full_bytes"] = "4096", row.params = R"({"phase":"stream","allocator":"uniform","sinks":0})";
  CHECK(notes_on(on_heads(row), NoteKind::sinks_leave_window).empty());
}

TEST_CASE("A row format that rewrote no row is noted") {
  TableRow row{"exact", R"({"row_format":{"name":"kivi"}})", R"({"row_format":{"name":"kivi","bits":4}})"};
  row.budget = 0, row.others = {{"n_quantised", "0"}};
  const Notes notes = notes_on(on_heads(row));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::nothing_quantised);
  CHECK(notes[0].budgets.empty());
  CHECK(notes[0].concerned(notes[0].instances[0].label(), 0) != nullptr);
  CHECK(notes[0].concerned(notes[0].instances[0].label(), 32) == nullptr);
}

TEST_CASE("A row format that may leave rows uncoded, or skips layers, is not noted") {
  for (const char* format : {R"("f16")", R"({"full_precision":{"recent":1,"sinks":4},"name":"f16"})",
                             R"({"key":"bf16","value":"source"})", R"({"name":"q4_0","skip_layers":[0]})"}) {
    INFO(format);
    const std::string params = std::string(R"({"row_format":)") + format + "}";
    TableRow row{"exact", params, params};
    row.budget = 0, row.others = {{"n_quantised", "0"}};
    CHECK(notes_on(on_heads(row)).empty());
  }
  const std::string params = R"({"row_format":{"key":"source","value":{"name":"q4_0"}}})";
  TableRow row{"exact", params, params};
  row.budget = 0, row.others = {{"n_quantised", "0"}};
  CHECK(notes_on(on_heads(row), NoteKind::nothing_quantised).size() == 1);
}

TEST_CASE("Heads with equal numbers count as one, and the note names them") {
  std::vector<TableRow> rows = on_heads({});
  for (TableRow& row : rows) row.error = 0.25;
  const Notes all = notes_on(rows);
  REQUIRE(all.size() == 1);
  CHECK(all[0].kind == NoteKind::heads_repeat);
  CHECK_THAT(all[0].text, Catch::StartsWith("all 3 kv heads of the table give the same numbers"));
  rows[1].error = 0.5;
  const Notes some = notes_on(rows);
  REQUIRE(some.size() == 1);
  CHECK(some[0].heads == 2);
  CHECK_THAT(some[0].text, Catch::StartsWith("2 of 3 kv heads give the numbers of another one (prompt p0, layer 0, kv "
                                             "head 0 = prompt p0, layer 0, kv head 2)"));
}

TEST_CASE("Equal sizes alone do not make heads equal, and a layer's formula does not make them different") {
  std::vector<TableRow> exact = on_heads({.method = "exact", .budget = 0});
  for (TableRow& row : exact) row.error = 0;
  CHECK(notes_on(exact).empty());
  std::vector<TableRow> rows = on_heads({});
  for (TableRow& row : rows) row.error = 0.25;
  std::vector<TableRow> sloped = on_heads(snapkv(16, 32));
  for (TableRow& row : sloped) row.method = "pyramidkv";
  CHECK(notes_on(both(rows, sloped), NoteKind::heads_repeat).size() == 1);
}

TEST_CASE("Heads whose outputs are zero or constant are noted by their place") {
  std::vector<TableRow> rows = on_heads({});
  rows[1].others = {{"rel_err_out_mean", ""}, {"rows_skipped", "32"}};
  rows[2].others = {{"rel_err_out_mean", "1e-8"}};
  const Notes notes = notes_on(rows);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].kind == NoteKind::outputs_zero);
  CHECK_THAT(notes[0].text, Catch::StartsWith("1 of 3 kv heads") && Catch::Contains("kv head 1"));
  CHECK(notes[1].kind == NoteKind::outputs_constant);
  CHECK_THAT(notes[1].text, Catch::Contains("kv head 2"));
  rows[2].others["kept_mass_mean"] = "0.999999";  // almost no mass was missed
  CHECK(notes_on(rows, NoteKind::outputs_constant).empty());
}

TEST_CASE("A single head of a trace has no interval") {
  const std::vector<TableRow> one = {TableRow{}};
  const Notes notes = notes_on(one);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == NoteKind::single_head);
  CHECK(notes[0].traces == std::vector<std::string>{"t"});
}

TEST_CASE("Failed cells are ignored, and rows without an instance have no notes") {
  std::vector<TableRow> rows = both(on_heads({}), on_heads({.given = R"({"a":1})"}));
  rows[4].others = {{"status", "failed"}};
  CHECK(notes_on(rows).empty());
  rows[4].others = {{"given", ""}};
  rows[0].others = {{"n_evictions", "0"}};
  CHECK(notes_on(rows).empty());
}

TEST_CASE("Notes of ten times as many cells take about ten times as long", "[many]") {
  std::vector<Fields> rows;
  for (int i = 0; i < 1000; ++i)
    rows.push_back(TableRow{.given = i < 500 ? "{}" : R"({"a":1})",
                            .head = i % 50,
                            .budget = 1 + i % 500 / 50,
                            .error = 0.1 + i % 500 / 1000.0}
                       .fields());
  const auto seconds_of = [&](int cells) {
    const std::clock_t start = std::clock();
    SeenCells seen(registry());
    for (int i = 0; i < cells; ++i) seen.add(rows[size_t(i % 1000)]);
    CHECK(notes_of(seen).size() == 1);
    return double(std::clock() - start);
  };
  (void)seconds_of(1000);  // warms up
  const double few = seconds_of(10000);
  CHECK(seconds_of(100000) < 40 * few);
}

TEST_CASE("Printed notes are in the folder's record, and there are none while cells are missing") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(cell_of(0), result_of(0.5));
  const auto recorded = [&] { return json::parse(text_of(dir.path / "results.meta.json")).at("notes"); };
  const Notes told = store.finish(keys_of({cell_of(0)}));
  CHECK(told.size() == 2);  // a single head, and a budget above its tokens
  CHECK(recorded() == json::parse(notes_json(told)));
  CHECK(notes_json(notes_of_json(recorded().dump())) == notes_json(told));
  CHECK(notes_of_json(R"([{"kind": "of_a_later_version"}])").empty());
  CHECK(store.finish(keys_of({cell_of(0), cell_of(1)})).empty());  // the other head may still be published
  CHECK(recorded().empty());
}
