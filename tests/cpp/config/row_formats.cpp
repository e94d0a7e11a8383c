#include "config/row_format.hpp"

#include <catch2/catch.hpp>

#include "config/stub.hpp"

// How `row_format` is read: valid spellings, and the messages for invalid ones.

using namespace kvreplay;
using config_stub::errors;

namespace {

RowFormat read(const std::string& text) {
  const RunConfig c = config_stub::parse("methods: [{name: pooler, row_format: " + text + "}]\n");
  REQUIRE(c.methods.size() == 1);
  return c.methods.front().options.row_format;
}
std::string told(const std::string& text) {
  const std::string all = errors("methods: [{name: pooler, row_format: " + text + "}]\n");
  const size_t from = all.find("error: ");
  return from == std::string::npos ? all : all.substr(from + 7);
}

LayerInfo layer_of(int32_t layer, int32_t width) {
  LayerInfo info;
  info.layer = layer, info.head_dim = info.v_head_dim = width;
  return info;
}

}  // namespace

TEST_CASE("A row format has one name, however it is written", "[row_format]") {
  const auto named = [](const char* text) { return row_format_json(read(text)); };
  CHECK(named("f16") == "\"f16\"");
  CHECK(named("{name: f16}") == "\"f16\"");
  CHECK(named("int4") == R"({"group":64,"name":"int4"})");
  CHECK(named("{key: int4, value: int4}") == R"({"group":64,"name":"int4"})");
  CHECK(named("{key: int8, value: {name: int4, rotate: hadamard}}") ==
        R"({"key":{"group":64,"name":"int8"},"value":{"group":64,"name":"int4","rotate":"hadamard"}})");
  CHECK(named("{value: q4_0}") == R"({"key":"source","value":{"name":"q4_0"}})");
  CHECK(named("{key: int8, value: int4, rotate: hadamard}") ==
        named("{key: {name: int8, rotate: hadamard}, value: {name: int4, rotate: hadamard}}"));
  CHECK(named("{name: nvfp4, full_precision: {sinks: 4, recent: 16}}") ==
        R"({"full_precision":{"recent":16,"sinks":4},"name":"nvfp4","scale":1,"search":"max"})");
  CHECK(named("{name: f16, skip_layers: [-1, 0]}") == R"({"name":"f16","skip_layers":[-1,0]})");
  CHECK(named("{name: int4, own_row: coded, keys: pre_rope}") ==
        R"({"group":64,"keys":"pre_rope","name":"int4","own_row":"coded"})");
  CHECK(named("{name: fp8_e4m3, scale: token}") == R"({"name":"fp8_e4m3","scale":"token"})");
  CHECK(named("{name: int4_token_head, rotate: none}") == R"({"name":"int4_token_head","rotate":"none"})");
  CHECK(named("{name: kvquant, keys: post_rope, bits: 3}") ==
        R"({"bits":3,"calibrate_from":4,"keys":"post_rope","name":"kvquant","outliers":1})");
  CHECK(named("{name: polar, levels: [4, 3]}") == R"({"levels":[4,3],"name":"polar","rotation":"haar"})");
}

TEST_CASE("Settings of one part override settings for both", "[row_format]") {
  const auto named = [](const char* text) { return row_format_json(read(text)); };
  CHECK(named("{key: {name: int4, rotate: hadamard}, value: source, rotate_block: 16}") ==
        R"({"key":{"group":64,"name":"int4","rotate":"hadamard","rotate_block":16},"value":"source"})");
  CHECK(
      named("{key: {name: int4, rotate_block: 16}, value: int4, rotate: hadamard}") ==
      R"({"key":{"group":64,"name":"int4","rotate":"hadamard","rotate_block":16},"value":{"group":64,"name":"int4","rotate":"hadamard"}})");
  CHECK(named("{key: {name: int4, keys: post_rope}, value: int4, keys: pre_rope}") == named("int4"));
  CHECK(named("{key: {name: kivi, rotate: none}, value: int4}") == named("{key: kivi, value: int4}"));
  CHECK(named("{name: f16, skip_layers: [0, 0, 3]}") == R"({"name":"f16","skip_layers":[0,3]})");
}

TEST_CASE("Meaningless combinations of row formats are refused with the reason", "[row_format]") {
  CHECK(told("{name: tq_mse, rotate: hadamard}") == "tq_mse has a rotation of its own: leave out rotate");
  CHECK(told("{key: {name: kivi, rotate: hadamard}, value: int4}") ==
        "keys of kivi share a step by channel, which a rotation mixes: rotate values alone");
  CHECK(told("{name: int4, rotate: hadamard, rotate_block: 24}") == "rotate_block is 24 and must be a power of two");
  CHECK(told("{name: int4, rotate_block: 32}") ==
        "rotate_block is the size of a Hadamard matrix: add rotate: hadamard, or leave it out");
  CHECK(told("{name: kivi, full_precision: {recent: 64}}") ==
        "kivi keeps its newest R rows exact: set R, and leave out full_precision.recent");
  CHECK(told("{name: kivi, own_row: coded}") == "kivi codes rows in groups: leave out own_row: coded");
  CHECK(told("{name: int4, own_row: coded, full_precision: {recent: 2}}") ==
        "own_row: coded codes the newest row at once, and full_precision.recent keeps it exact: leave out one");
  CHECK(told("{name: int4, full_precision: {recent: 0}}") == "recent is 0 and must be at least 1");
  CHECK(told("{value: {name: int4, keys: pre_rope}}") ==
        "unknown key \"keys\" in row_format: the keys here are name, rotate, rotate_block, group");
  CHECK(told("{name: fp8_e4m3, scale: layer}") == "scale is \"layer\" and must be a number, or head or token");
  CHECK(told("{key: kivi, rotate: hadamard}") == "no part takes this rotation: leave out rotate");
  CHECK(told("{name: source, rotate: foo}") ==
        "rotate is \"foo\" and must be one of none, hadamard, hadamard_signed, haar");
  CHECK(told("{name: source, rotate: haar}") == "rows that are stored as they are need no rotation: leave out rotate");
  CHECK(told("{value: int4, keys: pre_rope}") ==
        "keys that are stored as they are keep their rotary embedding: leave out keys");
  CHECK(told("{name: kivi, bits: 3}") == "bits is 3 and must be 2 or 4");
  CHECK(told("{bits: 3}") ==
        "row_format is a map and must be a word, a map with a name: {name: kivi, bits: 2}, or a map of key and value");
  CHECK(told("{key: nvfp, value: int4}") ==
        "unknown row format \"nvfp\" (did you mean nvfp4?): see kvreplay list formats");
}

TEST_CASE("A layer that cannot store rows in a format reports the reason", "[row_format]") {
  const auto why = [](const char* text, const LayerInfo& layer, bool streams = false) {
    const Refusal refusal = storage_refusal(read(text), layer, 30, streams);
    return refusal.empty() ? "" : refusal.text(file_wording());
  };
  CHECK(why("q4_0", layer_of(3, 64)).empty());
  CHECK(why("q4_0", layer_of(3, 80)) ==
        "q4_0 takes rows in blocks of 32 numbers, and keys have 80: take another format, such as int4");
  CHECK(why("{value: nvfp4}", layer_of(3, 24)) ==
        "nvfp4 takes rows in blocks of 16 numbers, and values have 24: take another format, such as int4");
  CHECK(
      why("{name: int4, rotate: hadamard, rotate_block: 64}", layer_of(3, 96)) ==
      "int4 rotates rows by a Hadamard matrix, whose size (64) must divide the 96 numbers of keys: write rotate_block: "
      "32");
  CHECK(why("{name: int4, rotate: hadamard}", layer_of(3, 7)) ==
        "int4 rotates rows by a Hadamard matrix, whose size (2, 4, 8, ...) must divide the 7 numbers of keys: write "
        "rotate: haar");
  CHECK(why("{name: tq_mse, rotation: hadamard}", layer_of(3, 7)).ends_with("write rotation: haar"));
  CHECK(why("turboquant_3bit_nc", layer_of(3, 7))
            .ends_with("it takes heads of an even size; a format for any size is {name: int4, rotate: haar}"));
  CHECK(why("{name: int4, skip_layers: [30]}", layer_of(3, 64)) == "skip_layers names layer 30, and the model has 30");
  CHECK(why("{name: q4_0, skip_layers: [-27]}", layer_of(3, 80)).empty());  // this layer is skipped
  CHECK(why("{name: fp8_e4m3, scale: head}", layer_of(3, 64), true) ==
        "the row format takes its constants from the whole prompt, which does not come in one call: leave out prompt: "
        "stream");
  CHECK(why("{name: int4, keys: pre_rope}", layer_of(3, 64)) ==
        "keys: pre_rope takes the rotary embedding out of keys, which the trace lacks: record it again "
        "with `kvreplay record`, or write keys: post_rope");
  LayerInfo without = layer_of(3, 64);
  without.rope_recorded = true;  // the layer has no rotary embedding
  CHECK(why("{name: int4, keys: pre_rope}", without).empty());
}

TEST_CASE("Uniforms are accepted if a format draws random numbers under any of its parameters", "[row_format]") {
  for (const char* text : {"tq_mse", "{name: int4, rotate: haar}", "{key: tq_prod}"}) CHECK(is_random(read(text)));
  for (const char* text : {"{name: tq_mse, rotation: hadamard}", "{name: int4_token_head, rotate: none}"}) {
    CHECK_FALSE(is_random(read(text)));
    CHECK(may_draw(read(text)));
  }
  CHECK_FALSE(may_draw(read("{name: int4, rotate: hadamard}")));
}

TEST_CASE("Skipped layers are counted from either end of the model", "[row_format]") {
  const RowFormat f = read("{name: int4, skip_layers: [0, 1, -2, -1]}");
  for (const int32_t layer : {0, 1, 28, 29}) CHECK(at_layer(f, layer, 30).is_source());
  for (const int32_t layer : {2, 15, 27})
    CHECK(row_format_json(at_layer(f, layer, 30)) == row_format_json(read("int4")));
}
