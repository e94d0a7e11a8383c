#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/version.hpp"
#include "exact/tile.hpp"
#include "kernels/kernels.hpp"
#include "tests/bench/rates/device.hpp"
#include "tests/bench/rates/plan.hpp"

// `bench` of the program kvreplay_bench, which `kvreplay bench` starts: the engine's rates as ratios to the machine's
// limits. It only measures and passes no verdict: a busy machine makes it slow, not wrong.

namespace kvreplay::app {
namespace {

constexpr int64_t kFewestTokens = 512, kUsualTokens = 4096, kQuickTokens = 1024;
constexpr int kUsualRounds = 5, kQuickRounds = 2, kSampledQueries = 256;
constexpr std::array<int64_t, 5> kBudgets = {64, 128, 256, 512, 1024};
constexpr std::array kMethods = {"{name: streaming_llm, positions: original}",
                                 "{name: h2o, gqa: {level: query}}",
                                 "uniform",
                                 "{name: snapkv, window: 64, kernel: 7, pool: avg}",
                                 "{name: balancekv, walk: paper, c: 0}",
                                 "{name: subgen, recent: 0}"};
// The measures that every contestant computes: outputs, their errors and one norm of the values.
constexpr const char* kMetrics = "metrics=[rel_err_out_mean, eps_frobenius_mean]";

struct BenchChoices {
  std::string trace, csv, blas, methods, device;
  std::optional<int64_t> tokens, layer, kv_head;
  std::optional<int> rounds;
  int jobs = 1;
  bool quick = false, json = false;
  int round_count() const { return rounds.value_or(quick ? kQuickRounds : kUsualRounds); }
};

using Settings = std::vector<std::string>;

std::vector<int64_t> budgets_up_to(int64_t tokens) {
  std::vector<int64_t> budgets;
  for (const int64_t b : kBudgets)
    if (b <= tokens) budgets.push_back(b);
  return budgets;
}

// Each method as YAML, in the order of Subject::methods.
std::vector<std::string> methods_of(const BenchChoices& choices) {
  if (choices.methods.empty()) return {kMethods.begin(), kMethods.end()};
  std::vector<std::string> methods;
  for (const std::string& name : split_list(choices.methods)) methods.push_back(json_text(name));
  return methods;
}

Settings common_settings(const std::vector<std::string>& methods, int64_t tokens) {
  return {fmt::format("methods=[{}]", join(methods)), "seeds.count=1", kMetrics,
          fmt::format("replay.tokens={}", tokens), fmt::format("replay.prefill={}", tokens / 2)};
}

int64_t tokens_of(const BenchChoices& choices) {
  const int64_t usual = choices.quick ? kQuickTokens : kUsualTokens;
  int64_t tokens = choices.tokens.value_or(usual);
  if (!choices.trace.empty() && !choices.tokens)
    tokens = std::min<int64_t>(usual, open_trace(choices.trace).info().prompts.front().tokens);
  if (tokens < kFewestTokens)
    throw ConfigError(fmt::format("--tokens {}: budgets from {} on need at least {} tokens", tokens, kBudgets.front(),
                                  kFewestTokens));
  return tokens;
}

Subject load_main(const BenchChoices& choices, const std::string& file, int64_t tokens) {
  Settings settings = common_settings(methods_of(choices), tokens);
  settings.push_back("budget.tokens=" + kvreplay::json_of(budgets_up_to(tokens / 4)));
  if (choices.layer) settings.push_back(fmt::format("select.layers=[{}]", *choices.layer));
  if (choices.kv_head) settings.push_back(fmt::format("select.kv_heads=[{}]", *choices.kv_head));
  return load_subject({file, settings});
}

// Streaming methods at one budget. The number of scored queries is independent of the length, so the reference costs no
// more per token on a long trace. Other rows have no strip, as on long traces.
Subject load_length(const std::vector<std::string>& methods, const std::string& file, int64_t tokens, int64_t budget) {
  const int64_t decoded = tokens - tokens / 4;
  Settings settings = common_settings(methods, tokens);
  settings.push_back("replay.prompt=stream");
  settings.push_back(fmt::format("replay.queries={{stride: {}}}", (decoded - 1) / kSampledQueries + 1));
  settings.push_back(fmt::format("budget.tokens=[{}]", budget));
  Subject subject = load_subject({file, settings});
  subject.options.strips_up_to = 0;
  return subject;
}

// Two lengths of a synthetic trace with the subject's shape.
struct Lengths {
  std::optional<Subject> one, four;
};
Lengths load_lengths(const BenchChoices& choices, const Subject& subject, int64_t tokens) {
  std::vector<std::string> methods = methods_of(choices), streaming;
  for (size_t m = 0; m < subject.methods.size(); ++m)
    if (subject.streams(m)) streaming.push_back(methods.at(m));
  if (streaming.empty()) return {};
  const HeadShape& shape = subject.stream.shape;
  const SyntheticTrace trace(4 * tokens, shape.heads, shape.dim, shape.v_dim);
  const int64_t budget = budgets_up_to(tokens / 4).back();
  return {load_length(streaming, trace.file(), tokens, budget),
          load_length(streaming, trace.file(), 4 * tokens, budget)};
}

// The load average of the last minute.
double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? std::round(100 * load) / 100 : 0;
}

nlohmann::json facts_of(const BenchChoices& choices, const Subject& subject, const Blas& blas) {
  const HeadStream<float>& s = subject.stream;
  return {{"version", version()},
          {"git_commit", git_commit()},
          {"compiler", compiler()},
          {"isa", isa_path()},
          {"widest_vectors", widest_vectors()},
          {"blas", blas.found() ? blas.name() : "none"},
          {"rounds", choices.round_count()},
          {"threads", choices.jobs},
          {"trace", choices.trace.empty() ? "synthetic" : choices.trace},
          {"layer", subject.cells.front().place.layer},
          {"tokens", s.tokens},
          {"prefill", s.prompt},
          {"query_heads", s.shape.heads},
          {"head_dim", s.shape.dim},
          {"v_head_dim", s.shape.v_dim},
          {"tile_rows", tile_rows(s.shape.heads)},
          {"device", choices.device.empty() ? "cpu" : choices.device}};
}

std::string header_of(const nlohmann::json& f) {
  const auto text = [&](const char* key) { return f.at(key).dump(); };
  const auto word = [&](const char* key) { return f.at(key).get<std::string>(); };
  return fmt::format(
      "instruction set {} (the processor has {}), BLAS {}\n"
      "trace {}: {} tokens, prefill {}, {} query heads of one kv head, d = {}, values {}\n"
      "{} rounds, {} threads, load average {} before and {} after; CPU time of the process{}\n\n",
      word("isa"), word("widest_vectors"), word("blas"), word("trace"), text("tokens"), text("prefill"),
      text("query_heads"), text("head_dim"), text("v_head_dim"), text("rounds"), text("threads"), text("load_before"),
      text("load_after"), word("device") == "cpu" ? "" : ", wall time of the device");
}

BenchTable measured(const BenchPlan& plan, const BenchChoices& choices, Console& console) {
  std::vector<Task> tasks;
  for (const BenchPlan::Entry& entry : plan.entries) tasks.push_back(entry.task);
  const auto times = measure_rounds(tasks, choices.round_count(), choices.jobs, [&](int round) {
    console.note(fmt::format("round {} of {}, {} measurements", round, choices.round_count(), tasks.size()));
  });
  BenchTable table;
  for (size_t i = 0; i < times.size(); ++i)
    table.rates.push_back(
        {plan.entries[i].task.name, times[i], plan.entries[i].task.clock, plan.entries[i].work, plan.entries[i].unit});
  table.ratios = ratios_of(table.rates, plan.ratios);
  return table;
}

// Without text it only checks that the file can be written, and leaves an older file unchanged.
void write_file(const std::string& file, const std::string& text) {
  std::ofstream out(file, text.empty() ? std::ios::app : std::ios::binary);
  if (!(out << text).flush())
    throw OutputError(fmt::format("--csv {}: cannot be written. Name a file in a folder that exists", file));
}

int bench(const BenchChoices& choices, Console& console) {
  const Blas blas(choices.blas);
  const int64_t tokens = tokens_of(choices);
  if (!choices.csv.empty()) write_file(choices.csv, "");  // reports a bad path now, not after minutes
  std::unique_ptr<SyntheticTrace> made;
  if (choices.trace.empty()) made = std::make_unique<SyntheticTrace>(tokens, 3, 64, 64);
  const Subject main = load_main(choices, made ? made->file() : choices.trace, tokens);
  made.reset();  // the data are in memory, and an interrupted bench leaves no file
  const bool alone = choices.device.empty();
  const Lengths lengths = alone ? load_lengths(choices, main, tokens) : Lengths{};

  BenchPlan plan;
  if (alone) add_limits(plan, blas), add_kernels(plan, main);
  add_replays(plan, main);
  if (lengths.one) add_lengths(plan, *lengths.one, *lengths.four);
  if (!alone) add_device(plan, main, choices.device);
  nlohmann::json facts = facts_of(choices, main, blas);
  facts["load_before"] = load_average();
  const BenchTable table = measured(plan, choices, console);
  facts["load_after"] = load_average();

  if (!choices.csv.empty()) write_file(choices.csv, csv_of(table));
  const std::string facts_json = facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  print(choices.json ? json_of(table, facts_json) : header_of(facts) + text_of(table));
  if (alone && !blas.found())
    console.note("no OpenBLAS was found, so no product stands beside the engine's: name one with --blas");
  return 0;
}

}  // namespace

void add_bench(Command& program) {
  const auto choices = std::make_shared<BenchChoices>();
  Command command = program.command("bench", "the engine's rates beside the machine's limits, as ratios");
  command.option("--trace", choices->trace, "a trace instead of a synthetic head").type("FILE");
  command.option("--layer", choices->layer, "number of the trace's layer (default: the first)");
  command.option("--kv-head", choices->kv_head, "number of the kv head, from 0 (default: the first)");
  command.option("--tokens", choices->tokens, "length in tokens (default: at most 4096 of the trace's)");
  command.option("--method", choices->methods, "methods: h2o,tova (default: six of them)").type("LIST");
  command.option("--rounds", choices->rounds, "number of measurements of each; the shortest time counts (default: 5)")
      .within(1, 1000);
  command.option("-j,--jobs", choices->jobs, "copies that run at a time; times are for one copy")
      .within(1, 1024)
      .shows_default();
  command
      .option("--device", choices->device,
              "compare a device (`kvreplay list devices`) with one core, instead of the machine's limits")
      .type("NAME");
  command.flag("--quick", choices->quick, "1,024 tokens and 2 rounds: a quick look, not a result");
  command.option("--blas", choices->blas, "a shared library of OpenBLAS (default: the system's)").type("FILE");
  command.option("--csv", choices->csv, "also write every rate and ratio as CSV").type("FILE");
  command.flag("--json", choices->json, "JSON on stdout instead of tables");
  command.footer(
      "examples:\n"
      "  kvreplay bench --quick                                      (takes seconds; a quick look)\n"
      "  kvreplay bench --trace TRACE.h5 --layer 15 --csv rates.csv\n");
  command.runs([choices](Context& context) { return bench(*choices, context.console); });
}

}  // namespace kvreplay::app
