#include <catch2/catch.hpp>
#include <set>

#include "base/errors.hpp"
#include "sweep/fixture.hpp"
#include "sweep/shard.hpp"

using namespace sweep_test;

namespace {

ShardRequest everything(const Manifest& manifest) {
  ShardRequest request;
  for (size_t u = 0; u < manifest.units.size(); ++u) request.units.push_back(u);
  return request;
}

Keys work_keys(const ShardWork& work) { return keys_of(work.cells); }

}  // namespace

TEST_CASE("A manifest that is read is the one that was written") {
  const Folder folder;
  const Planned planned = plan_of(folder, kTwoBudgets);
  const fs::path file = write_manifest(folder / "out", planned.manifest);
  CHECK(file.filename() == "plan-" + planned.manifest.name + ".jsonl");
  const Manifest read = read_manifest(folder / "out");
  CHECK(read.keys() == keys_of(planned.cells));
  CHECK(json::parse(read.config) == json::parse(planned.manifest.config));
  CHECK(read.units.size() == 4);
  CHECK(read.units[3].first == 3 * 7);
  CHECK(read.cost() == planned.manifest.cost());
  CHECK(read.traces.at(0).trace_id == planned.traces.at(0).trace_id);
}

TEST_CASE("Each line of a manifest names one cell") {
  const Folder folder;
  const Planned planned = plan_of(folder, kTwoBudgets);
  const json cell = json::parse(planned.manifest.cells.at(1));
  CHECK(cell.at("key") == planned.cells.at(1).key);
  CHECK(cell.at("method") == "h2o");
  CHECK(cell.at("budget_tokens") == 16);
  CHECK(cell.at("seed").is_null());
  CHECK(cell.at("layer") == 0);
  CHECK(json::parse(planned.manifest.cells.at(6)).at("seed") == 1);
}

TEST_CASE("A plan's name depends only on its cells, not on paths or how it is run") {
  const Folder a, b;
  const std::string name = plan_of(a, kTwoBudgets).manifest.name;
  CHECK(plan_of(b, kTwoBudgets + std::string("run: {jobs: 3}\n")).manifest.name == name);
  CHECK(plan_of(b, "methods: [exact]\n").manifest.name != name);
}

TEST_CASE("Units are kv heads, and layers where a method decides for a whole one") {
  const Folder folder;
  const auto heads = plan_of(folder, "methods: [h2o]\nbudget: {tokens: [16]}\n").manifest.units;
  REQUIRE(heads.size() == 4);
  CHECK(heads[1].place.layer == 0);
  CHECK(heads[1].place.kv_head == 1);
  CHECK(heads[1].cells == 1);
  const auto layers =
      plan_of(folder, "methods: [h2o, {name: h2o, gqa.level: layer}]\nbudget: {tokens: [16]}\n").manifest.units;
  REQUIRE(layers.size() == 2);
  CHECK(layers[1].place.layer == 1);
  CHECK(layers[1].cells == 4);
}

TEST_CASE("An altered manifest is refused") {
  const Folder folder;
  const Planned planned = plan_of(folder, kTwoBudgets);
  const fs::path file = write_manifest(folder / "out", planned.manifest);
  const std::string text = read_bytes(file);
  fs::permissions(file, fs::perms::owner_all);
  for (const size_t at : {size_t{30}, text.size() / 2, text.size() - 3}) {
    std::string changed = text;
    changed[at] ^= 1;
    write_bytes(file, changed);
    CHECK_THROWS_AS(read_manifest(folder / "out"), ConfigError);
  }
  write_bytes(file, text.substr(0, text.rfind("{\"key\"")));
  CHECK_THROWS_WITH(read_manifest(folder / "out"), Catch::Contains("changed or damaged"));
  write_bytes(file, text);
  CHECK(read_manifest(folder / "out").name == planned.manifest.name);
}

TEST_CASE("A directory holds one plan, which may be written again") {
  const Folder folder;
  write_manifest(folder / "out", plan_of(folder, kTwoBudgets).manifest);
  write_manifest(folder / "out", plan_of(folder, kTwoBudgets).manifest);
  CHECK_THROWS_WITH(write_manifest(folder / "out", plan_of(folder, "methods: [exact]\n").manifest),
                    Catch::Contains("holds another plan") && Catch::Contains("--force"));
  CHECK_THROWS_WITH(read_manifest(folder / "nothing"), Catch::Contains("holds no plan"));
}

TEST_CASE("Every method's cells are restored from a manifest with their keys") {
  const Folder folder;
  // In order, these need the tokens' text, a radius, a file, passes that are not recorded (three methods), the output
  // projection, smaller sinks, a threshold, smaller windows, smaller blocks, another threshold, smaller windows.
  const std::set<std::string> apart = {
      "fastgen", "subgen_stream",    "external", "kvzip",          "kvzip_plus", "kvcompose", "defensivekv",  "pqcache",
      "dms",     "random_attention", "vase",     "block_eviction", "block_mean", "block_max", "skip_softmax", "socket"};
  std::string methods =
      "{name: subgen_stream, delta_rel: 0.5, epsilon: [0.1, 0.2]}, "
      "{name: snapkv, gqa.level: query, row_format: int4, window: 8}";
  for (const Method& method : registry())
    if (apart.count(method.info.name) == 0) methods += ", " + std::string(method.info.name);
  const Planned planned = plan_of(folder, "methods: [" + methods +
                                              "]\nbudget: {fraction_kept: [0.8, 0.9]}\nseeds: {count: 1}\n"
                                              "replay: {queries: {last: 16}}\n");
  const ShardWork work = open_units(planned.manifest, everything(planned.manifest), registry(), {});
  CHECK(work.problems.empty());
  CHECK(work_keys(work) == keys_of(planned.cells));
}

TEST_CASE("A configuration without a budget is restored from a manifest") {
  const Folder folder;
  const Planned planned = plan_of(folder, "methods: [exact]\n");
  CHECK(work_keys(open_units(planned.manifest, everything(planned.manifest), registry(), {})) ==
        keys_of(planned.cells));
}

TEST_CASE("Single units are restored in the requested order") {
  const Folder folder;
  const Planned planned = plan_of(folder, kTwoBudgets);
  ShardRequest request;
  request.units = {3, 1};
  const ShardWork work = open_units(planned.manifest, request, registry(), {});
  REQUIRE(work.cells.size() == 14);
  CHECK(work.cells.front().place.layer == 1);
  CHECK(work.cells.front().place.kv_head == 1);
  CHECK(work.cells.back().place.layer == 0);
  CHECK(work.unit_of.at(work.cells.back().key) == 1);
}

TEST_CASE("Another trace at the planned path is a problem and gives no result") {
  const Folder folder;
  const Planned planned = plan_of(folder, kTwoBudgets);
  fs::remove(folder / "t.h5");
  small_trace(folder / "t.h5", 1);
  const ShardWork work = open_units(planned.manifest, everything(planned.manifest), registry(), {});
  CHECK(work.cells.empty());
  REQUIRE(work.problems.size() == 1);
  CHECK_THAT(work.problems[0], Catch::Contains("is another trace than the one that was planned"));
  CHECK(work.exit_code == 3);
}

TEST_CASE("A changed file of the configuration is a problem") {
  const Folder folder;
  write_bytes(folder / "b.csv", "40,40\n40,40\n");
  const Planned planned = plan_of(folder, "methods: [{name: h2o, allocator: 'file:b.csv'}]\nbudget: {tokens: [40]}\n");
  CHECK(open_units(planned.manifest, everything(planned.manifest), registry(), {}).problems.empty());
  write_bytes(folder / "b.csv", "41,40\n40,40\n");
  const ShardWork work = open_units(planned.manifest, everything(planned.manifest), registry(), {});
  REQUIRE(work.problems.size() == 1);
  CHECK_THAT(work.problems[0], Catch::Contains("4 of 4 planned cells have other keys now"));
}
