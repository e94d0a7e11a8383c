#include <hdf5.h>

#include <catch2/catch.hpp>
#include <limits>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

const std::string kLayer = "prompts/p0/layers/003";

// Opens `file` and reads all of it. Returns the message of the TraceError; empty if the file is sound.
std::string error_of(const std::filesystem::path& file) {
  try {
    const Trace trace(file);
    for (const PromptInfo& prompt : trace.info().prompts) {
      trace.token_ids(prompt.id);
      trace.token_classes(prompt.id);
      trace.position_ids(prompt.id);
      for (const LayerInfo& l : prompt.layers) {
        std::vector<float> k(static_cast<size_t>(l.tokens * l.head_dim)),
            v(static_cast<size_t>(l.tokens * l.v_head_dim)), q(static_cast<size_t>(l.query_rows * l.head_dim));
        for (int32_t h = 0; h < l.kv_heads; ++h) trace.read_keys(prompt.id, l.layer, h, l.tokens, k);
        for (int32_t h = 0; h < l.kv_heads; ++h) trace.read_values(prompt.id, l.layer, h, l.tokens, v);
        for (int32_t h = 0; h < l.q_heads; ++h) trace.read_queries(prompt.id, l.layer, h, 0, l.query_rows, q);
        trace.query_positions(prompt.id, l.layer);
        trace.sink_logits(prompt.id, l.layer);
      }
    }
    return "";
  } catch (const TraceError& error) {
    REQUIRE(error.exit_code() == 3);
    REQUIRE_THAT(error.what(), Catch::Contains(single_line(file.filename().string())) || Catch::Contains("layer.h5"));
    return error.what();
  }
}

std::string error_of(const SmallTrace& trace) {
  const Folder folder;
  return error_of(trace.write(folder / "t.h5"));
}

SmallTrace with(std::function<void(H5Output&)> more) { return SmallTrace{.more = std::move(more)}; }

struct Broken {
  std::string what;
  SmallTrace trace;
  std::string message;  // a part of the message
};

TEST_CASE("The small trace of these tests is sound") { CHECK(error_of(SmallTrace{}) == ""); }

TEST_CASE("Wrong shapes are errors that name the dataset") {
  const auto broken = GENERATE(values<Broken>({
      {"q has no heads axis", {.q = {10, 6}}, kLayer + "/q: has shape [10, 6]"},
      {"k is missing", {.k = {}}, kLayer + "/k: is missing"},
      {"no tokens", {.q = {4, 0, 6}, .k = {2, 0, 6}, .v = {2, 0, 5}}, kLayer + "/k: has shape [2, 0, 6]"},
      {"k is longer than v", {.k = {2, 11, 6}}, kLayer + "/v: has shape [2, 10, 5]"},
      {"v has other heads than k", {.v = {1, 10, 5}}, kLayer + "/v: has shape [1, 10, 5]"},
      {"q and k differ in width", {.q = {4, 10, 8}}, kLayer + "/q: has shape [4, 10, 8]"},
      {"heads do not form groups", {.q = {3, 10, 6}}, kLayer + "/q: has 3 heads, which is not a multiple of k's 2"},
      {"q is longer than k", {.q = {4, 12, 6}}, kLayer + "/q: has 12 query rows"},
      {"strided without q_pos", {.q = {4, 5, 6}}, kLayer + "/q: has 5 rows for 10 tokens"},
  }));
  INFO(broken.what);
  CHECK_THAT(error_of(broken.trace), Catch::Contains(broken.message));
}

TEST_CASE("Missing and wrong attributes are errors that name the object, the value and the remedy") {
  const auto set = [](const std::string& object, const std::string& name, auto value) {
    return with([=](H5Output& f) { f.attribute(object, name, value); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const std::string text = "x";
  const std::vector<Broken> cases = {
      {"no schema", {.schema = false}, "no trace: the root has no attribute kvreplay_schema"},
      {"another schema", set("/", "kvreplay_schema", int64_t{2}), "kvreplay_schema is 2, this version reads schema 1"},
      {"unfinished", set("/", "complete", int64_t{0}), "an unfinished dump"},
      {"no scaling", {.scaling = false}, kLayer + ": the attribute scaling is missing"},
      {"scaling is NaN", set(kLayer, "scaling", nan), kLayer + ": attribute scaling is nan"},
      {"scaling is infinite", set(kLayer, "scaling", infinity), kLayer + ": attribute scaling is inf"},
      {"scaling is 0", set(kLayer, "scaling", 0.0), kLayer + ": attribute scaling is 0"},
      {"scaling is text", set(kLayer, "scaling", text), kLayer + ": attribute scaling is not a number"},
      {"a negative window", set(kLayer, "sliding_window", int64_t{-1}), "attribute sliding_window is -1"},
      {"a fractional window", set(kLayer, "sliding_window", 1.5), "attribute sliding_window is 1.5"},
      {"a negative chunk", set(kLayer, "attention_chunk", int64_t{-1}), "attribute attention_chunk is -1"},
      {"a window and chunks", with([](H5Output& f) {
         f.attribute(kLayer, "sliding_window", int64_t{4});
         f.attribute(kLayer, "attention_chunk", int64_t{5});
       }),
       kLayer + ": attributes sliding_window 4 and attention_chunk 5 exclude each other: write 0 for the one"},
      {"a negative soft cap", set(kLayer, "softcap", -1.0), "attribute softcap is -1"},
      {"an unknown rope", set(kLayer, "rope", text), "attribute rope is \"x\""},
      {"rope_json is no JSON", set("/", "rope_json", text), "attribute rope_json: is not a JSON object"},
      {"a prompt longer than the trace", set("prompts/p0", "n_prompt", int64_t{11}),
       "/prompts/p0: attribute n_prompt is 11"},
      {"an empty prompt", set("prompts/p0", "n_prompt", int64_t{0}), "/prompts/p0: attribute n_prompt is 0"},
      {"fewer layers than it holds", set("/", "n_layers", int64_t{3}), "n_layers is 3, but the file holds layer 3"},
      {"the model is a number", set("/", "model", int64_t{3}), "attribute model is not a string"},
      {"the model is no UTF-8", set("/", "model", std::string("\xff\xfe")), "attribute model: is not UTF-8"},
  };
  for (const Broken& broken : cases) {
    INFO(broken.what);
    CHECK_THAT(error_of(broken.trace), Catch::Contains(broken.message));
  }
}

TEST_CASE("Every field of rope_json is checked") {
  const auto [json, message] = GENERATE(table<std::string, std::string>({
      {R"([1, 2])", "is not a JSON object"},
      {R"({"theta": NaN})", "is not a JSON object"},
      {R"({})", "needs \"inv_freq\""},
      {R"({"theta": -1})", "\"theta\" is -1"},
      {R"({"theta": "big"})", "\"theta\" must be a finite number"},
      {R"({"theta": 10, "layout": "both"})", "\"layout\" is \"both\""},
      {R"({"theta": 10, "rotary_dims": 5})", "\"rotary_dims\" is 5"},
      {R"({"theta": 10, "rotary_dims": 8})", "\"rotary_dims\" is 8"},
      {R"({"theta": 10, "inv_freq": [1, 2]})", "must be a list of 3 numbers"},
      {R"({"theta": 10, "inv_freq": [1, 2, "x"]})", "\"inv_freq\"[2]"},
      {R"({"theta": 10, "attention_factor": 0})", "\"attention_factor\" is 0"},
      {R"({"theta": 10, "type": "yarn"})", "needs \"inv_freq\""},
  }));
  INFO(json);
  CHECK_THAT(error_of(with([&, j = json](H5Output& f) { f.attribute("/", "rope_json", j); })),
             Catch::Contains(message));
}

TEST_CASE("A number that attention cannot use is an error that names head and token") {
  const auto [name, bad, said] =
      GENERATE(table<std::string, float, std::string>({{"q", std::numeric_limits<float>::quiet_NaN(), ": NaN at"},
                                                       {"k", std::numeric_limits<float>::infinity(), ": infinity at"},
                                                       {"v", -std::numeric_limits<float>::infinity(), ": infinity at"},
                                                       {"k", -3e38f, ": -3e+38 at"},
                                                       {"q", 0x1p40f, ": 1.1e+12 at"}}));
  const Folder folder;
  const std::filesystem::path file = folder / "t.h5";
  SmallTrace{}.write(file);
  const hid_t h5 = H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t dataset = H5Dopen2(h5, (kLayer + "/" + name).c_str(), H5P_DEFAULT), space = H5Dget_space(dataset);
  const hsize_t at[3] = {1, 7, 4}, one[3] = {1, 1, 1};
  H5Sselect_hyperslab(space, H5S_SELECT_SET, at, nullptr, one, nullptr);
  const hid_t memory = H5Screate(H5S_SCALAR);
  REQUIRE(H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, &bad) >= 0);
  H5Sclose(memory), H5Sclose(space), H5Dclose(dataset), H5Fclose(h5);
  CHECK_THAT(error_of(file), Catch::Contains(kLayer + "/" + name + said) && Catch::Contains("head 1, ") &&
                                 Catch::Contains(" 7, coordinate 4"));
}

TEST_CASE("Other datasets of a layer are checked against its shape") {
  const std::vector<int32_t> four = {0, 1, 2, 3}, ten = {0, 1, 2, 3, 4, 5, 6, 7, 8, -9},
                             ties = {0, 1, 2, 3, 4, 5, 5, 7, 8, 9};
  const std::vector<float> floats = {0, 1, 2, 3};
  const auto ints = [](const std::string& name, std::vector<int32_t> x) {
    return with([=](H5Output& f) { f.write(name, std::span<const int32_t>(x), {static_cast<int64_t>(x.size())}); });
  };
  CHECK_THAT(error_of(ints("prompts/p0/tokens", four)),
             Catch::Contains("/prompts/p0/tokens: has shape [4], it must be [10]"));
  CHECK_THAT(error_of(ints("prompts/p0/token_class", four)),
             Catch::Contains("/prompts/p0/token_class: has shape [4], it must be [10]"));
  CHECK_THAT(error_of(ints("prompts/p0/token_class", ties)),
             Catch::Contains("/prompts/p0/token_class: holds 3 at 3, it must be from 0 to 2"));
  CHECK_THAT(error_of(ints("prompts/p0/position_ids", ten)),
             Catch::Contains("/prompts/p0/position_ids: holds -9 at 9"));
  CHECK_THAT(error_of(ints(kLayer + "/q_pos", ties)), Catch::Contains(kLayer + "/q_pos: must ascend, but 5 follows 5"));
  CHECK_THAT(error_of(ints(kLayer + "/sinks", four)),
             Catch::Contains(kLayer + "/sinks: does not hold floating point numbers"));
  CHECK_THAT(error_of(with([&](H5Output& f) {
               f.write(kLayer + "/out", std::span<const float>(floats), {4, 1, 1});
             })),
             Catch::Contains(kLayer + "/out: has shape [4, 1, 1]"));
}

TEST_CASE("Tensors of other types are refused with their name") {
  const std::vector<double> doubles(100, 1.0);
  const std::vector<int64_t> integers(100, 1);
  SmallTrace small{.v = {}};
  small.more = [&](H5Output& f) { f.write(kLayer + "/v", std::span<const double>(doubles), {2, 10, 5}); };
  CHECK_THAT(error_of(small), Catch::Contains(kLayer + "/v: holds a floating point type of 8 bytes"));
  small.more = [&](H5Output& f) { f.write(kLayer + "/v", std::span<const int64_t>(integers), {2, 10, 5}); };
  CHECK_THAT(error_of(small), Catch::Contains(kLayer + "/v: holds an integer type of 8 bytes"));
}

TEST_CASE("A file that is not a trace is refused by name") {
  const Folder folder;
  write_bytes(folder / "text.h5", "not a trace\n");
  write_bytes(folder / "empty.h5", "");
  write_bytes(folder / "dump.h5.part", "half");
  std::filesystem::create_directory(folder / "folder");
  CHECK_THAT(error_of(folder / "text.h5"), Catch::Contains("is not an HDF5 file"));
  CHECK_THAT(error_of(folder / "empty.h5"), Catch::Contains("is not an HDF5 file"));
  CHECK_THAT(error_of(folder / "none.h5"), Catch::Contains("no such file"));
  CHECK_THAT(error_of(folder / "folder"), Catch::Contains("is a folder"));
  CHECK_THAT(error_of(folder / "dump.h5.part"), Catch::Contains("an unfinished dump"));
  CHECK_THAT(error_of(folder / "dump.h5"), Catch::Contains("an unfinished dump"));
  CHECK_THAT(error_of(folder / "unprintable\n.h5"), Catch::Contains("unprintable\\n.h5: no such file"));
}

TEST_CASE("A truncated file is an error at every length") {
  const Folder folder;
  const std::string bytes = read_bytes(SmallTrace{}.write(folder / "whole.h5"));
  for (size_t length = 0; length < bytes.size(); length += 509) {
    write_bytes(folder / "t.h5", bytes.substr(0, length));
    INFO("length " << length << " of " << bytes.size());
    CHECK(error_of(folder / "t.h5") != "");
  }
}

TEST_CASE("A flipped bit in a tensor with Fletcher-32 is found") {
  const Folder folder;
  {
    TraceWriter file(folder / "whole.h5");
    for (const char* name : {"q", "k", "v"}) {
      file.begin_tensor(kLayer + "/" + name, 1, 50, 4, DType::float32);
      file.append(std::vector<float>(200, name[0] == 'k' ? 1234.5f : 1.0f));
      file.end_tensor();
    }
    file.attribute(kLayer, "scaling", 0.5);
    file.close("");
  }
  std::string bytes = read_bytes(folder / "whole.h5");
  const float key = 1234.5f;
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&key), 4));
  REQUIRE(at != std::string::npos);
  bytes[at + 81] = static_cast<char>(bytes[at + 81] ^ 4);
  write_bytes(folder / "t.h5", bytes);
  CHECK_THAT(error_of(folder / "t.h5"), Catch::Contains(kLayer + "/k") && Catch::Contains("letcher32"));
  CHECK(deep_check(Trace(folder / "whole.h5")).empty());
  const std::vector<std::string> problems = deep_check(Trace(folder / "t.h5"));
  REQUIRE_FALSE(problems.empty());
  CHECK_THAT(problems[0], Catch::Contains(kLayer + "/k"));
}

TEST_CASE("The deep check finds a wrong recorded sha256") {
  const Folder folder;
  const Trace trace(
      with([](H5Output& f) { f.attribute(kLayer + "/v", "sha256", std::string(64, '0')); }).write(folder / "t.h5"));
  const std::vector<std::string> problems = deep_check(trace);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::Contains(kLayer + "/v: its numbers have sha256") && Catch::Contains("t.h5"));
}

TEST_CASE("Extents that the file cannot justify are errors before anything is allocated") {
  const Folder folder;
  const std::filesystem::path file = SmallTrace{.v = {}}.write(folder / "t.h5");
  const hid_t h5 = H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), creation = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t huge[3] = {2, hsize_t{1} << 40, 5}, chunk[3] = {1, 1024, 5};
  const bool chunked = GENERATE(true, false);
  if (chunked) H5Pset_chunk(creation, 3, chunk);
  const hid_t space = H5Screate_simple(3, huge, nullptr);
  const hid_t dataset =
      H5Dcreate2(h5, (kLayer + "/v").c_str(), H5T_NATIVE_FLOAT, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  REQUIRE(dataset >= 0);
  H5Dclose(dataset), H5Sclose(space), H5Pclose(creation), H5Fclose(h5);
  CHECK_THAT(error_of(file), Catch::Contains(kLayer + "/v: declares [2, 1099511627776, 5]"));
}

TEST_CASE("An extent that was enlarged in the file's bytes is an error") {
  const Folder folder;
  std::string bytes = read_bytes(SmallTrace{}.write(folder / "whole.h5"));
  const int64_t shape[3] = {2, 10, 5}, larger[3] = {2, 11, 5};
  const std::string pattern(reinterpret_cast<const char*>(shape), sizeof shape);
  int found = 0;
  for (size_t at = bytes.find(pattern); at != std::string::npos; at = bytes.find(pattern, at + 1), ++found)
    bytes.replace(at, sizeof larger, reinterpret_cast<const char*>(larger), sizeof larger);
  REQUIRE(found > 0);
  write_bytes(folder / "t.h5", bytes);
  CHECK_THAT(error_of(folder / "t.h5"),
             Catch::Contains(kLayer + "/v: declares [2, 11, 5], 440 bytes, but the file holds only"));
}

// ---- links

void link_external(const std::filesystem::path& file, const std::string& target, const std::string& object) {
  const hid_t h5 = H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE(H5Lcreate_external(target.c_str(), object.c_str(), h5, "prompts/p0/layers/004", H5P_DEFAULT, H5P_DEFAULT) >=
          0);
  H5Fclose(h5);
}

TEST_CASE("An index of external links reads like one file") {
  const Folder folder;
  SmallTrace{}.write(folder / "layer.h5");
  link_external(SmallTrace{}.write(folder / "index.h5"), "layer.h5", kLayer);
  CHECK(error_of(folder / "index.h5") == "");
  const Trace trace(folder / "index.h5");
  REQUIRE(trace.prompt("p0").layers.size() == 2);
  std::vector<float> keys(60);
  trace.read_keys("p0", 4, 1, 10, keys);
  CHECK(keys[13] == marked(1, 2, 1));
}

TEST_CASE("External links to missing files, outside files, or in circles are errors") {
  const Folder folder;
  const std::filesystem::path index = SmallTrace{}.write(folder / "index.h5");
  SECTION("a missing file") {
    link_external(index, "gone.h5", kLayer);
    CHECK_THAT(error_of(index),
               Catch::Contains("layers/004: the external link's file") && Catch::Contains("gone.h5 is missing"));
  }
  SECTION("a file outside of the folder") {
    link_external(index, "../other.h5", kLayer);
    CHECK_THAT(error_of(index), Catch::Contains("leaves the file's folder"));
  }
  SECTION("an absolute path") {
    link_external(index, "/etc/hosts", kLayer);
    CHECK_THAT(error_of(index), Catch::Contains("is not relative to the file"));
  }
  SECTION("a symbolic link out of the folder") {
    const Folder other;
    SmallTrace{}.write(other / "t.h5");
    std::filesystem::create_symlink(other / "t.h5", folder / "layer.h5");
    link_external(index, "layer.h5", kLayer);
    CHECK_THAT(error_of(index), Catch::Contains("leaves the file's folder"));
  }
  SECTION("itself") {
    link_external(index, "index.h5", "prompts/p0/layers/004");
    CHECK_THAT(error_of(index), Catch::Contains("layers/004: more than 16 links lead to it, or they form a loop"));
  }
  SECTION("an unfinished part of a dump") {
    with([](H5Output& f) { f.attribute("/", "complete", int64_t{0}); }).write(folder / "layer.h5");
    link_external(index, "layer.h5", kLayer);
    CHECK_THAT(error_of(index), Catch::Contains("unfinished dump"));
  }
  SECTION("an object that the file does not hold") {
    SmallTrace{}.write(folder / "layer.h5");
    link_external(index, "layer.h5", "prompts/p9");
    CHECK_THAT(error_of(index), Catch::Contains("layers/004: is missing (no \"p9\")"));
  }
}

}  // namespace
}  // namespace kvreplay
