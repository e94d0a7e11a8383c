#pragma once
#include <nlohmann/json.hpp>

#include "plan/plan.hpp"
#include "sweep/manifest.hpp"
#include "trace/files.hpp"
#include "trace/synth.hpp"

// A small sweep over a synthetic trace of two layers with two kv heads.

namespace sweep_test {

using namespace kvreplay;
namespace fs = std::filesystem;
using nlohmann::json;

inline fs::path small_trace(const fs::path& file, uint64_t seed = 0) {
  SynthOptions options;
  options.tokens = 96, options.prompt = 64, options.layers = 2;
  options.q_heads = 4, options.kv_heads = 2, options.head_dim = 16, options.v_head_dim = 16;
  options.seed = seed;
  write_synthetic_trace(options, file);
  return file;
}

struct Planned {
  RunConfig config;
  std::vector<TraceInfo> traces;
  std::vector<Cell> cells;
  Manifest manifest;
};

// `more`: lines of the configuration after `traces`.
inline Planned plan_of(const Folder& folder, const std::string& more) {
  if (!fs::exists(folder / "t.h5")) small_trace(folder / "t.h5");
  const std::string text = "schema: 1\nname: small\ntraces: [t.h5]\n" + more;
  const LoadedRun loaded = load_run(text, folder / "", "c.yaml", {}, registry());
  Planned planned{with_absolute_paths(loaded.config), loaded.traces, {}, {}};
  planned.cells = plan_cells(planned.config, planned.traces);
  planned.manifest = make_manifest(planned.config, planned.traces, planned.cells);
  return planned;
}

inline const char* kTwoBudgets = "methods: [exact, h2o, uniform]\nbudget: {tokens: [16, 32]}\nseeds: {count: 2}\n";

}  // namespace sweep_test
