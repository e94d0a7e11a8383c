#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/text.hpp"

using namespace kvreplay;
using nlohmann::json;

TEST_CASE("The nearest word is found for a typing error and for another case or dash") {
  const std::vector<std::string> known = {"h2o", "snapkv", "streaming_llm", "subgen"};
  CHECK(nearest_word("snpakv", known) == "snapkv");
  CHECK(nearest_word("streaming-LLM", known) == "streaming_llm");
  CHECK(nearest_word("h20", known) == "h2o");
  CHECK(nearest_word("tvoa", {"tova"}) == "tova");     // two swapped neighbours count as one error
  CHECK(nearest_word("A-B-C", {"a_b_c"}) == "a_b_c");  // case and dashes count as none
  CHECK(nearest_word("subgem", known) == "subgen");
}

TEST_CASE("A word far from all known ones has no nearest word") {
  const std::vector<std::string> known = {"h2o", "snapkv"};
  CHECK(nearest_word("pyramid", known).empty());
  CHECK(nearest_word("xy", known).empty());
  CHECK(nearest_word("", known).empty());
  CHECK(nearest_word("snapkv", {}).empty());
}

TEST_CASE("If two words are equally near, the first known one is taken") {
  CHECK(nearest_word("cat", {"bat", "rat"}) == "bat");
}

TEST_CASE("A suggestion is a remark in parentheses, or nothing") {
  CHECK(did_you_mean("tovva", {"tova"}) == " (did you mean tova?)");
  CHECK(did_you_mean("exact", {"tova"}).empty());
}

TEST_CASE("Words are joined with something between them only") {
  CHECK(join({"a", "b", "c"}) == "a, b, c");
  CHECK(join({"a"}, "/") == "a");
  CHECK(join({}).empty());
}

TEST_CASE("Equal values have one canonical text, whatever their order and spelling") {
  CHECK(canonical(json::parse(R"({"b": [1, 2.5], "a": {"z": null, "y": true}})")) ==
        R"({"a":{"y":true,"z":null},"b":[1,2.5]})");
  CHECK(canonical(1.0) == canonical(1));
  CHECK(canonical(-0.0) == "0");
  CHECK(canonical(0.1) == "0.1");
  CHECK(canonical(1e-7) == "1e-07");
  CHECK(canonical(json::object()) == "{}");
  CHECK(canonical(json::array()) == "[]");
}

TEST_CASE("Text in canonical form is escaped and never throws") {
  CHECK(canonical("say \"hi\"\n") == R"("say \"hi\"\n")");
  CHECK(canonical("\xff") == "\"\xEF\xBF\xBD\"");
}

TEST_CASE("The text of a number reads back as the same number") {
  for (const double x : {1.0 / 3, 1e300, 5e-324, 123456789.125, -2.0, 9007199254740993.0, 1e22})
    CHECK(std::strtod(number_text(x).c_str(), nullptr) == x);
  CHECK(number_text(256) == "256");
}

TEST_CASE("SHA-256 gives the known answers") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("A message stays on its line and moves no terminal, whatever a name in it holds") {
  CHECK(single_line("a\nb\tc") == "a\\nb\\tc");
  CHECK(single_line(std::string("\x1b[2J\0\x7f", 6)) == "\\x1b[2J\\x00\\x7f");
  CHECK(single_line("naïve") == "naïve");
}
