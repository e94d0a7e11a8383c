#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "caches/bands.hpp"

// Residencies of caches, and the bands that caches share, against lists of tokens.

using namespace kvreplay;

namespace {

using Weights = std::pair<double, double>;
using Held = std::map<int32_t, Weights>;  // by token

// The tokens that the row of token t attends to, each once.
Held tokens_attended_at(const Residency& residency, int32_t t, int32_t prompt) {
  Held seen;
  residency.each_run(t, prompt, [&](int32_t first, int32_t last, double num, double den) {
    for (int32_t token = first; token < last; ++token) {
      CAPTURE(t, token);
      CHECK(seen.emplace(token, Weights{num, den}).second);
    }
  });
  return seen;
}

// Some tokens below `tokens`. If `leaves`, some are evicted in later rows; if `weighted`, some have weights above 1.
Residency drawn(int32_t tokens, bool leaves, bool weighted, uint32_t seed) {
  std::mt19937 random(seed);
  Residency held;
  held.begin = tokens, held.end = tokens + 20;
  for (int32_t t = 0; t < tokens; ++t) {
    if (random() % 4 == 0) continue;
    const int32_t until = leaves && random() % 5 == 0 ? tokens + int32_t(random() % 20) : Residency::kStays;
    held.add(t, t + 1, until, weighted ? 1 + double(random() % 3) : 1, 1);
  }
  return held;
}

// The tokens that the bands hold for a member in the row of token t.
Held tokens_of_bands(const std::vector<Band>& bands, size_t member, int32_t t) {
  Held held;
  for (const Band& band : bands) {
    if ((band.members >> member & 1u) == 0) continue;
    const Band::Weights of_band = band.of(member);
    for (size_t i = 0; i < band.tokens.size(); ++i) {
      const Band::Weights w = band.weights_of.empty() ? of_band : band.weights_of[i];
      if (!band.until.empty() && t >= band.until[i]) continue;
      for (int32_t token = band.tokens[i].first; token < band.tokens[i].last; ++token) {
        CAPTURE(t, token);
        CHECK(held.emplace(token, Weights{w.num, w.den}).second);
      }
    }
  }
  return held;
}

int32_t tokens_of(const std::vector<Band>& bands) {
  int32_t n = 0;
  for (const Band& band : bands) n += band.size();
  return n;
}

}  // namespace

TEST_CASE("neighbours with equal lifetime and weight 1 are one run", "[caches]") {
  Residency held;
  for (int32_t t = 0; t < 4; ++t) held.add(t, t + 1, Residency::kStays);
  held.add(4, 4 + 1, 9), held.add(5, 5 + 1, 9);
  held.add(7, 7 + 1, 9);
  held.add(8, 8 + 1, 9, 2, 1), held.add(9, 9 + 1, 12, 2, 1);
  held.add(10, 10 + 1, 10);  // no row has seen it
  REQUIRE(held.runs.size() == 5);
  CHECK(held.runs[0].last == 4);
  CHECK((held.runs[1].first == 4 && held.runs[1].last == 6 && held.runs[1].until == 9));
  CHECK(held.runs[2].first == 7);
  CHECK((held.runs[3].first == 8 && held.runs[4].first == 9));
  CHECK(held.weighted());
}

TEST_CASE("a residency has the tokens at its beginning and the later ones, until each is evicted", "[caches]") {
  constexpr int32_t kPrompt = 8;
  for (const bool later : {false, true}) {
    Residency residency;
    residency.begin = 8, residency.end = 13, residency.later = later;
    // Token 10 is evicted in its own step, before it was attended to; token 12 with the last row.
    std::vector<Residency::Eviction> evicted{{0, 9}, {2, 8}, {5, 11}};
    if (!later) evicted.insert(evicted.end(), {{9, 12}, {10, 10}});
    residency.list({0, 2, 3, 5, 7}, evicted, kPrompt);
    for (int32_t t = residency.begin; t < residency.end; ++t) {
      Held right;
      for (const int32_t token : {0, 2, 3, 5, 7}) right[token] = {1, 1};
      for (int32_t token = kPrompt; token <= t; ++token) right[token] = {1, 1};
      for (const Residency::Eviction& e : evicted)
        if (t >= e.until) right.erase(e.token);
      CAPTURE(later, t);
      CHECK(tokens_attended_at(residency, t, kPrompt) == right);
    }
  }
}

TEST_CASE("a full residency is the whole prompt at weight 1 and every later token", "[caches]") {
  const auto of = [](int32_t tokens, double weight, bool later) {
    Residency held;
    held.end = 30, held.later = later;
    for (int32_t t = 0; t < tokens; ++t) held.add(t, t + 1, Residency::kStays, weight, weight);
    return held;
  };
  CHECK(of(10, 1, true).everything(10));
  CHECK_FALSE(of(10, 1, false).everything(10));
  CHECK_FALSE(of(9, 1, true).everything(10));
  CHECK_FALSE(of(10, 2, true).everything(10));
}

TEST_CASE("bands hold exactly the tokens of each cache", "[caches]") {
  constexpr int32_t kTokens = 60;
  for (const bool weighted : {false, true})
    for (const bool leaves : {false, true})
      for (const int32_t band_cost : {0, 5, 1000}) {
        std::vector<Residency> caches;
        for (uint32_t i = 0; i < 4; ++i) caches.push_back(drawn(kTokens, leaves, weighted && i > 0, 10 + i));
        caches.push_back(caches[1]);
        const std::vector<const Residency*> members{&caches[0], nullptr, &caches[1], &caches[2], &caches[4]};
        const std::vector<Band> bands = find_bands(members, band_cost);
        for (size_t m = 0; m < members.size(); ++m)
          for (const int32_t t : {kTokens, kTokens + 7, kTokens + 19}) {
            CAPTURE(weighted, leaves, band_cost, m, t);
            CHECK(tokens_of_bands(bands, m, t) == (members[m] ? tokens_attended_at(*members[m], t, kTokens) : Held{}));
          }
      }
}

TEST_CASE("bands cost the union of their members, or each member separately", "[caches]") {
  Residency small, large;
  for (int32_t t = 0; t < 100; ++t) {
    large.add(t, t + 1, Residency::kStays);
    if (t % 2 == 0) small.add(t, t + 1, Residency::kStays);
  }
  CHECK(tokens_of(find_bands({&large, &small}, 10)) == 100);
  CHECK(find_bands({&large, &small}, 10).size() == 2);
  // Shared, these would be three bands, which cost more than they save.
  Residency few;
  for (int32_t t = 0; t < 6; ++t) few.add(t, t + 1, Residency::kStays);
  CHECK(find_bands({&small, &few}, 10).size() == 2);
  CHECK(tokens_of(find_bands({&small, &few}, 10)) == 56);
}
