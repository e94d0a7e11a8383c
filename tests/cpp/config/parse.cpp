#include <catch2/catch.hpp>

#include "config/stub.hpp"
#include "formats/registry.hpp"

// Valid configurations and their parsed form.

using namespace kvreplay;
using config_stub::parse;

TEST_CASE("A configuration of four lines has the documented defaults") {
  const RunConfig c = parse("methods: [keeper]\nbudget: {tokens: [64, 128]}\n");
  CHECK(c.name == "run");
  REQUIRE(c.traces.size() == 1);
  CHECK(c.traces[0].filename() == "a.h5");
  CHECK_FALSE(c.select.prompts);
  CHECK_FALSE(c.select.layers);
  CHECK_FALSE(c.replay.tokens);
  CHECK_FALSE(c.replay.prefill);
  CHECK_FALSE(c.replay.prompt_streams);
  CHECK(c.replay.needles.at.empty());
  CHECK(c.replay.queries == RunConfig::Replay::Queries::all);
  CHECK(c.seed_first == 0);
  CHECK(c.seed_count == 5);
  CHECK(c.run.jobs == 0);
  CHECK(c.run.device == "cpu");
  CHECK_FALSE(c.run.double_precision);
  CHECK_FALSE(c.output.kept);
  CHECK(c.output.dir.empty());
  CHECK(c.budget.values == std::vector<double>{64, 128});
  CHECK(c.warnings.empty());
}

TEST_CASE("A bare method name takes the declared defaults, and derived values stay unset") {
  const RunConfig c = parse("methods: [guardian]\nbudget: {tokens: 64}\n");
  REQUIRE(c.methods.size() == 1);
  const MethodInstance& m = c.methods[0];
  CHECK(std::string(m.method().info.name) == "keeper");
  CHECK(config_stub::params_of(c, 0) ==
        nlohmann::json{{"sinks", 4}, {"recent", nullptr}, {"share", 0.5}, {"strict", false}, {"first", 0}});
  CHECK(m.options.positions == Positions::cache);
  CHECK(m.options.phase == Phase::stream);
  CHECK(m.mark.line == 3);
  CHECK(m.mark.column == 11);
}

TEST_CASE("Needles are those of the trace if the configuration says so") {
  const RunConfig c = parse("methods: [keeper]\nbudget: {tokens: 64}\nreplay: {needles: recorded}\n");
  CHECK(c.replay.needles.recorded);
  CHECK(c.replay.needles.any());
  CHECK(c.replay.needles.at.empty());
  CHECK_FALSE(RunConfig{}.replay.needles.any());
}

TEST_CASE("Every part of a full configuration is read") {
  const RunConfig c = parse(
      "name: full\n"
      "select: {prompts: [p0], layers: [0, 7], kv_heads: 2}\n"
      "replay: {tokens: 1000, prefill: 700, prompt: stream, queries: {stride: 16}, needles: {at: "
      "[0, 0.4], tokens: 8}}\n"
      "methods:\n"
      "  - {name: keeper, sinks: 2, recent: 10, share: 1, strict: true, first: random, phase: stream,\n"
      "     positions: original, order: evict_then_attend, gqa: {level: query, agg: max}, row_format: "
      "source}\n"
      "budget: {fraction_kept: [0.05, 1]}\n"
      "seeds: {first: 3, count: 2}\n"
      "metrics: [rel_err_out_mean]\n"
      "run: {device: cpu, jobs: 3, precision: double, audit: true}\n"
      "output: {dir: results/x, save: [curves, kept, outputs]}\n");
  CHECK(c.name == "full");
  CHECK(*c.select.prompts == std::vector<std::string>{"p0"});
  CHECK(*c.select.layers == std::vector<int32_t>{0, 7});
  CHECK(*c.select.kv_heads == std::vector<int32_t>{2});
  CHECK(c.replay.tokens == 1000);
  CHECK(c.replay.prefill == 700);
  CHECK(c.replay.prompt_streams);
  CHECK(c.replay.queries == RunConfig::Replay::Queries::stride);
  CHECK(c.replay.queries_count == 16);
  CHECK(c.replay.needles.at == std::vector<double>{0, 0.4});
  CHECK(c.replay.needles.tokens == 8);
  const MethodInstance& m = c.methods.at(0);
  CHECK(config_stub::params_of(c, 0) ==
        nlohmann::json{{"sinks", 2}, {"recent", 10}, {"share", 1.0}, {"strict", true}, {"first", "random"}});
  CHECK(m.options.positions == Positions::original);
  CHECK(m.options.order == Order::evict_then_attend);
  CHECK(m.options.gqa_level == GqaLevel::query);
  CHECK(m.options.gqa_aggregate == Aggregate::max);
  CHECK(c.budget.kind == BudgetList::Kind::fraction_kept);
  CHECK(c.seed_first == 3);
  CHECK(c.seed_count == 2);
  CHECK(c.metrics == std::vector<std::string>{"rel_err_out_mean"});
  CHECK(c.run.jobs == 3);
  CHECK(c.run.double_precision);
  CHECK(c.run.audit);
  CHECK(c.output.dir.filename() == "x");
  CHECK(c.output.dir.is_absolute());
  CHECK((c.output.curves && c.output.kept && c.output.outputs));
}

TEST_CASE("Lists are sweep axes and the last one varies fastest") {
  const RunConfig c = parse(
      "methods:\n  - {name: pooler, kernel: [1, 3], pool: [max, avg]}\n  - {name: pooler, gqa.agg: [mean, "
      "max]}\n");
  REQUIRE(c.methods.size() == 6);
  const auto text = [&](size_t i) {
    const nlohmann::json params = config_stub::params_of(c, i);
    return params["kernel"].dump() + params["pool"].get<std::string>() + word(c.methods[i].options.gqa_aggregate);
  };
  CHECK(text(0) == "1maxsum");
  CHECK(text(1) == "1avgsum");
  CHECK(text(2) == "3maxsum");
  CHECK(text(3) == "3avgsum");
  CHECK(text(4) == "7maxmean");
  CHECK(text(5) == "7maxmax");
}

TEST_CASE("Overrides change values, entries of lists and bare method names") {
  const std::string rest = "methods: [keeper, pooler]\nbudget: {tokens: [64]}\n";
  const RunConfig c = parse(rest, {"budget.tokens=[32, 48]", "methods.0.sinks=[1, 2]", "methods.1.gqa.level=query",
                                   "seeds.count=2", "select.layers=3", "name='a b'"});
  CHECK(c.budget.values == std::vector<double>{32, 48});
  REQUIRE(c.methods.size() == 3);
  CHECK(config_stub::params_of(c, 1)["sinks"] == 2);
  CHECK(c.methods[2].options.gqa_level == GqaLevel::query);
  CHECK(c.seed_count == 2);
  CHECK(*c.select.layers == std::vector<int32_t>{3});
  CHECK(c.name == "a b");
}

TEST_CASE("An override reaches a key that holds a point") {
  const RunConfig c = parse("methods:\n  - {name: pooler, gqa.level: kv}\n", {"methods.0.gqa.level=query"});
  CHECK(c.methods.at(0).options.gqa_level == GqaLevel::query);
}

TEST_CASE("Aliases are copied where they stand") {
  const RunConfig c =
      parse("methods:\n  - {name: pooler, kernel: &k [1, 3]}\n  - {name: pooler, kernel: *k, pool: avg}\n");
  CHECK(c.methods.size() == 4);
}

TEST_CASE("All spellings of whole and real numbers are read alike") {
  const RunConfig c = parse("methods:\n  - {name: keeper, share: 2.5e-1, sinks: +3}\nbudget: {bytes: [4096]}\n");
  CHECK(config_stub::params_of(c, 0)["share"] == 0.25);
  CHECK(config_stub::params_of(c, 0)["sinks"] == 3);
  CHECK(c.budget.kind == BudgetList::Kind::bytes);
}

TEST_CASE("A share of the cache leaves the bytes open, unless a key names them") {
  const RunConfig open = parse("methods: [keeper]\nbudget: {share_of_cache: [0.1, 1]}\n");
  CHECK(open.budget.has_shares());
  CHECK(open.budget.shares == std::vector<double>{0.1, 1});
  CHECK_FALSE(open.budget.of);
  CHECK(nlohmann::json::parse(resolved_json(open))["budget"].dump() == R"({"share_of_cache":[0.1,1]})");
  const RunConfig peak = parse("methods: [keeper]\nbudget: {share_of_cache: [0.1, 1], of: peak}\n");
  CHECK(peak.budget.of == BudgetList::Of::peak);
  CHECK(nlohmann::json::parse(resolved_json(peak))["budget"].dump() == R"({"of":"peak","share_of_cache":[0.1,1]})");
  const RunConfig mean = parse("methods: [keeper]\nbudget: {share_of_cache: 0.2, of: mean}\n");
  CHECK(mean.budget.of == BudgetList::Of::mean);
  CHECK(nlohmann::json::parse(resolved_json(mean))["budget"].dump() == R"({"of":"mean","share_of_cache":[0.2]})");
  const RunConfig prompt = parse("methods: [keeper]\nbudget: {share_of_cache: 0.2, of: prompt}\n");
  CHECK(prompt.budget.of == BudgetList::Of::prompt);
  CHECK(nlohmann::json::parse(resolved_json(prompt))["budget"].dump() == R"({"of":"prompt","share_of_cache":[0.2]})");
}

TEST_CASE("A prompt is a number of tokens or a share of all tokens") {
  const std::string keeper = "methods: [keeper]\nbudget: {tokens: 9}\nreplay: ";
  const RunConfig share = parse(keeper + "{prefill: 0.75}\n"), tokens = parse(keeper + "{prefill: 1}\n");
  CHECK(share.replay.prefill_share == 0.75);
  CHECK_FALSE(share.replay.prefill);
  CHECK(nlohmann::json::parse(resolved_json(share))["replay"]["prefill"] == 0.75);
  CHECK(tokens.replay.prefill == 1);
  CHECK_FALSE(tokens.replay.prefill_share);
}

TEST_CASE("Budgets become tokens by one rule") {
  LayerInfo layer;
  layer.head_dim = 64;
  layer.v_head_dim = 32;
  layer.dtype = DType::bfloat16;
  CHECK(budget_tokens(BudgetList::Kind::tokens, 77, 768, layer, {}) == 77);
  CHECK(budget_tokens(BudgetList::Kind::fraction_kept, 0.1, 768, layer, {}) == 76);
  CHECK(budget_tokens(BudgetList::Kind::fraction_kept, 0.0001, 768, layer, {}) == 1);
  CHECK(budget_tokens(BudgetList::Kind::bytes, 1000, 768, layer, {}) == 5);  // a row takes (64 + 32) * 2 bytes
  CHECK(budget_tokens(BudgetList::Kind::bytes, 100, 768, layer, {}) == 0);
  // int4: 48 bytes of codes; key and value each have an offset and a step of 2 bytes
  CHECK(budget_tokens(BudgetList::Kind::bytes, 1000, 768, layer, kvreplay::row_format("int4")) == 17);
  CHECK(budget_tokens(BudgetList::Kind::bytes, 1000, 768, layer, kvreplay::row_format("f32")) == 2);
}

TEST_CASE("The resolved configuration is a configuration again") {
  const RunConfig c = parse("methods:\n  - {name: keeper, sinks: [1, 2]}\nbudget: {tokens: [8]}\n");
  nlohmann::json resolved = nlohmann::json::parse(resolved_json(c));
  resolved.erase("output");
  resolved["traces"] = {"a.h5"};
  const config_stub::Folder folder;
  const RunConfig again = parse_config(resolved.dump(), folder.path, "r.yaml", {}, config_stub::methods());
  CHECK(again.methods.size() == 2);
  CHECK(config_stub::params_of(again, 1) == config_stub::params_of(c, 1));
}
