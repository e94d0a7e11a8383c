#include "device/beside_cores.hpp"
#include "device/devices.hpp"
#include "emulator/emulated_policies.hpp"
#include "emulator/emulated_runtime.hpp"
#include "methods/subgen/subgen.hpp"

// A device cuts prompts whose selection is expensive, by the policy's own code.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Change = void (*)(CommonOptions&);

struct Cut {
  const char* method;
  nlohmann::json params;
  Change change = nullptr;
};
const Cut kCuts[] = {
    {"subgen", nlohmann::json::object()},
    {"subgen", {{"weights", "cluster_size"}, {"recent", 4}}},
    {"subgen", {{"first", "random"}}},
    {"subgen", nlohmann::json::object(), [](CommonOptions& a) { a.reweight = Reweight::uniform; }},
    {"balancekv", {{"walk", "paper"}, {"c", 0}}},
    {"balancekv", {{"preset", "longbench"}, {"sinks", 2}, {"recent", 3}, {"block", 16}}},
    {"balancekv", nlohmann::json::object(), [](CommonOptions& a) { a.gqa_level = GqaLevel::query; }},
    {"kernel_halving", nlohmann::json::object()},
    {"self_balancing_walk", {{"kernel", "kv"}, {"on_fail", "coin"}}},
    {"wildcat", nlohmann::json::object()},
};

Cell cell_of(const Cut& cut, int32_t budget, const StreamShape& s, uint32_t seed = 3) {
  CommonOptions options = default_options(cut.method);
  if (cut.change != nullptr) cut.change(options);
  return make_cell(cut.method, budget, s, cut.params, options, seed);
}

std::vector<Cell> cells_of(const StreamShape& s) {
  std::vector<Cell> cells;
  for (size_t i = 0; i < std::size(kCuts); ++i)
    for (const int32_t budget : {44, 53, 64, 200}) {
      // On the CPU the budgets of an instance share equal decisions.
      cells.push_back(changed(cell_of(kCuts[i], budget, s), [&](Variant& v) { v.instance = i; }));
    }
  return cells;
}

}  // namespace

TEST_CASE("a device cuts prompts as the CPU does", "[device][replay][programs]") {
  const StreamShape s{.tokens = 110, .prompt = 80};
  for (const Look look : {Look::gaussian, Look::clustered, Look::duplicates})
    check_device(make_stream<float>(s, 61, look), cells_of(s));
  auto stream = make_stream<float>(s, 62, Look::sinks);
  stream.window = 48;
  check_device(stream, cells_of(s));
}

TEST_CASE("a prompt that no device can cut fails its cell and no other", "[device][replay][programs]") {
  const StreamShape s{.tokens = 110, .prompt = 80};
  const std::vector<Cell> cells = {
      cell_of({"subgen", nlohmann::json::object()}, 24, s),
      cell_of({"self_balancing_walk", {{"kernel", "kv"}, {"r", 1e-3}, {"c", 1e-9}, {"on_fail", "fail"}}}, 24, s),
      cell_of({"balancekv", nlohmann::json::object()}, 24, s)};
  const auto stream = make_stream<float>(s, 63);
  check_device(stream, cells);
  const RunResult result = replay(stream, cells, on_device());
  CHECK(result.cells[0].ok);
  CHECK_FALSE(result.cells[1].ok);
  CHECK(result.cells[2].ok);
}

namespace {

int64_t blocks_started = 0;

void count_blocks(const DeviceLaunch& launch) {
  blocks_started += launch.count;
  emulator::start_policies<SubGen, kPolicyThreads>(launch);
}

}  // namespace

TEST_CASE("each budget's selection is one block, in one launch with the others", "[emulator]") {
  const StreamShape s{.tokens = 110, .prompt = 80};
  Method counted = *find_method(registry(), "subgen");
  counted.programs.emulated = count_blocks;
  std::vector<Cell> cells;
  for (const int32_t budget : {16, 30, 53})
    cells.push_back(changed(cell_of({"subgen", nlohmann::json::object()}, budget, s),
                            [&](Variant& v) { v.values = MethodValues(counted); }));
  RunOptions options;
  options.device = open_heads([] { return emulator::open_runtime(emulator::Schedule::forward); });
  blocks_started = 0;
  for (const CellResult& cell : replay(make_stream<float>(s, 64), cells, options).cells) {
    CHECK(cell.ok);
    CHECK_FALSE(cell.on_cpu);
  }
  CHECK(blocks_started == 3);
}
