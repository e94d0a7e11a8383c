#include <fstream>

#include "hand_streams.hpp"
#include "list_files.hpp"
#include "sweep/fixture.hpp"
#include "sweep/shard.hpp"

// Sets from files: small cases by hand, and every way to refuse them.

using namespace kvreplay;
using namespace kvreplay::test;
using Catch::Contains;
using sweep_test::plan_of;

namespace {

using Tokens = std::vector<int32_t>;

Cell cell_with(const HeadStream<double>& s, int32_t budget, const std::filesystem::path& file, CommonOptions options) {
  return changed(make_cell("external", budget, {s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads},
                           nlohmann::json::object(), options),
                 [&](Variant& v) { v.kept = file.string(); });
}
CellResult run(const HeadStream<double>& s, int32_t budget, const WrittenLists& lists,
               void (*change)(CommonOptions&) = nullptr, RunOptions options = {}) {
  const Folder folder;
  CommonOptions common = default_options("external");
  if (lists.oneshot == 1) common.phase = Phase::oneshot;
  if (change != nullptr) change(common);
  return replay(s, {cell_with(s, budget, lists.write(folder / "l.h5"), common)}, options).only();
}
double out(const CellResult& r, size_t row) { return output(r, 0, row)[0]; }

const std::vector<double> kEight = {1, 2, 4, 8, 1, 30, 2, 5};

// The scope of the refusals below: a prompt of 4 tokens and 2 later ones.
KeptScope scope() {
  KeptScope s;
  s.place = {0, "0", 7, 1}, s.extent = {6, 4}, s.most = 3;
  return s;
}
std::string refusal(const WrittenLists& lists, const KeptScope& s = scope()) {
  const Folder folder;
  const std::filesystem::path file = lists.write(folder / "l.h5", "0/007/1");
  try {
    (void)read_kept_lists(file, s);
  } catch (const ConfigError& e) {
    return std::string(e.what()).substr(file.string().size());
  }
  return "no error";
}

}  // namespace

TEST_CASE("lists of one cut keep their tokens and every later token", "[hand][external]") {
  const CellResult r = run(weighted_stream(kEight, 5), 2, {{{1, 3}}, {}, {}, 1});
  REQUIRE(r.ok);
  CHECK(r.oneshot);
  CHECK(kept_list(r, 0) == Tokens{1, 3});
  CHECK(out(r, 0) == Approx((1 * 2 + 3 * 8 + 5 * 30) / 40.0));
  CHECK(out(r, 2) == Approx((1 * 2 + 3 * 8 + 5 * 30 + 6 * 2 + 7 * 5) / 47.0));
  CHECK(*r.measures["n_evictions"] == 3);
}

TEST_CASE("a step attends to the list before it and to the present token", "[hand][external]") {
  const WrittenLists lists{{{1, 3}, {3, 5}, {5}, {}}};
  for (const bool audit : {false, true}) {
    RunOptions options;
    options.audit = audit;
    const CellResult r = run(weighted_stream(kEight, 5), 2, lists, nullptr, options);
    REQUIRE(r.ok);
    CHECK(r.kept.flat == Tokens{1, 3, 3, 5, 5});
    CHECK(out(r, 0) == Approx((1 * 2 + 3 * 8 + 5 * 30) / 40.0));
    CHECK(out(r, 1) == Approx((3 * 8 + 5 * 30 + 6 * 2) / 40.0));
    CHECK(out(r, 2) == Approx((5 * 30 + 7 * 5) / 35.0));
    CHECK(*r.measures["peak_kept_tokens"] == 2);
  }
}

TEST_CASE("weights hold from their list on; a new token has weight 1", "[hand][external]") {
  const WrittenLists lists{{{1, 3}, {3, 5}, {5}, {5}}, {2, 0, 3, 1, 0.5, 1}, {1, 4, 0, 1, 2, 1}};
  const CellResult r = run(weighted_stream(kEight, 5), 2, lists);
  REQUIRE(r.ok);
  CHECK(r.num == std::vector<double>{2, 0, 3, 1, 0.5, 1});
  CHECK(r.den == std::vector<double>{1, 4, 0, 1, 2, 1});
  CHECK(out(r, 0) == Approx((2 * 1 * 2 + 5 * 30) / (1 * 2 + 4 * 8 + 30.0)));
  CHECK(out(r, 1) == Approx((3 * 3 * 8 + 5 * 30 + 6 * 2) / (30 + 2.0)));
  CHECK(out(r, 2) == Approx((0.5 * 5 * 30 + 7 * 5) / (2 * 30 + 5.0)));
  CHECK(*r.measures["weight_floats"] == 4);  // from the first list: two tokens with different weights
}

TEST_CASE("with evict_then_attend a step attends to the list after it", "[hand][external]") {
  const WrittenLists lists{{{1, 3}, {3, 5}, {5}, {5, 7}}, {1, 1, 2, 1, 3, 1, 1}, {1, 1, 2, 1, 3, 1, 1}};
  const CellResult r =
      run(weighted_stream(kEight, 5), 2, lists, [](CommonOptions& a) { a.order = Order::evict_then_attend; });
  REQUIRE(r.ok);
  CHECK(r.attends);
  CHECK(out(r, 0) == Approx((2 * 3 * 8 + 5 * 30) / (2 * 8 + 30.0)));
  CHECK(out(r, 1) == Approx(5));
  CHECK(*r.measures["peak_attended_tokens"] == 2);
}

TEST_CASE("each query head has its own series of lists", "[hand][external]") {
  HeadStream<double> s = make_stream<double>({.tokens = 7, .prompt = 5, .dim = 1, .v_dim = 1, .heads = 2});
  s.rule.scale = 1;
  std::fill(s.queries.begin(), s.queries.end(), 0.0);
  for (int32_t i = 0; i < 7; ++i) s.values[size_t(i)] = i;
  const auto by_query = [](CommonOptions& a) { a.gqa_level = GqaLevel::query; };
  const CellResult r = run(s, 2, {{{0, 1}, {5}, {5, 6}, {3, 4}, {4}, {6}}}, by_query);
  REQUIRE(r.ok);
  CHECK(r.kept.flat == Tokens{0, 1, 5, 5, 6, 3, 4, 4, 6});
  CHECK(output(r, 0, 1)[0] == Approx((5 + 6) / 2.0));
  CHECK(output(r, 1, 1)[0] == Approx((4 + 6) / 2.0));
  const CellResult cut = run(s, 2, {{{0, 1}, {3, 4}}, {}, {}, 1}, by_query);
  REQUIRE(cut.ok);
  CHECK(output(cut, 1, 0)[0] == Approx((3 + 4 + 5) / 3.0));
}

TEST_CASE("tokens outside the sliding window are not part of a list", "[hand][external]") {
  auto s = weighted_stream(kEight, 5);
  s.window = 3;
  const CellResult r = run(s, 2, {{{0, 1, 3, 4}, {0, 3, 5}, {0, 4, 6}, {0, 7}}, {}, {}});
  REQUIRE_FALSE(r.ok);
  CHECK_THAT(r.error, Contains("holds 4, which list 1 does not"));  // token 4 is still visible then
  const CellResult sound = run(s, 2, {{{0, 1, 3, 4}, {0, 3, 5}, {0, 6}, {0, 3, 7}}, {}, {}});
  REQUIRE(sound.ok);
  CHECK(sound.kept.flat == Tokens{3, 4, 3, 5, 6, 7});
  CHECK(out(sound, 1) == Approx((5 * 30 + 6 * 2) / 32.0));  // token 3 has left the window
}

TEST_CASE("a cell whose lists exceed its share of a budget fails, and no other", "[external]") {
  const Folder folder;
  const auto s = weighted_stream(kEight, 5);
  const auto file = WrittenLists{{{0, 1, 3}}, {}, {}, 1}.write(folder / "l.h5");
  CommonOptions options = default_options("external");
  options.phase = Phase::oneshot;
  const Cell whole = cell_with(s, 3, file, options);
  Cell small = whole;
  set_share(small, 2);
  const RunResult result = replay(s, {small, whole, make_cell("window", 3, {8, 5, 1, 1, 1})});
  CHECK_FALSE(result.cells[0].ok);
  CHECK_THAT(result.cells[0].error, Contains("3 tokens, more than the budget of 2"));
  CHECK(result.cells[1].ok);
  CHECK(result.cells[2].ok);
  const Cell planned = changed(whole, [](Variant& v) { v.digests.given = "what was planned"; });
  CHECK_THAT(replay(s, {planned}).only().error, Contains("has changed since the run was planned"));
}

TEST_CASE("without a budget lists may have any length", "[external]") {
  const auto s = weighted_stream(kEight, 5);
  const Folder folder;
  Cell cell = cell_with(s, 1, WrittenLists{{{0, 1, 3}, {1, 3, 5}, {5}, {5}}}.write(folder / "l.h5"),
                        default_options("external"));
  cell.budget = {};
  const CellResult r = replay(s, {cell}).only();
  REQUIRE(r.ok);
  CHECK(*r.measures["peak_kept_tokens"] == 3);
}

TEST_CASE("lists that no cache could hold are refused with their place and value", "[external]") {
  const auto refused = [](const std::vector<Tokens>& lists) { return refusal({lists}); };
  CHECK(refused({{0, 1}, {1, 4}, {4, 5}}) == "no error");
  CHECK(refused({{0, 1}}) == "no error");
  CHECK_THAT(refused({{0, 4}}),
             Contains(": /0/007/1: kept_flat: list 0 (after token 3) holds 4, but only tokens 0 to 3 "
                      "exist by then: a list may not know the future"));
  CHECK_THAT(refused({{0}, {4, 5}, {5}}), Contains("list 1 (after token 4) holds 5"));
  CHECK_THAT(refused({{6}}), Contains("holds 6") && Contains("the trace has 6: do the lists belong to another trace?"));
  CHECK_THAT(refused({{-1}}), Contains("/0/007/1/kept_flat: holds -1 at 0, which is no token's index"));
  CHECK_THAT(refused({{1, 0}}), Contains("list 0 (after token 3) holds 0 behind 1") && Contains("ascending"));
  CHECK_THAT(refused({{2, 2}}), Contains("holds 2 behind 2: write every token once"));
  CHECK_THAT(refused({{0, 1}, {1}, {0}}), Contains("list 2 (after token 5) holds 0, which list 1 does not: an "
                                                   "evicted token cannot return"));
  CHECK_THAT(refused({{0, 1, 2, 3}}), Contains("holds 4 tokens, more than the budget of 3: raise budget"));
  CHECK_THAT(refused({{0}, {0}}),
             Contains("kept_off makes 2 lists") && Contains("4 tokens and 2 later ones need 1 or 3"));
  CHECK_THAT(refusal({{{0}, {0}, {0}}, {}, {}, 1}), Contains("need 1 (oneshot is 1)"));
  KeptScope by_query = scope();
  by_query.caches = 2;
  CHECK_THAT(refusal({{{0}, {0}, {0}}}, by_query), Contains("1 or 3, for each of 2 query heads (gqa.level: query)"));
  CHECK(refusal({{{0}, {0}}}, by_query) == "no error");
}

TEST_CASE("weights that make the denominator zero are refused", "[external]") {
  const auto refused = [](const std::vector<double>& num, const std::vector<double>& den) {
    return refusal({{{0, 1}}, num, den});
  };
  CHECK(refused({-1, 2}, {0, 1}) == "no error");
  CHECK_THAT(refused({1}, {1, 1}), Contains("/0/007/1/num: holds 1 weights, but kept_flat 2 tokens"));
  CHECK_THAT(refused({1, 1}, {1}), Contains("/0/007/1/den: holds 1 weights"));
  CHECK_THAT(refused({1, 1}, {}), Contains("/0/007/1: holds num without den: write both"));
  CHECK_THAT(refused({}, {1, 1}), Contains("holds den without num"));
  CHECK_THAT(refused({1, NAN}, {1, 1}), Contains("num: holds nan at 1: weights are finite"));
  CHECK_THAT(refused({1, 1}, {1, INFINITY}), Contains("den: holds inf at 1"));
  CHECK_THAT(refused({1, 1}, {1, -1}), Contains("den: holds -1 at 1") && Contains("not negative"));
  CHECK_THAT(refused({1, 1}, {0, 0}), Contains("den: list 0 has weights that sum to 0"));
}

TEST_CASE("invalid offsets of lists are refused", "[external]") {
  const auto refused = [](const std::vector<int64_t>& off) {
    const Folder folder;
    H5Output file(folder / "l.h5");
    file.write("kept_flat", std::span<const int32_t>(Tokens{0, 1}), {2});
    file.write("kept_off", std::span<const int64_t>(off), {int64_t(off.size())});
    file.close();
    try {
      (void)read_kept_lists(folder / "l.h5", scope());
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(refused({0, 2}) == "no error");
  CHECK_THAT(refused({0}), Contains("l.h5: /kept_off: holds no list"));
  CHECK_THAT(refused({}), Contains("holds no list"));
  CHECK_THAT(refused({1, 2}), Contains("begins with 1, it must begin with 0"));
  CHECK_THAT(refused({0, 2, 1, 2}), Contains("falls from 2 to 1 at 2"));
  CHECK_THAT(refused({0, 3}), Contains("ends with 3, but kept_flat holds 2 tokens"));
}

TEST_CASE("lists are in the kv head's group, or at the root if it is the only kv head", "[external]") {
  const Folder folder;
  const auto file = WrittenLists{{{0, 1}}}.write(folder / "root.h5");
  CHECK(read_kept_lists(file, scope()).tokens == Tokens{0, 1});
  KeptScope several = scope();
  several.may_be_root = false;
  CHECK_THROWS_WITH(read_kept_lists(file, several),
                    Contains("root.h5: no group /0/007/1: lists at the root are for one kv head alone"));
  const auto other = WrittenLists{{{0, 1}}}.write(folder / "other.h5", "0/007/0");
  CHECK_THROWS_WITH(read_kept_lists(other, several), Contains("no group /0/007/1: write lists for every kv head"));
  CHECK_THROWS_WITH(read_kept_lists(other, scope()), Contains("no group /0/007/1, nor kept_flat at the root"));
  CHECK_THROWS_WITH(read_kept_lists(folder / "none.h5", scope()), Contains("none.h5: no such file"));
}

TEST_CASE("lists that the engine calls partial, or that were only read, are refused", "[external]") {
  CHECK_THAT(refusal({{{0, 1}}, {}, {}, 1, -1, 1}), Contains("/0/007/1: is marked partial"));
  CHECK_THAT(refusal({{{0, 1}}, {}, {}, 2}), Contains("attribute oneshot is 2"));
  const Folder folder;
  H5Output file(folder / "l.h5");
  file.write("0/007/1/attended_flat", std::span<const int32_t>(Tokens{0}), {1});
  file.close();
  CHECK_THROWS_WITH(read_kept_lists(folder / "l.h5", scope()), Contains("that a query-time method reads"));
}

TEST_CASE("the name of a file may contain the budget", "[external]") {
  CHECK(kept_file_of("a-{budget}/b-{budget}.h5", 64) == "a-64/b-64.h5");
  CHECK(kept_file_of("a.h5", std::nullopt) == "a.h5");
  CHECK_THROWS_WITH(kept_file_of("a-{budget}.h5", std::nullopt), Contains("there is none: add budget"));
}

namespace {

// Writes lists for the trace of sweep/fixture.hpp: two layers with two kv heads, 96 tokens, a prompt of 64.
std::filesystem::path write_all(const Folder& folder, const std::string& name, const WrittenLists& lists,
                                int32_t heads = 2) {
  H5Output file(folder / name);
  for (const char* layer : {"000", "001"})
    for (int32_t h = 0; h < heads; ++h) lists.write(file, "synthetic/" + std::string(layer) + "/" + std::to_string(h));
  file.close();
  return folder / name;
}
const char* kBudget = "budget: {tokens: [3]}\n";
std::string problems(const Folder& folder, const std::string& method, const std::string& more = kBudget) {
  try {
    (void)plan_of(folder, "methods: [" + method + "]\n" + more);
  } catch (const UserError& e) {
    CHECK(e.exit_code() == 2);
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("every mistake in lists is reported before anything runs", "[external]") {
  const Folder folder;
  write_all(folder, "cut.h5", {{{0, 5, 9}}});
  write_all(folder, "more.h5", {{{0, 5, 9, 11}}});
  write_all(folder, "one_head.h5", {{{0}}}, 1);
  write_all(folder, "streams.h5", {std::vector<Tokens>(33, Tokens{0})});
  const std::string external = "{name: external, kept: ";
  CHECK(problems(folder, external + "cut.h5}") == "no error");
  CHECK(problems(folder, external + "streams.h5}") == "no error");
  CHECK(problems(folder, external + "more.h5}", "") == "no error");
  CHECK_THAT(problems(folder, "external"),
             Contains("c.yaml:4:11: error: external needs a file: write {name: external, kept: FILE.h5}"));
  CHECK_THAT(problems(folder, external + "no.h5}"),
             Contains("c.yaml:4:34: error: external: no file") && Contains("no.h5 with kept lists"));
  const std::string all = problems(folder, external + "more.h5}, " + external + "one_head.h5}");
  CHECK_THAT(all, Contains("more.h5: /synthetic/000/0 and /synthetic/001/0: kept_flat: list 0 (after token 63) holds 4 "
                           "tokens") &&
                      Contains("one_head.h5: no group /synthetic/000/1 and /synthetic/001/1"));
  CHECK_THAT(problems(folder, external + "\"cut-{budget}.h5\"}"), Contains("cut-3.h5 with kept lists"));
  CHECK_THAT(problems(folder, external + "\"cut-{budget}.h5\"}", ""),
             Contains("{budget} is the budget in tokens, and there is none"));
  CHECK_THAT(problems(folder, external + "streams.h5, phase: oneshot}"),
             Contains("holds 33 lists") && Contains("leave phase out"));
  CHECK(problems(folder, external + "cut.h5, phase: oneshot}") == "no error");
  CHECK_THAT(problems(folder, external + "cut.h5, prompt: stream}"),
             Contains("the lists of external begin when it has ended"));
  CHECK_THAT(problems(folder, external + "cut.h5, reweight: uniform}"), Contains("reweight"));
  CHECK_THAT(problems(folder, external + "}"), Contains("external needs a file"));
  CHECK_THAT(problems(folder, external + "[]}"), Contains("kept is an empty list"));
  CHECK_THAT(problems(folder, external + "{a: 1}}"), Contains("kept is a map and must be a text"));
  CHECK_THAT(problems(folder, external + "[cut.h5, cut.h5]}"), Contains("cut.h5 is listed twice in kept"));
  CHECK_THAT(problems(folder, external + "cut.h5, gqa.level: layer}"), Contains("no error"));
  CHECK_THAT(problems(folder, external + "cut.h5}", "select: {kv_heads: [7]}\n" + std::string(kBudget)),
             Contains("has no kv head 7"));
  const std::string many = problems(folder, external + "\"no-{budget}.h5\"}", "budget: {tokens: [1, 2, 3, 4, 5, 6]}\n");
  CHECK_THAT(many, Contains("no-5.h5 and ") && Contains("no-6.h5 with kept lists"));
  CHECK(std::count(many.begin(), many.end(), '\n') == 0);
  // Fixed shares are known before the run.
  write_bytes(folder / "shares.csv", "0,0,4\n0,1,4\n1,0,4\n1,1,4\n");
  CHECK(problems(folder, external + "more.h5, allocator: \"file:shares.csv\"}") == "no error");
  H5Output unequal(folder / "unequal.h5");
  for (const char* group : {"synthetic/000/0", "synthetic/000/1", "synthetic/001/0"})
    WrittenLists{{{0, 1}}}.write(unequal, group);
  WrittenLists{{{0, 2}}}.write(unequal, "synthetic/001/1");
  unequal.close();
  CHECK_THAT(problems(folder, external + "unequal.h5, gqa.level: layer}"),
             Contains("unequal.h5: /synthetic/001/1: differs from that of kv head 0"));
  std::filesystem::create_directory(folder / "sub");
  write_all(folder, "sub/cut.h5", {{{0, 5, 9}}});
  CHECK_THAT(problems(folder, external + "[cut.h5, sub/cut.h5]}"),
             Contains("have one file name, so results could not distinguish them"));
}

TEST_CASE("a file that is wrong for every head gives one message for each budget", "[external]") {
  const Folder folder;
  write_all(folder, "more.h5", {{{0, 5, 9, 11}}});
  std::string told = problems(folder, "{name: external, kept: more.h5}", "budget: {tokens: [1, 2, 3]}\n");
  CHECK(std::count(told.begin(), told.end(), '\n') == 2);
}

TEST_CASE("the key of a cell depends on the content of its lists, not on their path", "[external]") {
  const Folder folder;
  const auto keys = [&](const std::string& kept, const std::string& more = kBudget) {
    std::vector<std::string> found;
    for (const Cell& cell : plan_of(folder, "methods: [{name: external, kept: " + kept + "}]\n" + more).cells)
      found.push_back(cell.key);
    return found;
  };
  write_all(folder, "a.h5", {{{0, 5, 9}}});
  const auto first = keys("a.h5");
  CHECK(first.size() == 4);
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::rename(folder / "a.h5", folder / "sub/b.h5");
  CHECK(keys("sub/b.h5") == first);
  CHECK(keys("\"sub/b.h5\"", "budget: {tokens: [4]}\n") != first);
  write_all(folder, "a.h5", {{{0, 5, 10}}});
  CHECK(keys("a.h5")[0] != first[0]);
  WrittenLists weighted{{{0, 5, 9}}, {1, 1, 2}, {1, 1, 2}};
  write_all(folder, "a.h5", weighted);
  CHECK(keys("a.h5")[0] != first[0]);
  // Changes to other heads' lists do not change a cell's key.
  H5Output file(folder / "a.h5");
  for (const char* group : {"synthetic/000/0", "synthetic/000/1", "synthetic/001/0"})
    WrittenLists{{{0, 5, 9}}}.write(file, group);
  WrittenLists{{{1}}}.write(file, "synthetic/001/1");
  file.close();
  const auto last = keys("a.h5");
  CHECK(std::vector(last.begin(), last.begin() + 3) == std::vector(first.begin(), first.begin() + 3));
  CHECK(last[3] != first[3]);
}

TEST_CASE("lists determine how they are replayed, and results name only their file", "[external]") {
  const Folder folder;
  write_all(folder, "cut-3.h5", {{{0, 5, 9}}});
  write_all(folder, "own.h5", {std::vector<Tokens>(33, Tokens{0}), {}, {}, -1, 1});
  const auto planned =
      plan_of(folder, "methods: [{name: external, kept: [\"cut-{budget}.h5\", own.h5]}]\n" + std::string(kBudget));
  REQUIRE(planned.cells.size() == 8);
  const Cell &cut = planned.cells[0], &own = planned.cells[1];
  CHECK(cut.options().phase == Phase::oneshot);
  CHECK(params_of(cut).at("phase") == "oneshot");
  CHECK(params_of(cut).at("kept") == "cut-{budget}.h5");
  CHECK(nlohmann::json::parse(cut.variant->given).at("kept") == "cut-{budget}.h5");
  CHECK(own.options().phase == Phase::stream);
  CHECK(own.options().order == Order::evict_then_attend);
  CHECK(params_of(own).at("order") == "evict_then_attend");
}

TEST_CASE("a manifest names lists by absolute path, whatever the reader's working folder", "[external][sweep]") {
  const Folder folder;
  write_all(folder, "cut.h5", {{{0, 5, 9}}});
  RunConfig config = plan_of(folder, "methods: [{name: external, kept: cut.h5}]\n" + std::string(kBudget)).config;
  MethodValues& values = config.methods[0].values;
  values.set(*values.method().parameter("kept"), "\"sub/../cut.h5\"");
  CHECK(with_absolute_paths(config).methods[0].values.file() == (std::filesystem::current_path() / "cut.h5").string());
}

TEST_CASE("a sweep's worker finds the planned lists, and reports changed ones", "[external][sweep]") {
  const Folder folder;
  write_all(folder, "a-3.h5", {{{0, 5, 9}}});
  const auto planned =
      plan_of(folder, "methods: [exact, {name: external, kept: \"a-{budget}.h5\"}]\n" + std::string(kBudget));
  ShardRequest request;
  for (size_t u = 0; u < planned.manifest.units.size(); ++u) request.units.push_back(u);
  const ShardWork work = open_units(planned.manifest, request, registry(), {});
  CHECK(work.problems.empty());
  CHECK(work.cells.size() == planned.cells.size());
  write_all(folder, "a-3.h5", {{{0, 5, 8}}});
  CHECK_THAT(open_units(planned.manifest, request, registry(), {}).problems.at(0),
             Contains("a file that the configuration names has changed"));
}
