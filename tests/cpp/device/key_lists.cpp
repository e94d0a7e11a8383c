#include <catch2/catch.hpp>
#include <numeric>

#include "device/key_lists.hpp"

using namespace kvreplay;

namespace {

// A cache of two heads that holds these runs.
DeviceCache cache_of(std::vector<Residency::Run> runs) {
  DeviceCache cache;
  cache.held.end = 1000, cache.held.runs = std::move(runs);
  cache.heads = 2;
  return cache;
}
// Holds every step-th token of the prompt, at most `count`, and every later token.
DeviceCache fixed(int32_t prompt, int32_t step, double weight = 1, int32_t count = 1000) {
  DeviceCache cache = cache_of({});
  cache.held.later = true;
  for (int32_t i = 0; i < prompt && i < count * step; i += step)
    cache.held.add(i, i + 1, Residency::kStays, weight, weight);
  return cache;
}
std::vector<int32_t> rows_from(int32_t first, int32_t count) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}
// The parts that together list a cache's tokens with their weights (PartList `all`).
std::vector<PartRef> refs_of(const KeyLists& lists, size_t cache) {
  const PartList all = lists.caches()[cache].all;
  return {lists.refs().begin() + all.first, lists.refs().begin() + all.first + all.count};
}

}  // namespace

TEST_CASE("nested sets of a family cost as much as the largest", "[device]") {
  const auto rows = rows_from(600, 100);
  const KeyLists lists({fixed(600, 2), fixed(600, 4), fixed(600, 8)}, rows, 600, 2);
  CHECK(lists.entries() == 300);  // and not 300 + 150 + 75
  CHECK(lists.parts() == 2 + 3);
  for (size_t cache = 0; cache < 3; ++cache) {
    const auto refs = refs_of(lists, cache);
    CHECK(refs.size() == 4 - cache);  // its bands, and the later tokens
    CHECK(refs.back().part == 1);
    CHECK(lists.caches()[cache].all.of_prompt == int32_t(refs.size()) - 1);
  }
}

TEST_CASE("sets that have little in common keep separate lists", "[device]") {
  const auto rows = rows_from(600, 100);
  const KeyLists lists({fixed(600, 2), fixed(600, 3, 1, 3)}, rows, 600, 2);
  CHECK(lists.entries() == 303);
  CHECK(refs_of(lists, 1).size() == 2);
}

TEST_CASE("a band has in each set the weight of its tokens there", "[device]") {
  const auto rows = rows_from(600, 10);
  std::vector<DeviceCache> caches{fixed(600, 2), fixed(600, 2, 3)};
  caches[1].set = true;
  const KeyLists lists(caches, rows, 600, 2);
  CHECK(lists.entries() == 300);
  CHECK(refs_of(lists, 0).front().num == 1);
  CHECK(refs_of(lists, 1).front().num == 3);
  CHECK(refs_of(lists, 1).front().den == 3);
  const PartList set = lists.caches()[1].set;  // equal tokens at weight 1
  REQUIRE(set.count == 2);
  CHECK(lists.refs()[size_t(set.first)].num == 1);
}

TEST_CASE("a whole prompt is the exact pass's own part", "[device]") {
  const auto rows = rows_from(600, 10);
  const KeyLists lists({fixed(600, 1)}, rows, 600, 2);
  CHECK(lists.entries() == 0);
  CHECK(refs_of(lists, 0).front().part == 0);
}

TEST_CASE("a tile of rows lists the tokens that any of its rows may see", "[device]") {
  const auto rows = rows_from(100, 130);  // tiles of tokens 100-163, 164-227, 228-229
  const KeyLists lists({cache_of({{5, 6, 150}, {7, 8, 164}, {9, 10}, {100, 101, 229}, {200, 201, 201}, {228, 229}})},
                       rows, 100, 2);
  // 5, 7, 9, 100; then 9, 100, 200; then 9, 100, 228.
  CHECK(lists.entries() == 4 + 3 + 3);
}
