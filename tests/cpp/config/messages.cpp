#include <catch2/catch.hpp>

#include "config/stub.hpp"

// Every message of a bad configuration, word for word.

using namespace kvreplay;
using config_stub::errors;
using config_stub::errors_of_text;

namespace {
const std::string kGood = "methods: [keeper]\nbudget: {tokens: [64]}\n";  // lines 3 and 4
}

TEST_CASE("The message about an unknown key suggests the nearest key") {
  CHECK(errors(kGood + "sedes: {count: 2}\n") == "c.yaml:5:1: error: unknown key \"sedes\" (did you mean seeds?)");
  CHECK(errors(kGood + "run: {job: 2}\n") == "c.yaml:5:7: error: unknown key \"job\" in run (did you mean jobs?)");
  CHECK(errors(kGood + "prefill: 7\n") == "c.yaml:5:1: error: unknown key \"prefill\": it belongs under replay");
  CHECK(errors(kGood + "seeds: {xyzzy: 7}\n") ==
        "c.yaml:5:9: error: unknown key \"xyzzy\" in seeds: the keys here are first, count");
}

TEST_CASE("The message about an unknown method suggests the nearest method") {
  CHECK(errors("methods: [keepr]\nbudget: {tokens: [64]}\n") ==
        "c.yaml:3:11: error: unknown method \"keepr\" (did you mean keeper?): see kvreplay list methods");
  CHECK(errors("methods:\n  - keeper: {sinks: 2}\nbudget: {tokens: [64]}\n") ==
        "c.yaml:4:5: error: write {name: keeper, ...} with the parameters beside the name");
  CHECK(errors("methods: [{sinks: 2}]\n") ==
        "c.yaml:3:11: error: the method's name is missing: write {name: h2o, ...}");
  CHECK(errors("methods: {name: keeper}\n") ==
        "c.yaml:3:10: error: methods is a map and must be a list: one method a line, each after \"- \"");
}

TEST_CASE("The message about a parameter of another method names that method") {
  CHECK(errors("methods: [{name: pooler, sinks: 2}]\n") ==
        "c.yaml:3:26: error: \"sinks\" is a parameter of keeper, not of pooler");
  CHECK(errors("methods: [{name: pooler, kernal: 3}]\n") ==
        "c.yaml:3:26: error: unknown parameter \"kernal\" of pooler (did you mean kernel?): see kvreplay "
        "describe pooler");
}

TEST_CASE("A repeated key is refused, with the line of the first") {
  CHECK(errors(kGood + "budget: {tokens: [32]}\n") ==
        "c.yaml:5:1: error: the key \"budget\" is given twice (first on line 4): remove one");
  CHECK(errors("methods: [{name: pooler, gqa.level: kv, gqa: {level: query}}]\n") ==
        "c.yaml:3:47: error: gqa.level is given twice");
}

TEST_CASE("The message about a share above one suggests both possible meanings") {
  CHECK(errors("methods: [keeper]\nbudget: {fraction_kept: 5}\n") ==
        "c.yaml:4:25: error: fraction_kept is 5 and must be in (0, 1]. 5 %? write 0.05. 5 tokens? use "
        "budget: {tokens: [5]}");
  CHECK(errors("methods: [keeper]\nbudget: {fraction_kept: [0.5, 0]}\n") ==
        "c.yaml:4:31: error: fraction_kept is 0 and must be in (0, 1]");
  CHECK(errors("methods: [keeper]\nbudget: {fraction_kept: 2.5}\n") ==
        "c.yaml:4:25: error: fraction_kept is 2.5 and must be in (0, 1]. 2.5 %? write 0.025");
  CHECK(errors("methods: [keeper]\nbudget: {tokens: 0.1}\n") ==
        "c.yaml:4:18: error: budget.tokens is 0.1 and must be a whole number. A share of the prompt? use "
        "budget: {fraction_kept: [0.1]}");
}

TEST_CASE("The message about a value out of range or of a wrong type shows valid values") {
  CHECK(errors("methods: [{name: pooler, kernel: 0}]\n") == "c.yaml:3:34: error: kernel is 0 and must be 1 to 9");
  CHECK(errors("methods: [{name: pooler, kernel: many}]\n") ==
        "c.yaml:3:34: error: kernel is \"many\" and must be a whole number");
  CHECK(errors("methods: [{name: pooler, kernel: '3'}]\n") ==
        "c.yaml:3:34: error: kernel is \"3\" and must be a whole number: remove the quotes");
  CHECK(errors("methods: [{name: pooler, kernel: 3.5}]\n") ==
        "c.yaml:3:34: error: kernel is 3.5 and must be a whole number");
  CHECK(errors("methods: [{name: pooler, pool: mx}]\n") ==
        "c.yaml:3:32: error: pool is \"mx\" and must be one of max, avg");
  CHECK(errors("methods: [{name: keeper, strict: yes}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:34: error: strict is \"yes\" and must be true or false");
  CHECK(errors("methods: [{name: keeper, share: 0}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:33: error: share is 0 and must be in (0, 1]");
  CHECK(errors("methods: [{name: keeper, share: .nan}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:33: error: share is \".nan\" and must be a number");
  CHECK(errors("methods: [{name: keeper, sinks: -1}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:33: error: sinks is -1 and must be at least 0");
  CHECK(errors("methods: [{name: keeper, sinks: 99999999999999999999}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:33: error: sinks is 99999999999999999999 and must be a whole number");
  CHECK(errors(kGood + "run: {jobs: 0}\n") == "c.yaml:5:13: error: run.jobs is 0 and must be 1 to 4096");
  CHECK(errors(kGood + "run: {device: gpu}\n") ==
        "c.yaml:5:15: error: run.device is \"gpu\" and must be cpu, cuda or cuda:N");
  CHECK(errors(kGood + "run: {precision: [single]}\n") ==
        "c.yaml:5:18: error: run.precision is a list and must be one of single, double");
  CHECK(errors(kGood + "seeds: 3\n") == "c.yaml:5:8: error: seeds is 3 and must be a map with the keys first, count");
  CHECK(errors(kGood + "replay: {queries: last}\n") ==
        "c.yaml:5:19: error: replay.queries is \"last\" and must be all, {last: 256} or {stride: 16}");
  CHECK(errors(kGood + "replay: {needles: 3}\n") ==
        "c.yaml:5:19: error: replay.needles is 3 and must be {at: [0, 0.4, 0.9], tokens: 32} or recorded");
  CHECK(errors(kGood + "replay: {needles: {at: 0}}\n") ==
        "c.yaml:5:19: error: replay.needles has no tokens: write {at: [0, 0.4, 0.9], tokens: 32}");
  CHECK(errors(kGood + "replay: {needles: {tokens: 8}}\n") ==
        "c.yaml:5:19: error: replay.needles has no at: write {at: [0, 0.4, 0.9], tokens: 32}");
  CHECK(errors(kGood + "replay: {needles: {at: [], tokens: 8}}\n") ==
        "c.yaml:5:24: error: replay.needles.at is an empty list: write where spans start, as [0, 0.4, 0.9]");
  CHECK(errors(kGood + "replay: {needles: {at: [0.5, 1, 0.5, 2], tokens: 0}}\n") ==
        "c.yaml:5:30: error: replay.needles.at is 1 and must be below 1: a span starts inside of the prompt\n"
        "c.yaml:5:33: error: 0.5 is listed twice in replay.needles.at\n"
        "c.yaml:5:38: error: replay.needles.at is 2 and must be in [0, 1]\n"
        "c.yaml:5:50: error: replay.needles.tokens is 0 and must be at least 1");
  CHECK(errors(kGood + "replay: {prefill: 1.5}\n") ==
        "c.yaml:5:19: error: replay.prefill is 1.5 and must be a whole number");
  CHECK(errors(kGood + "replay: {prefill: 9, tokens: 8}\n") ==
        "c.yaml:5:19: error: replay.prefill is 9 and must be at most replay.tokens, 8");
}

TEST_CASE("A number with a leading zero is refused, since some readers take it for octal") {
  CHECK(errors("methods: [keeper]\nbudget: {tokens: 010}\n") ==
        "c.yaml:4:18: error: budget.tokens is 010 and must be written without the leading zero, which some "
        "readers take for octal: 10");
}

TEST_CASE("YAML with a hidden meaning is refused") {
  CHECK(errors("methods: [keeper]\nbudget: {<<: {tokens: 9}, tokens: 8}\n") ==
        "c.yaml:4:10: error: the merge key << is not read here: write the keys out");
  CHECK(errors("methods: [keeper]\nbudget: {tokens: !!int 9}\n") ==
        "c.yaml:4:18: error: the tag \"tag:yaml.org,2002:int\" is not read here: write the plain value");
  CHECK(errors(kGood + "---\nmethods: [exact]\n") ==
        "c.yaml:6:1: error: a second document: a file holds one configuration");
  CHECK(errors(kGood + "select: {layers: " + std::string(30, '[') + std::string(30, ']') + "}\n") ==
        "c.yaml:5:36: error: nested more than 20 levels deep");
  CHECK(errors(kGood + "name: \x01\n") == "c.yaml:5:7: error: the byte 0x01 is not text: write the file as UTF-8");
  CHECK(errors(kGood + "name: \xff\n") == "c.yaml:5:7: error: the byte 0xff is not text: write the file as UTF-8");
  CHECK(errors_of_text(std::string((1 << 20) + 1, '#')) ==
        "c.yaml:1:1: error: larger than 1 MiB: this is no configuration");
  CHECK(errors("methods: [keeper\n").find("c.yaml:4:1: error: not valid YAML: ") == 0);
}

TEST_CASE("Aliases cannot grow without limit") {
  std::string bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += before + (k < 9 ? ", " : "]\n");
  }
  CHECK(errors_of_text(bomb).find("error: more than 100000 values") != std::string::npos);
}

TEST_CASE("The message about a missing key shows an example") {
  CHECK(errors_of_text("") == "c.yaml:1:1: error: the configuration is empty: it starts with the line \"schema: 1\"");
  CHECK(errors_of_text("hello\n") ==
        "c.yaml:1:1: error: a configuration is a map that starts with the line \"schema: 1\"");
  CHECK(errors_of_text("traces: [a.h5]\nmethods: [pooler]\n") ==
        "c.yaml:1:1: error: schema is missing: a configuration starts with the line \"schema: 1\"");
  CHECK(errors_of_text("schema: 2\ntraces: [a.h5]\nmethods: [pooler]\n") ==
        "c.yaml:1:9: error: schema is 2 and must be 1, the only version this program reads");
  CHECK(errors_of_text("schema: 1\nmethods: [pooler]\n") ==
        "c.yaml:1:1: error: traces is missing: add traces: [FILE.h5], relative to this file");
  CHECK(errors("seeds: {count: 1}\n") ==
        "c.yaml:1:1: error: methods is missing: add for example methods: [exact, streaming_llm, h2o]");
  CHECK(errors("methods: [keeper]\n") ==
        "c.yaml:1:1: error: budget is missing, and keeper takes one: add budget: {tokens: [64, 128]}");
  CHECK(errors("methods: [keeper]\nbudget: {}\n") ==
        "c.yaml:4:1: error: budget is empty: write {tokens: [64, 128]}, {fraction_kept: [0.05, 0.1]}, "
        "{share_of_cache: [0.1]}, {bytes: [...]} or {ratio_of_seen: 0.2}");
  CHECK(errors("methods: [keeper]\nbudget: {tokens: 9, bytes: 9}\n") ==
        "c.yaml:4:21: error: budget takes one of tokens, fraction_kept, bytes and ratio_of_seen, not two");
}

TEST_CASE("The message about an invalid share of the cache suggests a valid one") {
  const auto told = [](const std::string& value) {
    return errors("methods: [keeper]\nbudget: {share_of_cache: " + value + "}\n");
  };
  const std::string must = " and must be a share of the full cache's bytes, in (0, 1]";
  CHECK(told("0") == "c.yaml:4:26: error: share_of_cache is 0" + must);
  CHECK(told("1.5") == "c.yaml:4:26: error: share_of_cache is 1.5" + must + ": did you mean 0.015?");
  CHECK(told("20") == "c.yaml:4:26: error: share_of_cache is 20" + must + ": did you mean 0.2?");
  CHECK(told("20%") == "c.yaml:4:26: error: share_of_cache is \"20%\"" + must + ": did you mean 0.2?");
  CHECK(told("\"20\"") == "c.yaml:4:26: error: share_of_cache is \"20\"" + must + ": did you mean 0.2?");
  CHECK(told("\"0.2\"") == "c.yaml:4:26: error: share_of_cache is \"0.2\"" + must + ": remove the quotes");
  CHECK(told("512") == "c.yaml:4:26: error: share_of_cache is 512" + must + ". Tokens? use budget: {tokens: [512]}");
  CHECK(told("[0.1], of: median") ==
        "c.yaml:4:37: error: budget.of is \"median\" and must be one of peak, mean, prompt (did you mean mean?)");
  CHECK(errors("methods: [keeper]\nbudget: {tokens: 9, of: mean}\n") ==
        "c.yaml:4:21: error: budget.of (peak, mean or prompt) belongs to shares of the cache: budget: {share_of_cache: "
        "[0.2]}");
}

TEST_CASE("A budget inside an entry is refused") {
  CHECK(errors("methods: [{name: pooler, budget: 64}]\n") ==
        "c.yaml:3:26: error: pooler has no budget of its own: its size is an output. Remove \"budget\"");
  CHECK(errors("methods: [{name: keeper, tokens: 64}]\nbudget: {tokens: 9}\n") ==
        "c.yaml:3:26: error: keeper has no budget of its own: budgets are written once, under budget at the top "
        "level, and apply to every method");
}

TEST_CASE("Repetitions are refused") {
  CHECK(errors("methods: [pooler, {name: pooler, kernel: 7}]\n") ==
        "c.yaml:3:19: error: pooler is listed twice with the same parameters (first on line 3): remove one");
  CHECK(errors("methods: [{name: pooler, kernel: [3, 3]}]\n") == "c.yaml:3:38: error: 3 is listed twice in kernel");
  CHECK(errors("methods: [keeper]\nbudget: {tokens: [9, 9]}\n") == "c.yaml:4:22: error: the budget 9 is listed twice");
  CHECK(errors(kGood + "select: {layers: [1, 1]}\n") == "c.yaml:5:22: error: 1 is listed twice in select.layers");
  CHECK(errors(kGood + "metrics: [index_recall, index_recall]\n") ==
        "c.yaml:5:25: error: index_recall is listed twice in metrics");
  CHECK(errors_of_text("schema: 1\ntraces: [a.h5, ./a.h5]\nmethods: [pooler]\n") ==
        "c.yaml:2:16: error: ./a.h5 is listed twice in traces");
}

TEST_CASE("A phase that a method lacks is refused with the one it has") {
  CHECK(errors("methods: [{name: pooler, phase: stream}]\n") ==
        "c.yaml:3:33: error: the phase of pooler is \"stream\" and must be oneshot");
  CHECK(errors("methods: [keeper, {name: keeper, phase: oneshot}, pooler]\nbudget: {tokens: 9}\nreplay: "
               "{prompt: stream}\n") ==
        "c.yaml:3:19: error: keeper cuts the prompt once (phase: oneshot), but replay.prompt: stream feeds it token by "
        "token: write {name: keeper, phase: stream}\n"
        "c.yaml:3:51: error: pooler cuts the prompt once (phase: oneshot) and cannot stream, but replay.prompt: stream "
        "feeds it token by token: leave it out, or take replay.prompt: cut");
}

TEST_CASE("A method that codes its rows itself takes no row format") {
  Registry methods = config_stub::methods();
  methods.at(0).info.own_row_format = true;
  const config_stub::Folder folder;
  const auto parse = [&](const std::string& entry) {
    const std::string text = "schema: 1\ntraces: [a.h5]\nmethods: [" + entry + "]\nbudget: {tokens: [64]}\n";
    return parse_config(text, folder.path, "c.yaml", {}, methods);
  };
  CHECK(parse("{name: keeper, row_format: source}").methods.size() == 1);
  CHECK_THROWS_WITH(parse("{name: keeper, row_format: int4}"),
                    Catch::Contains("c.yaml:3:11: error: keeper stores its rows in a format of its own: leave "
                                    "out row_format"));
}

TEST_CASE("Row formats and metrics that do not exist are refused") {
  CHECK(errors("methods: [{name: pooler, row_format: int5}]\n") ==
        "c.yaml:3:38: error: unknown row format \"int5\" (did you mean int8?): see kvreplay list formats");
  CHECK(errors("methods: [{name: pooler, row_format: {name: kivi, g: 48}}]\n") ==
        "c.yaml:3:54: error: R is 128 and must be a multiple of g, which is 48, so that full groups leave the "
        "residual");
  CHECK(errors("methods: [{name: pooler, row_format: {name: gear, g: 8, R: 20}}]\n") ==
        "c.yaml:3:60: error: R is 20 and must be a multiple of g, which is 8, so that full groups leave the "
        "residual");
  CHECK(errors(kGood + "metrics: [rel_err]\n") ==
        "c.yaml:5:11: error: unknown metric \"rel_err\": see kvreplay list metrics");
  CHECK(errors(kGood + "metrics: [index_recal]\n") ==
        "c.yaml:5:11: error: unknown metric \"index_recal\" (did you mean index_recall?): see kvreplay list "
        "metrics");
}

TEST_CASE("A sweep with too many instances is refused") {
  std::string seven = "[1, 2, 3, 4, 5, 6, 7, 8, 9]";
  CHECK(errors("methods:\n  - {name: keeper, sinks: " + seven + ", recent: " + seven + ", first: " + seven +
               ", share: [.1, .2, .3, .4, .5], "
               "gqa: {agg: [sum, mean, max, first]}}\nbudget: {tokens: 99}\n") ==
        "c.yaml:4:5: error: the lists of this entry make more than 10000 methods");
}

TEST_CASE("All problems are reported at once, sorted by position") {
  CHECK(errors("methods: [keepr, {name: pooler, kernel: 0}]\nbudget: {tokens: [0, 5]}\nrun: {jobs: -1}\n",
               {"seeds.count=0"}) ==
        "seeds.count is 0 and must be 1 to 1000000\n"
        "c.yaml:3:11: error: unknown method \"keepr\" (did you mean keeper?): see kvreplay list methods\n"
        "c.yaml:3:41: error: kernel is 0 and must be 1 to 9\n"
        "c.yaml:4:19: error: budget.tokens is 0 and must be at least 1\n"
        "c.yaml:5:13: error: run.jobs is -1 and must be 1 to 4096");
}

TEST_CASE("Overrides without a target are reported") {
  CHECK(errors(kGood, {"budget.tokens"}) ==
        "--set budget.tokens: write KEY=VALUE, for example --set budget.tokens=[64,128]");
  CHECK(errors(kGood, {"methods.3.sinks=2"}) ==
        "--set methods.3.sinks=2: methods has 1 entries, numbered from 0, and none is "
        "\"3\"");
  CHECK(errors(kGood, {"schema.x=2"}) == "--set schema.x=2: schema is a single value and has no \"x\"");
  CHECK(errors(kGood, {"budgets.tokens=2"}) == "unknown key \"budgets\" (did you mean budget?)");
  CHECK(errors(kGood, {"budget.tokens=[2"}) == "--set budget.tokens=[2: the value is not valid YAML");
}

TEST_CASE("A tab that indents a line is reported at its place; a tab inside a value is allowed") {
  CHECK(errors("methods:\n\t- keeper\n") == "c.yaml:4:1: error: a tab indents this line: YAML wants spaces");
  CHECK(errors("methods: [keeper]\nbudget:\n  tokens: 9\n \tfraction_kept: 1\n") ==
        "c.yaml:6:2: error: a tab indents this line: YAML wants spaces");
  CHECK(errors("methods: [keeper]\nbudget: {tokens:\t9}\n") == "no error");
}
