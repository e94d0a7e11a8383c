#include <fmt/core.h>

#include <map>
#include <memory>

#include "apps/commands.hpp"
#include "trace/synth.hpp"

// `kvreplay synth`: a trace with planted structure.

namespace kvreplay::app {
namespace {

struct SynthChoices {
  SynthOptions trace;
  std::string out, dtype;
  bool no_rope = false;
};

int synth(SynthChoices& choices, Console& console) {
  const std::map<std::string, SynthOptions::Type> types = {{"f32", SynthOptions::Type::float32},
                                                           {"f16", SynthOptions::Type::float16},
                                                           {"bf16", SynthOptions::Type::bfloat16}};
  if (!choices.dtype.empty()) choices.trace.type = types.at(choices.dtype);
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
  add("--tokens", t.tokens, "tokens");
  add("--prompt", t.prompt, "tokens of the prompt");
  add("--layers", t.layers, "layers");
  add("--q-heads", t.q_heads, "query heads");
  add("--kv-heads", t.kv_heads, "key/value heads");
  add("--head-dim", t.head_dim, "numbers of a key and of a query");
  add("--v-head-dim", t.v_head_dim, "numbers of a value");
  add("--clusters", t.clusters, "topics the keys drift through; 0: isotropic keys");
  add("--cluster-spread", t.cluster_spread, "standard deviation inside a topic, in units of a key's coordinate");
  add("--sinks", t.sinks, "first tokens that every query likes");
  add("--sink-strength", t.sink_strength, "their advantage in logits");
  add("--heavy-share", t.heavy_share, "share of tokens that many queries like");
  add("--heavy-strength", t.heavy_strength, "their advantage in logits");
  add("--key-norm", t.key_norm, "factor on all keys, undone in the queries");
  add("--query-norm", t.query_norm, "factor on all queries, and so on all logits");
  add("--value-norm-spread", t.value_norm_spread, "standard deviation of ln |v|");
  add("--duplicates", t.duplicates, "every N-th token repeats an earlier key and value; 0: none");
  add("--seed", t.seed, "seed");
  command.flag("--no-rope", choices->no_rope, "no rotary embedding");
  command.flag("--with-out", t.with_out, "also write the exact attention output");
  command.option("--dtype", choices->dtype, "f32, f16 or bf16").one_of({"f32", "f16", "bf16"}).type("TYPE");
  command.runs([choices](Context& context) { return synth(*choices, context.console); });
}

}  // namespace kvreplay::app
