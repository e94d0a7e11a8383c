#include <fmt/core.h>

#include <filesystem>
#include <map>
#include <memory>

#include "apps/commands.hpp"
#include "base/errors.hpp"
#include "trace/synth.hpp"

// `kvreplay synth`: writes a trace with planted structure.

namespace kvreplay::app {
namespace {

struct SynthChoices {
  SynthOptions trace;
  std::string out, dtype = "f32";
  bool no_rope = false, force = false;
};

int synth(SynthChoices& choices, Console& console) {
  const std::map<std::string, SynthOptions::Type> types = {{"f32", SynthOptions::Type::float32},
                                                           {"f16", SynthOptions::Type::float16},
                                                           {"bf16", SynthOptions::Type::bfloat16}};
  std::error_code ignored;
  if (!choices.force && std::filesystem::exists(choices.out, ignored))
    throw ConfigError(
        fmt::format("{}: exists; overwrite it with --force, or choose another file with -o", choices.out));
  choices.trace.type = types.at(choices.dtype);
  choices.trace.rope = !choices.no_rope;
  write_synthetic_trace(choices.trace, choices.out);
  console.note("wrote " + choices.out);
  return 0;
}

}  // namespace

void add_synth(Command& app) {
  const auto choices = std::make_shared<SynthChoices>();
  SynthOptions& t = choices->trace;
  Command command =
      app.command("synth", "a synthetic trace with planted structure (clusters, sinks, heavy hitters, norms)");
  command.option("-o,--out", choices->out, "the trace to write").required().type("FILE");
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.option(name, value, help).shows_default();
  };
  add("--tokens", t.tokens, "length, in tokens, the prompt included");
  add("--prompt", t.prompt, "length of the prompt, in tokens");
  add("--layers", t.layers, "number of layers");
  add("--q-heads", t.q_heads, "query heads in a layer");
  add("--kv-heads", t.kv_heads, "key/value heads in a layer; they divide the query heads");
  add("--head-dim", t.head_dim, "numbers of a key and of a query");
  add("--v-head-dim", t.v_head_dim, "numbers of a value");
  add("--clusters", t.clusters, "topics the keys drift through; 0: isotropic keys");
  add("--cluster-spread", t.cluster_spread,
      "standard deviation inside a topic, in units of a coordinate of a topic's key");
  add("--sinks", t.sinks, "how many first tokens every query likes");
  add("--sink-strength", t.sink_strength, "advantage of the sinks, in logits");
  add("--heavy-share", t.heavy_share, "share of tokens that many queries like, 0 to 1");
  add("--heavy-strength", t.heavy_strength, "advantage of these tokens, in logits");
  add("--key-norm", t.key_norm, "factor on all keys, undone in the queries");
  add("--query-norm", t.query_norm, "factor on all queries, and so on all logits");
  add("--value-norm-spread", t.value_norm_spread, "standard deviation of ln |v|");
  add("--duplicates", t.duplicates, "every N-th token repeats an earlier key and value; 0: none");
  add("--seed", t.seed, "seed of the random numbers: the same seed gives the same trace");
  command.flag("--no-rope", choices->no_rope, "no rotary embedding (default: rotated, theta 10000)");
  command.flag("--with-out", t.with_out, "also write the exact attention output (default: not)");
  command.flag("--force", choices->force, "overwrite FILE (default: it is kept, exit code 2)");
  command.option("--dtype", choices->dtype, "type of the stored numbers")
      .one_of({"f32", "f16", "bf16"})
      .shows_default();
  command.footer(
      "examples:\n"
      "  kvreplay synth -o toy.h5                                    (1,024 tokens, 1 layer, 3 kv heads)\n"
      "  kvreplay synth -o long.h5 --tokens 16384 --prompt 16000 --layers 4 --dtype bf16\n"
      "  kvreplay run toy.h5 --method h2o,snapkv --budget 64,256 -o out/toy\n");
  command.runs([choices](Context& context) { return synth(*choices, context.console); });
}

}  // namespace kvreplay::app
