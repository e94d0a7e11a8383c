#include <catch2/catch.hpp>
#include <fstream>

#include "config/stub.hpp"

// Files that a configuration names, and the checks that need the traces.

using namespace kvreplay;
using config_stub::trace_of;
namespace fs = std::filesystem;

namespace {

// The messages without the folder's path, and the exit code.
std::pair<std::string, int> load(const fs::path& folder, const std::string& text) {
  std::ofstream(folder / "c.yaml") << text;
  try {
    load_config(folder / "c.yaml", {}, config_stub::methods());
  } catch (const UserError& e) {
    std::string message = e.what();
    const std::string prefix = folder.string() + "/";
    for (size_t at = message.find(prefix); at != std::string::npos; at = message.find(prefix))
      message.erase(at, prefix.size());
    return {message, e.exit_code()};
  }
  return {"", 0};
}

struct Checked {
  std::vector<std::string> problems, warnings;
};
Checked check(const std::string& rest, const TraceInfo& trace) {
  RunConfig config = config_stub::parse(rest);
  Checked checked;
  select(config, {trace}, checked.problems);
  checked.warnings = config.warnings;
  return checked;
}
using Lines = std::vector<std::string>;

const std::string kKeeper = "methods: [keeper]\nbudget: {tokens: [64]}\n";

}  // namespace

TEST_CASE("A missing trace names its neighbours, and alone it is exit code 3") {
  const config_stub::Folder folder;
  std::ofstream(folder.path / "smollm.h5");
  CHECK(load(folder.path, "schema: 1\ntraces: [smolm.h5]\nmethods: [pooler]\n") ==
        std::pair<std::string, int>("c.yaml:2:10: error: no trace smolm.h5 (did you mean smollm.h5?)", 3));
  CHECK(load(folder.path, "schema: 1\ntraces: [other.h5]\nmethods: [pooler]\n").first ==
        "c.yaml:2:10: error: no trace other.h5: that folder holds a.h5, smollm.h5");
  CHECK(load(folder.path, "schema: 1\ntraces: [smolm.h5]\nmethods: [poolr]\n").second == 2);
  const std::string bare = (folder.path / "bare.h5").string();
  CHECK_THROWS_WITH(load_run("", {"schema=1", "traces=[" + bare + "]", "methods=[pooler]"}, config_stub::methods(), {}),
                    "no trace " + bare + ": that folder holds a.h5, smollm.h5");
}

TEST_CASE("An unfinished dump is reported as unfinished") {
  const config_stub::Folder folder;
  std::ofstream(folder.path / "b.h5.part");
  CHECK(load(folder.path, "schema: 1\ntraces: [b.h5]\nmethods: [pooler]\n").first ==
        "c.yaml:2:10: error: b.h5 does not exist, only b.h5.part: the dump is unfinished, run `kvreplay record` "
        "again with --resume");
  CHECK(load(folder.path, "schema: 1\ntraces: [b.h5.part]\nmethods: [pooler]\n").first ==
        "c.yaml:2:10: error: b.h5.part is an unfinished dump: run `kvreplay record` again with --resume, then use the "
        "file without .part");
}

TEST_CASE("A folder is a trace when it holds an index") {
  const config_stub::Folder folder;
  fs::create_directories(folder.path / "dump");
  CHECK(load(folder.path, "schema: 1\ntraces: [dump]\nmethods: [pooler]\n").first ==
        "c.yaml:2:10: error: dump is a folder without an index.h5");
  std::ofstream(folder.path / "dump" / "index.h5");
  CHECK(load(folder.path, "schema: 1\ntraces: [dump]\nmethods: [pooler]\n").second == 0);
}

TEST_CASE("An output directory that cannot be written is reported before anything runs") {
  const config_stub::Folder folder;
  CHECK(load(folder.path, "schema: 1\ntraces: [a.h5]\nmethods: [pooler]\noutput: {dir: a.h5/x}\n").first ==
        "c.yaml:4:15: error: cannot write to output.dir a.h5/x: a.h5 is not a directory. Choose another with "
        "-o DIR");
  CHECK(load(folder.path, "schema: 1\ntraces: [a.h5]\nmethods: [pooler]\noutput: {dir: new/x}\n").second == 0);
  CHECK_FALSE(fs::exists(folder.path / "new"));
}

TEST_CASE("A missing file of uniforms is reported") {
  const config_stub::Folder folder;
  CHECK(load(folder.path, "schema: 1\ntraces: [a.h5]\nmethods: [{name: pooler, uniforms: u.h5}]\n").first ==
        "c.yaml:3:36: error: no file u.h5 with uniforms (the path is relative to this file)");
}

TEST_CASE("A missing configuration names its neighbours") {
  const config_stub::Folder folder;
  std::ofstream(folder.path / "quick.yaml");
  CHECK_THROWS_WITH(load_config(folder.path / "quik.yaml", {}, config_stub::methods()),
                    (folder.path / "quik.yaml").string() + ": error: no such file (did you mean quick.yaml?)");
}

TEST_CASE("A configuration that fits its trace has no problems") {
  const Checked checked = check(kKeeper, trace_of(2, 200));
  CHECK(checked.problems.empty());
  CHECK(checked.warnings.empty());
}

TEST_CASE("Layers, heads and prompts that a trace lacks are reported with those it has") {
  CHECK(check(kKeeper + "select: {layers: [1, 7], kv_heads: [1, 2], prompts: [p0, q]}\n", trace_of(3, 200)).problems ==
        Lines{"c.yaml:5:22: error: a.h5 has no layer 7: take some of 0-2",
              "c.yaml:5:40: error: a.h5 has no kv head 2 (layer 1): take some of 0-1",
              "c.yaml:5:58: error: a.h5 has no prompt q. It holds p0"});
}

TEST_CASE("Tokens beyond the trace are an error") {
  CHECK(
      check(kKeeper + "replay: {tokens: 300}\n", trace_of(1, 200)).problems ==
      Lines{"c.yaml:5:18: error: replay.tokens is 300, but a.h5 has 200 tokens: write at most 200, or leave it out for "
            "all"});
  CHECK(
      check(kKeeper + "replay: {tokens: 90}\n", trace_of(1, 200)).problems ==
      Lines{"c.yaml:5:18: error: the prompt call takes 100 tokens (as recorded), but only 90 of a.h5 are replayed: set "
            "replay.prefill below 90"});
}

TEST_CASE("Prompts that are too short are one mistake, with the bound that fits all") {
  TraceInfo trace = trace_of(1, 200);
  for (const auto& [id, tokens] : {std::pair{"p1", 150}, {"p2", 400}}) {
    trace.prompts.push_back(trace.prompts[0]);
    trace.prompts.back().id = id, trace.prompts.back().tokens = tokens;
  }
  CHECK(check(kKeeper + "replay: {tokens: 300}\n", trace).problems ==
        Lines{"c.yaml:5:18: error: replay.tokens is 300, but a.h5 has 150 to 200 tokens (prompts p0 and p1): write at "
              "most 150, or leave it out for all"});
}

TEST_CASE("A mistake of several layers and methods is one message") {
  TraceInfo trace = trace_of(7, 200);
  for (LayerInfo& layer : trace.prompts[0].layers)
    if (layer.layer != 3) layer.query_rows = 50 + layer.layer / 6;
  CHECK(check("methods: [keeper, {name: keeper, sinks: 2}]\nbudget: {tokens: [64]}\n", trace).problems ==
        Lines{"c.yaml:3:11: error: keeper needs every query of the prompt, but a.h5 holds only 50 of 200 or 51 of 200 "
              "(layers 0-2, 4-6): record them with `kvreplay record --query-stride 1`"});
}

TEST_CASE("A prompt that leaves nothing to score needs kept sets") {
  const std::string prefill = kKeeper + "replay: {prefill: 200}\n";
  CHECK(
      check(prefill, trace_of(1, 200)).problems ==
      Lines{"c.yaml:5:19: error: the prompt call takes all 200 tokens of a.h5, so no decode row is left to score: set "
            "replay.prefill below 200, or write output: {save: [kept]} to keep the sets alone"});
  CHECK(check(prefill + "output: {save: kept}\n", trace_of(1, 200)).problems.empty());
}

TEST_CASE("Budgets below the protected tokens are reported once, at the parameter, with the least that works") {
  CHECK(check("methods: [{name: keeper, sinks: 9}]\nbudget: {tokens: [8, 64, 5]}\n", trace_of(3, 200)).problems ==
        Lines{"c.yaml:3:33: error: keeper: sinks 9 exceed the budget of 8 or 5: at least 9"});
}

TEST_CASE("A budget that never evicts, or is zero tokens, is a warning") {
  CHECK(check("methods: [keeper]\nbudget: {tokens: [64, 200]}\n", trace_of(2, 200)).warnings ==
        Lines{"c.yaml:4:23: warning: a budget of 200 tokens never evicts: 200 tokens are replayed"});
  CHECK(check("methods: [{name: keeper, sinks: 0}]\nbudget: {fraction_kept: [0.001]}\n", trace_of(2, 200)).warnings ==
        Lines{"c.yaml:4:26: warning: 0.001 of 100 tokens is less than one: 1 token is kept"});
  CHECK(check("methods: [{name: keeper, sinks: 0}]\nbudget: {bytes: [10]}\n", trace_of(1, 200)).problems ==
        Lines{"c.yaml:4:18: error: a budget of 10 bytes holds no token: one takes 64"});
  CHECK(check("methods: [{name: keeper, sinks: 0, row_format: int4}]\nbudget: {bytes: [40]}\n", trace_of(1, 200))
            .problems.empty());
  CHECK(check("methods: [{name: keeper, sinks: 0, row_format: int8}]\nbudget: {bytes: [10]}\n", trace_of(1, 200))
            .problems == Lines{"c.yaml:4:18: error: a budget of 10 bytes holds no token: one takes 24"});
}

TEST_CASE("Strided queries and a trace without positions are refused for methods that need them") {
  TraceInfo trace = trace_of(1, 200);
  trace.prompts[0].layers[0].query_rows = 50;
  trace.prompts[0].layers[0].rope_recorded = false;
  CHECK(check(kKeeper, trace).problems ==
        Lines{"c.yaml:3:11: error: keeper needs the rotary embedding, which a.h5 lacks, to re-assign positions (layer "
              "0): write {name: keeper, positions: original}, or record it again with `kvreplay record`",
              "c.yaml:3:11: error: keeper needs every query of the prompt, but a.h5 holds only 50 of 200 (layer "
              "0): record them with `kvreplay record --query-stride 1`"});
  CHECK(check("methods: [pooler]\n", trace).problems.empty());
}
