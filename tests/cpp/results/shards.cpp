#include "results/shards.hpp"
#include "base/errors.hpp"
#include "results/fixture.hpp"
#include "results/repeats.hpp"

// Lines that workers write, and how they are read.

using namespace results_test;

namespace {

ProcessRecord process_of(const char* commit, const char* device = "cpu", const char* isa = "avx2") {
  return {"0.1", commit, "single", device, isa, "", 0};
}

// Publishes one line for cell 0, in a separate file whose name starts with `name`.
void publish_from(const fs::path& dir, const std::string& name, const ProcessRecord& process, double error) {
  Store(dir, {}, false, process, name).publish(cell_of(0), result_of(error));
}

std::string error_column(const fs::path& dir, const ProcessRecord& reader) {
  const Store store(dir, {}, false, reader);
  return row_of(store, 0)[index_of("rel_err_out_mean")];
}

Repeats repeats_in(const fs::path& dir, const ProcessRecord& reader) {
  return compare_repeats(ResultsFolder(dir, {}, reader.build()));
}

}  // namespace

TEST_CASE("A sealed line returns its members, and an altered one returns nothing") {
  const std::string members = R"("key":"k0","row":{"x":1.5})";
  const std::string line = sealed_line(members);
  CHECK(json::parse(line).at("row").at("x") == 1.5);
  REQUIRE(unsealed(line));
  CHECK(*unsealed(line) == members);
  for (size_t i = 0; i < line.size(); ++i) {
    std::string changed = line;
    changed[i] = changed[i] == '7' ? '8' : '7';
    CHECK_FALSE(unsealed(changed));
    CHECK_FALSE(unsealed(line.substr(0, i)));
  }
}

TEST_CASE("A result line with one altered digit is ignored and its cell is missing") {
  const ScratchDir dir;
  publish_one(dir.path, 0);
  std::string text = text_of(only_shard(dir.path));
  const size_t digit = text.find("\"rel_err_out_mean\":0.5");
  REQUIRE(digit != std::string::npos);
  text[digit + 21] = '6';
  std::ofstream(only_shard(dir.path)) << text;
  const ResultsFolder folder(dir.path, {}, "");
  CHECK(folder.shards().unreadable_lines == 1);
  CHECK(folder.done().empty());
}

TEST_CASE("If a cell has two lines, the first by the name of its file counts") {
  const ScratchDir dir;
  publish_from(dir.path, "shard-1", process_of("old", "cpu", "avx512"), 0.25);
  publish_from(dir.path, "shard-0", process_of("old"), 0.5);
  CHECK(error_column(dir.path, process_of("new")) == "0.5");
}

TEST_CASE("A line of this build takes precedence over those of other builds") {
  const ScratchDir dir;
  publish_from(dir.path, "shard-0", process_of("old"), 0.5);
  publish_from(dir.path, "shard-1", process_of("new"), 0.25);
  CHECK(error_column(dir.path, process_of("new")) == "0.25");
  CHECK(error_column(dir.path, process_of("old")) == "0.5");
  CHECK(error_column(dir.path, process_of("third")) == "0.5");
}

TEST_CASE("Failures are counted over all processes, and a success clears them") {
  const ScratchDir dir;
  for (const char* name : {"shard-0", "shard-1"})
    Store(dir.path, {}, false, process_of("x"), name).publish(cell_of(0), failure());
  const ResultsFolder failed(dir.path, {}, "");
  CHECK(failed.failures(cell_of(0).key) == 2);
  CHECK(failed.failures(cell_of(1).key) == 0);
  CHECK(failed.done().empty());
  publish_one(dir.path, 0);
  const ResultsFolder mended(dir.path, {}, "");
  CHECK(mended.done().size() == 1);
  CHECK(mended.shards().repeats.empty());
}

TEST_CASE("A file that its process removes while the folder is read counts as empty") {
  const ScratchDir dir;
  publish_from(dir.path, "a", process_of("new"), 0.5);
  fs::create_symlink("nowhere", dir.path / "shards" / "b.jsonl");
  const fs::path itself = dir.path / "attempts" / "b.jsonl";  // exists, but cannot be opened
  fs::create_symlink("b.jsonl", itself);
  CHECK_THROWS_WITH(read_shards(dir.path, ""), Catch::Contains("cannot be read. Is it yours?"));
  fs::remove(itself);
  CHECK(read_shards(dir.path, "").cells.size() == 1);
}

TEST_CASE("Started units are counted") {
  const ScratchDir dir;
  {
    Store store(dir.path, {}, false, process_of("x"), "shard-0");
    for (const int unit : {7, 3, 7}) store.begin(unit);
  }
  CHECK(ResultsFolder(dir.path, {}, "").shards().begun == std::map<int64_t, int32_t>{{3, 1}, {7, 2}});
}

TEST_CASE("Repeated cells with equal numbers are counted, whatever their times") {
  const ScratchDir dir;
  CellResult slow = result_of(0.5);
  slow.measures.attend_s = 100;
  Store(dir.path, {}, false, process_of("x"), "shard-0").publish(cell_of(0), slow);
  publish_from(dir.path, "shard-1", process_of("x"), 0.5);
  const Repeats repeats = repeats_in(dir.path, process_of("x"));
  CHECK(repeats.equal == 1);
  CHECK(repeats.elsewhere + repeats.replaced == 0);
}

TEST_CASE("Two different results on one instruction set are an error that names the column and both files") {
  const ScratchDir dir;
  publish_from(dir.path, "shard-0", process_of("x"), 0.5);
  publish_from(dir.path, "shard-1", process_of("x"), 0.25);
  CHECK_THROWS_AS(repeats_in(dir.path, process_of("x")), InconsistentError);
  CHECK_THROWS_WITH(repeats_in(dir.path, process_of("x")),
                    Catch::Contains("rel_err_out_mean (0.5 and 0.25)") && Catch::Contains("shard-0.") &&
                        Catch::Contains("shard-1.") && Catch::Contains("cpu avx2 single"));
}

TEST_CASE("Different results on another instruction set are counted, and the first counts") {
  for (const ProcessRecord& other : {process_of("x", "cpu", "avx512"), process_of("x", "cuda")}) {
    const ScratchDir dir;
    publish_from(dir.path, "shard-0", process_of("x"), 0.5);
    CellResult result = result_of(0.25);
    result.on_cpu = other.device == "cpu";
    Store(dir.path, {}, false, other, "shard-1").publish(cell_of(0), result);
    CHECK(repeats_in(dir.path, process_of("x")).elsewhere == 1);
  }
}

TEST_CASE("Results of older builds are replaced by this build's, and two older builds may contradict each other") {
  const ScratchDir dir;
  publish_from(dir.path, "shard-0", process_of("old"), 0.5);
  publish_from(dir.path, "shard-1", process_of("new"), 0.25);
  CHECK(repeats_in(dir.path, process_of("new")).replaced == 1);
  CHECK_THROWS_AS(repeats_in(dir.path, process_of("third")), InconsistentError);
}

TEST_CASE("The table says which instruction sets and devices computed its cells") {
  const ScratchDir dir;
  Store store(dir.path, {}, false, process_of("x"));
  store.publish(cell_of(0), result_of(0.5));
  store.publish(cell_of(1), result_of(0.5));
  store.finish(keys_of({cell_of(0), cell_of(1)}));
  const json meta = json::parse(text_of(dir.path / "results.meta.json"));
  CHECK(meta.at("computed_by") == json{{"cpu avx2 single 0.1 x", 2}});
}
