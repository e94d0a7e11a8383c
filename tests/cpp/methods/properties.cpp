#include <algorithm>
#include <numeric>

#include "property_exceptions.hpp"

// Properties that every method of the registry must have, on every kind of data. Its line in methods.list covers a new
// method.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr double kDouble = 1e-10, kFloat = 1e-5;  // relative to the largest compared magnitude
constexpr Look kLooks[] = {Look::gaussian,   Look::clustered, Look::sinks,
                           Look::duplicates, Look::zero_rows, Look::huge_norms};
constexpr int32_t kBudget = 40;

bool plain_eviction(const CellResult& r, const MethodCase& v) {
  return r.num.empty() && !v.entry().info.reads_full_cache && !excused("attends to what it kept", v);
}
bool obeys_budget(const MethodCase& v) {
  const MethodInfo& info = v.entry().info;
  return info.takes_budget && info.exact_budget && !info.reads_full_cache;
}

std::vector<int32_t> all_tokens(int32_t last) {
  std::vector<int32_t> tokens(size_t(last) + 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Tokens attended to in step t by a resident method: the kept tokens after step t - 1, and token t. A one-shot method
// keeps all decoded tokens.
std::vector<int32_t> attended_set(const CellResult& r, int32_t prompt, int32_t t) {
  std::vector<int32_t> tokens = r.oneshot ? kept_list(r, 0) : kept_list(r, size_t(t - prompt));
  for (int32_t i = r.oneshot ? prompt : t; i <= t; ++i) tokens.push_back(i);
  return tokens;
}

template <class Real>
void check_exact_when_everything_fits(double tolerance, const StreamShape& s) {
  for (const MethodCase& v : variants_with("everything fits"))
    for (const Look look : kLooks) {
      INFO(v.label() << ", look " << int(look));
      const auto stream = make_stream<Real>(s, 3, look);
      const CellResult r = replay(stream, {cell_of(v, s.tokens + 5, s)}).only();
      REQUIRE(r.ok);
      CHECK(*r.measures["n_evictions"] == 0);
      for (size_t row = 0; row < r.rows.size(); ++row)
        for (int32_t h = 0; h < s.heads; ++h)
          CHECK(relative_difference(output(r, h, row),
                                    naive_attention(stream, h, r.rows[row], all_tokens(r.rows[row]))) < tolerance);
    }
}

}  // namespace

TEST_CASE("a budget of the whole trace reproduces exact attention", "[properties][many]") {
  check_exact_when_everything_fits<double>(kDouble, {});
  check_exact_when_everything_fits<float>(kFloat, {});
  check_exact_when_everything_fits<double>(kDouble, {.tokens = 57, .prompt = 33, .dim = 6, .v_dim = 5, .heads = 1});
  check_exact_when_everything_fits<double>(kDouble, {.tokens = 40, .prompt = 1, .dim = 2, .v_dim = 3, .heads = 3});
}

TEST_CASE("a method never holds more than its budget, nor attends to more than one token above it", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("within the budget")) {
    if (!obeys_budget(v)) continue;
    for (const int32_t budget : {9, 24, kBudget, s.prompt - 1, s.prompt}) {
      if (budget == 9 && excused("small budgets", v)) continue;
      INFO(v.label() << " B=" << budget);
      const auto stream = make_stream<double>(s);
      const CellResult r = replay(stream, {cell_of(v, budget, s)}).only();
      REQUIRE(r.ok);
      const int32_t decoded = v.options.phase == Phase::oneshot ? s.tokens - s.prompt : 0;
      CHECK(*r.measures["peak_kept_tokens"] <= budget + decoded);
      CHECK(*r.measures["peak_attended_tokens"] <= budget + std::max(decoded, 1));
      CHECK(int32_t(kept_list(r, 0).size()) <= budget);
    }
  }
}

TEST_CASE("kept lists ascend, hold no duplicates, and an evicted token never returns", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants())
    for (const Look look : kLooks) {
      if (v.entry().info.reads_full_cache) continue;
      INFO(v.label() << ", look " << int(look));
      const CellResult r = replay(make_stream<double>(s, 5, look), {cell_of(v, kBudget, s)}).only();
      REQUIRE(r.ok);
      REQUIRE(r.kept.off.size() == (r.oneshot ? 2u : size_t(s.tokens - s.prompt + 2)));
      for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) {
        const auto now = kept_list(r, i);
        CHECK(std::is_sorted(now.begin(), now.end(), std::less_equal<>()));
        CHECK(now.back() <= s.prompt - 1 + int32_t(i));
        if (i == 0) continue;
        auto allowed = kept_list(r, i - 1);
        allowed.push_back(s.prompt - 1 + int32_t(i));
        CHECK(std::includes(allowed.begin(), allowed.end(), now.begin(), now.end()));
      }
    }
}

TEST_CASE("outputs are attention over the kept rows with their weights, and nothing else", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("attends to what it kept")) {
    if (v.entry().info.reads_full_cache || v.options.positions == Positions::cache) continue;
    INFO(v.label());
    const auto stream = make_stream<double>(s, 6, Look::clustered);
    const CellResult r = replay(stream, {cell_of(v, kBudget, s)}).only();
    REQUIRE(r.ok);
    for (size_t row = 0; row < r.rows.size(); ++row) {
      const int32_t t = r.rows[row];
      const auto tokens = attended_set(r, s.prompt, t);
      std::vector<double> num(r.num.begin(), r.num.end()), den(r.den.begin(), r.den.end());
      if (!num.empty()) num.resize(tokens.size(), 1.0), den.resize(tokens.size(), 1.0);
      for (int32_t h = 0; h < s.heads; ++h)
        CHECK(relative_difference(output(r, h, row), naive_attention(stream, h, t, tokens, num, den)) < kDouble);
    }
  }
}

TEST_CASE("poisoning the future and every evicted token changes no number", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants()) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 7, Look::sinks);
    RunOptions audit;
    audit.audit = true;
    const CellResult plain = replay(stream, {cell_of(v, kBudget, s)}).only();
    const CellResult audited = replay(stream, {cell_of(v, kBudget, s)}, audit).only();
    REQUIRE(audited.ok);
    CHECK(plain.kept.flat == audited.kept.flat);
    CHECK(relative_difference(plain.out, audited.out) < 1e-12);  // an audit shares no sums
    CHECK(*plain.measures["rows_skipped"] == 0);
  }
}

TEST_CASE("values that are all equal come out without error", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("equal values")) {
    INFO(v.label());
    auto stream = make_stream<double>(s, 8, Look::clustered);
    for (size_t i = 0; i < stream.values.size(); ++i) stream.values[i] = double(i % size_t(s.v_dim)) + 1;
    const CellResult r = replay(stream, {cell_of(v, kBudget, s)}).only();
    REQUIRE(r.ok);
    CHECK(*r.measures["rel_err_out_max"] < kDouble);
  }
}

TEST_CASE("plain eviction's error of the normaliser is the missed mass", "[properties]") {
  const StreamShape s{.heads = 1};
  for (const MethodCase& v : variants()) {
    MethodCase original = v;
    original.options.positions = Positions::original;
    const auto stream = make_stream<double>(s, 9, Look::sinks);
    const CellResult r = replay(stream, {cell_of(original, kBudget, s)}).only();
    REQUIRE(r.ok);
    const bool weighs = !r.num.empty() || v.entry().wide.samples;
    if (weighs || excused("attends to what it kept", v)) continue;  // weights break this identity
    INFO(v.label());
    CHECK(*r.measures["partition_err_mean"] ==
          Approx(1 - *r.measures["kept_mass_mean"]).epsilon(kDouble).margin(kDouble));
    CHECK(*r.measures["mass_recall"] <= 1 + kDouble);
  }
}

TEST_CASE("the spectral epsilon lies between the Frobenius one and its multiple by the rank", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants()) {
    INFO(v.label());
    const CellResult r = replay(make_stream<double>(s, 10), {cell_of(v, kBudget, s)}).only();
    REQUIRE(r.ok);
    const double fro = *r.measures["eps_frobenius_mean"], spectral = *r.measures["eps_spectral_mean"];
    CHECK(fro <= spectral * (1 + kDouble));
    CHECK(spectral <= fro * std::sqrt(double(s.v_dim)) * (1 + kDouble));
  }
}

TEST_CASE("a row does not depend on later tokens", "[properties]") {
  const StreamShape s{.tokens = 90}, shorter{.tokens = 75};
  for (const MethodCase& v : variants_with("truncation")) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 11, Look::clustered);
    auto cut = make_stream<double>(s, 11, Look::clustered);
    cut.tokens = shorter.tokens;
    const CellResult whole = replay(stream, {cell_of(v, kBudget, s)}).only();
    const CellResult part = replay(cut, {cell_of(v, kBudget, shorter)}).only();
    for (size_t row = 0; row < part.rows.size(); ++row)
      for (int32_t h = 0; h < s.heads; ++h)
        CHECK(relative_difference(output(part, h, row), output(whole, h, row)) < kDouble);
    CHECK(std::equal(part.kept.flat.begin(), part.kept.flat.end(), whole.kept.flat.begin()));
  }
}

TEST_CASE("scaling the values scales the outputs and leaves the sets", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("scale of the values")) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 12);
    auto scaled = make_stream<double>(s, 12);
    for (double& x : scaled.values) x *= 4;
    const CellResult a = replay(stream, {cell_of(v, kBudget, s)}).only(),
                     b = replay(scaled, {cell_of(v, kBudget, s)}).only();
    CHECK(a.kept.flat == b.kept.flat);
    std::vector<double> fourfold = a.out;
    for (double& x : fourfold) x *= 4;
    CHECK(relative_difference(b.out, fourfold) < kDouble);
  }
}

TEST_CASE("gqa.level query gives each query head one cache", "[properties]") {
  const StreamShape s, single{.heads = 1};
  for (const MethodCase& v : variants()) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 13, Look::sinks);
    MethodCase by_query = v;
    by_query.options.gqa_level = GqaLevel::query;
    const CellResult both = replay(stream, {cell_of(by_query, kBudget, s)}).only();
    REQUIRE(both.ok);
    for (int32_t h = 0; h < s.heads; ++h) {
      auto one = make_stream<double>(s, 13, Look::sinks);
      one.shape.heads = 1;
      const auto first = one.queries.begin() + int64_t(h) * s.tokens * s.dim;
      one.queries = std::vector<double>(first, first + int64_t(s.tokens) * s.dim);
      one.repeat_queries.erase(one.repeat_queries.begin(),
                               one.repeat_queries.begin() + h * int64_t(one.repeat_queries.size() / s.heads));
      for (auto* norms : {&one.output_norms_l1, &one.output_norms_l2})
        norms->erase(norms->begin(), norms->begin() + h * int64_t(s.prompt));
      const CellResult alone = replay(one, {cell_of(v, kBudget, single)}).only();
      for (size_t row = 0; row < alone.rows.size() && !excused("query heads alone", v); ++row)
        CHECK(relative_difference(output(both, h, row), output(alone, 0, row)) < kDouble);
      // Also if only keys and values decide, equally for every query head; a full cache is shared.
      const bool shared = v.entry().info.reads_full_cache && *both.measures["n_evictions"] == 0;
      const int32_t caches = shared ? 1 : s.heads;
      if (h == 0) CHECK(*both.measures["peak_bytes"] == caches * *alone.measures["peak_bytes"]);
    }
  }
}

TEST_CASE("identical query heads make every aggregation agree", "[properties][many]") {
  const StreamShape s{.heads = 3};
  for (const MethodCase& v : variants_with("identical query heads")) {
    auto stream = make_stream<double>(s, 14);
    const int64_t head = int64_t(s.tokens) * s.dim;
    for (int64_t i = head; i < 3 * head; ++i) stream.queries[size_t(i)] = stream.queries[size_t(i % head)];
    const auto like_first = [](auto& of_heads) {
      for (size_t i = of_heads.size() / 3; i < of_heads.size(); ++i) of_heads[i] = of_heads[i % (of_heads.size() / 3)];
    };
    for (auto* of_heads : {&stream.repeat_queries, &stream.output_norms_l1, &stream.output_norms_l2})
      like_first(*of_heads);
    std::vector<int32_t> first;
    for (const Aggregate how : {Aggregate::sum, Aggregate::mean, Aggregate::max, Aggregate::first}) {
      INFO(v.label() << " agg " << word(how));
      MethodCase aggregated = v;
      aggregated.options.gqa_aggregate = how;
      const CellResult r = replay(stream, {cell_of(aggregated, kBudget, s)}).only();
      REQUIRE(r.ok);
      if (how == Aggregate::sum) first = r.kept.flat;
      CHECK(r.kept.flat == first);
    }
  }
}

TEST_CASE("a streamed prompt obeys the budget from the first token on", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("streams its prompt")) {
    if (v.options.phase != Phase::stream) continue;
    INFO(v.label());
    const CellResult r = replay(make_stream<double>(s, 15), {streamed(cell_of(v, kBudget, s))}).only();
    REQUIRE(r.ok);
    CHECK(int32_t(r.rows.size()) == s.tokens - s.prompt);
    CHECK(r.rows.front() == s.prompt);
    CHECK(*r.measures["mass_recall"] <= 1 + kDouble);
    if (obeys_budget(v) && !excused("within the budget", v)) CHECK(*r.measures["peak_attended_tokens"] <= kBudget + 1);
  }
}

TEST_CASE("evict_then_attend attends to no more than the budget", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants()) {
    if (v.options.phase != Phase::stream || !obeys_budget(v) || excused("within the budget", v)) continue;
    INFO(v.label());
    MethodCase first = v;
    first.options.order = Order::evict_then_attend;
    const CellResult r = replay(make_stream<double>(s, 16), {cell_of(first, kBudget, s)}).only();
    REQUIRE(r.ok);
    CHECK(*r.measures["peak_attended_tokens"] <= kBudget);
    if (!excused("fills its budget", v)) CHECK(*r.measures["peak_attended_tokens"] == kBudget);
  }
}

TEST_CASE("cells that are replayed together do not touch each other", "[properties]") {
  const StreamShape s;
  const auto stream = make_stream<float>(s, 17);
  std::vector<Cell> together;
  for (const MethodCase& v : variants()) together.push_back(cell_of(v, kBudget, s));
  const RunResult all = replay(stream, together);
  for (size_t i = 0; i < together.size(); ++i) {
    INFO(variants()[i].label());
    const CellResult alone = replay(stream, {together[i]}).only();
    CHECK(alone.kept.flat == all.cells[i].kept.flat);
    CHECK(relative_difference(alone.out, all.cells[i].out) < kFloat);
  }
}

TEST_CASE("other replayed cells change no bit of a sampled run with a known plan", "[properties]") {
  const StreamShape s{.tokens = 160};
  const auto stream = make_stream<float>(s, 19);
  RunOptions last;
  last.queries = {QuerySelection::Kind::last, 7};
  last.every_row = true;  // as if h2o were in the plan and published before
  for (const MethodCase& v : variants()) {
    INFO(v.label());
    const Cell cell = cell_of(v, kBudget, s);
    const RunResult with = replay(stream, {make_cell("h2o", kBudget, s), cell}, last);
    const RunResult alone = replay(stream, {cell}, last);
    CHECK(with.cells.at(1).out == alone.only().out);
    CHECK(with.cells.at(1).measures["index_recall"] == alone.only().measures["index_recall"]);
    CHECK(with.cells.at(1).measures["mass_recall"] == alone.only().measures["mass_recall"]);
  }
}

TEST_CASE("per-head choices of the oracle are recalled against each head's own ranking", "[properties]") {
  const StreamShape s;
  const CellResult r =
      replay(make_stream<double>(s, 20), {make_cell("topk_oracle", 20, s, {{"per_head", true}})}).only();
  CHECK(*r.measures["mass_recall"] == Approx(1));
  CHECK(*r.measures["index_recall"] == Approx(1));
}

TEST_CASE("in a layer with a sliding window methods choose among what a query can see", "[properties]") {
  const StreamShape s{.tokens = 120, .prompt = 80};
  for (const MethodCase& v : variants())
    for (const int32_t budget : {10, 24}) {
      if (v.entry().info.needs_every_token || (budget == 10 && excused("small budgets", v))) continue;
      INFO(v.label() << " B=" << budget);
      auto stream = make_stream<double>(s, 21);
      stream.window = 16;
      const CellResult r = replay(stream, {cell_of(v, budget, s)}).only();
      REQUIRE(r.ok);
      CHECK(*r.measures["peak_attended_tokens"] <= 16);
      CHECK(*r.measures["full_bytes"] == 16 * 8 * (s.dim + s.v_dim) / 2);
      if (!obeys_budget(v) || excused("within the budget", v)) continue;
      // Protected sinks outside the window are not replaced.
      CHECK(int32_t(kept_list(r, 0).size()) <= std::min(budget, 16));
      CHECK(kept_list(r, 0).front() >= s.prompt - 16);
      if (excused("fills its budget", v)) continue;
      CHECK(int32_t(kept_list(r, 0).size()) >= std::min(budget, 16) - 4);
      if (budget >= 16) CHECK(*r.measures["rel_err_out_max"] < kDouble);
    }
}

TEST_CASE("sampled queries are rows of the full evaluation", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("sampled queries")) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 18);
    RunOptions last, stride;
    last.queries = {QuerySelection::Kind::last, 5};
    stride.queries = {QuerySelection::Kind::stride, 4};
    const CellResult all = replay(stream, {cell_of(v, kBudget, s)}).only();
    const CellResult tail = replay(stream, {cell_of(v, kBudget, s)}, last).only();
    const CellResult every = replay(stream, {cell_of(v, kBudget, s)}, stride).only();
    for (const CellResult* r : {&tail, &every}) {
      CHECK(*r->measures["mass_recall"] <= 1 + kDouble);
      if (v.method == "exact") CHECK(*r->measures["index_recall"] == 1);
    }
    REQUIRE(tail.rows.size() == 5);
    REQUIRE(every.rows.size() == 8);
    CHECK(relative_difference(output(tail, 1, 2), output(all, 1, all.rows.size() - 3)) < kDouble);
    CHECK(relative_difference(output(every, 0, 3), output(all, 0, 12)) < kDouble);
  }
}

TEST_CASE("requested sinks and recent tokens are in every kept list", "[properties]") {
  const StreamShape s;
  constexpr int32_t kSinks = 3, kRecent = 5;
  for (const MethodCase& v : variants_with("protection")) {
    nlohmann::json params = params_of(v.method);
    const bool sinks = has_parameter(v, "sinks"), recent = has_parameter(v, "recent");
    if (sinks) params["sinks"] = kSinks;
    if (recent) params["recent"] = kRecent;
    if (v.entry().info.reads_full_cache) continue;
    for (const Look look : kLooks) {
      INFO(v.label() << ", look " << int(look));
      const Cell cell = make_cell(v.method, kBudget, s, params, v.options);
      const CellResult r = replay(make_stream<double>(s, 23, look), {cell}).only();
      REQUIRE(r.ok);
      for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) {
        const auto now = kept_list(r, i);
        const int32_t t = s.prompt - 1 + int32_t(i);
        for (int32_t token = 0; sinks && token < kSinks; ++token)
          CHECK(std::binary_search(now.begin(), now.end(), token));
        for (int32_t token = t - kRecent + 1; recent && token <= t; ++token)
          CHECK(std::binary_search(now.begin(), now.end(), token));
      }
    }
  }
}

TEST_CASE("an output without weights is no longer than the longest value", "[properties][many]") {
  const StreamShape s;
  for (const MethodCase& v : variants())
    for (const Look look : kLooks) {
      const auto stream = make_stream<double>(s, 24, look);
      const CellResult r = replay(stream, {cell_of(v, kBudget, s)}).only();
      REQUIRE(r.ok);
      if (!r.num.empty() || excused("equal values", v)) continue;
      INFO(v.label() << ", look " << int(look));
      const auto length = [&](const double* x) { return std::sqrt(std::inner_product(x, x + s.v_dim, x, 0.0)); };
      double longest = 0;
      for (int32_t i = 0; i < s.tokens; ++i)
        longest = std::max(longest, length(stream.values.data() + int64_t(i) * s.v_dim));
      for (size_t row = 0; row < r.rows.size(); ++row)
        for (int32_t h = 0; h < s.heads; ++h) CHECK(length(output(r, h, row).data()) <= longest * (1 + kDouble));
    }
}

TEST_CASE("the error of plain eviction is the missed mass times the gap of the missed tokens", "[properties][many]") {
  const StreamShape s;
  for (MethodCase v : variants()) {
    v.options.positions = Positions::original;
    const auto stream = make_stream<double>(s, 25, Look::clustered);
    const CellResult r = replay(stream, {cell_of(v, kBudget, s)}).only();
    REQUIRE(r.ok);
    if (!plain_eviction(r, v) || *r.measures["n_evictions"] == 0) continue;
    INFO(v.label());
    for (size_t row = 0; row < r.rows.size(); ++row) {
      const int32_t t = r.rows[row];
      const auto held = attended_set(r, s.prompt, t), all = all_tokens(t);
      std::vector<int32_t> missed;
      std::set_difference(all.begin(), all.end(), held.begin(), held.end(), std::back_inserter(missed));
      for (int32_t h = 0; h < s.heads; ++h) {
        std::vector<double> expected = naive_attention(stream, h, t, missed);
        const std::vector<double> z = output(r, h, row), o = naive_attention(stream, h, t, all);
        // o - z = missed mass * (o_missed - z). The mass is the exact output if missed values are 1 and others 0.
        auto ones = make_stream<double>(s, 25, Look::clustered);
        std::fill(ones.values.begin(), ones.values.end(), 0.0);
        for (const int32_t i : missed) ones.values[size_t(i * s.v_dim)] = 1;
        const double mass = naive_attention(ones, h, t, all)[0];
        for (size_t c = 0; c < z.size(); ++c) expected[c] = z[c] + mass * (expected[c] - z[c]);
        CHECK(relative_difference(o, expected) < kDouble);
      }
    }
  }
}

TEST_CASE("adding one vector to all keys changes nothing if only the softmax uses keys", "[properties]") {
  const StreamShape s;
  for (MethodCase v : variants_with("shift of the keys")) {
    INFO(v.label());
    v.options.positions = Positions::original;  // rotation to another position would change the vector
    const auto stream = make_stream<double>(s, 26, Look::clustered);
    auto shifted = make_stream<double>(s, 26, Look::clustered);
    for (size_t i = 0; i < shifted.keys.size(); ++i) shifted.keys[i] += 0.25 * double(i % size_t(s.dim)) - 1;
    const CellResult a = replay(stream, {cell_of(v, kBudget, s)}).only(),
                     b = replay(shifted, {cell_of(v, kBudget, s)}).only();
    CHECK(a.kept.flat == b.kept.flat);
    CHECK(a.attended.flat == b.attended.flat);
    CHECK(relative_difference(b.out, a.out) < kDouble);
  }
}

TEST_CASE("queries four times as long under a quarter of the scale change nothing", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("scale of the queries")) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 27, Look::sinks);
    auto longer = make_stream<double>(s, 27, Look::sinks);
    for (auto* queries : {&longer.queries, &longer.repeat_queries})
      for (double& x : *queries) x *= 4;
    longer.rule.scale /= 4;
    const Cell cell = cell_of(v, kBudget, s);
    const CellResult a = replay(stream, {cell}).only();
    const CellResult b = replay(longer, {changed(cell, [](Variant& quarter) { quarter.scale /= 4; })}).only();
    CHECK(a.kept.flat == b.kept.flat);
    CHECK(relative_difference(b.out, a.out) < kDouble);
  }
}

TEST_CASE("the order of the query heads changes no kept list", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("order of the query heads")) {
    INFO(v.label());
    const auto stream = make_stream<double>(s, 28, Look::clustered);
    auto swapped = make_stream<double>(s, 28, Look::clustered);
    for (auto* of_heads :
         {&swapped.queries, &swapped.repeat_queries, &swapped.output_norms_l1, &swapped.output_norms_l2})
      std::rotate(of_heads->begin(), of_heads->begin() + int64_t(of_heads->size() / 2), of_heads->end());
    const CellResult a = replay(stream, {cell_of(v, kBudget, s)}).only(),
                     b = replay(swapped, {cell_of(v, kBudget, s)}).only();
    CHECK(a.kept.flat == b.kept.flat);
    for (size_t row = 0; row < a.rows.size(); ++row)
      for (int32_t h = 0; h < 2; ++h) CHECK(relative_difference(output(b, 1 - h, row), output(a, h, row)) < kDouble);
  }
}

namespace {

// Result of the layer's kv head `kv_head` with gqa.level layer.
CellResult result_of_layer_cache(const MethodCase& v, const HeadStream<double>& layer, const StreamShape& s,
                                 int32_t kv_head) {
  MethodCase whole = v;
  whole.options.gqa_level = GqaLevel::layer;
  Cell cell = cell_of(whole, kBudget, s);
  cell.place.kv_head = kv_head;
  const CellResult r = replay(layer, {cell}).only();
  REQUIRE(r.ok);
  return r;
}

}  // namespace

TEST_CASE("a layer of two equal kv heads decides like one head, and the order of kv heads changes nothing",
          "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("kv heads of a layer")) {
    const bool as_one = v.entry().looks_at_queries && v.entry().info.layer_level;
    if (!as_one) continue;  // decides for every kv head separately
    INFO(v.label());
    MethodCase alone = v;
    alone.options.gqa_level = GqaLevel::kv;
    const auto a = make_stream<double>(s, 32, Look::clustered), b = make_stream<double>(s, 33, Look::sinks);
    const CellResult single = replay(a, {cell_of(alone, kBudget, s)}).only(),
                     twice = result_of_layer_cache(v, layer_of(a, a), s, 1);
    CHECK(twice.kept.flat == single.kept.flat);
    CHECK(relative_difference(twice.out, single.out) < kDouble);
    const CellResult before = result_of_layer_cache(v, layer_of(a, b), s, 0),
                     after = result_of_layer_cache(v, layer_of(b, a), s, 1);
    CHECK(before.kept.flat == after.kept.flat);
    CHECK(relative_difference(after.out, before.out) < kDouble);
  }
}

TEST_CASE("the kept mass of nested selections grows with the budget", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants()) {
    if (v.method != "window" && v.method != "streaming_llm" && v.method != "topk_oracle") continue;
    INFO(v.label());
    double before = 0;
    for (const int32_t budget : {6, 7, 12, 31, 64, 96}) {
      const CellResult r = replay(make_stream<double>(s, 29), {cell_of(v, budget, s)}).only();
      CHECK(*r.measures["kept_mass_mean"] >= before);
      before = *r.measures["kept_mass_mean"];
    }
  }
}

namespace {

// Checks that a cell runs, or fails with a message about the parameter or the failure.
void check_runs_or_explains(const MethodCase& v, const HeadStream<double>& stream, const StreamShape& s,
                            int32_t budget) {
  Cell cell;
  try {
    cell = cell_of(v, budget, s);
  } catch (const ParameterError& e) {
    CHECK(std::string(e.what()).size() > 10);
    return;
  }
  const CellResult r = replay(stream, {cell}).only();
  if (!r.ok) {
    CHECK(r.error.size() > 10);
    return;
  }
  const int32_t looked_at = BoundMethod(cell.variant->values, cell.context()).needs().rows_ahead;
  CHECK(int32_t(r.rows.size()) == s.tokens - s.prompt - looked_at);
  CHECK(std::all_of(r.out.begin(), r.out.end(), [](double x) { return std::isfinite(x); }));
  if (obeys_budget(v) && !excused("within the budget", v))
    CHECK(int32_t(kept_list(r, 0).size()) <= std::max(budget, 1));
}

}  // namespace

TEST_CASE("the smallest traces, budgets and dimensions run or give a reason", "[properties]") {
  const StreamShape shapes[] = {
      {.tokens = 1, .prompt = 1},  // no decode row
      {.tokens = 2, .prompt = 1},
      {.tokens = 3, .prompt = 3},
      {.tokens = 9, .prompt = 6, .dim = 1, .v_dim = 3},
      {.tokens = 9, .prompt = 7, .dim = 3, .v_dim = 1, .heads = 1},
      {.tokens = 45, .prompt = 37, .dim = 5, .v_dim = 2, .heads = 3},
  };
  for (const MethodCase& v : variants())
    for (const StreamShape& s : shapes)
      for (const int32_t budget : {1, 2, 3, 5, s.prompt - 1, s.prompt, s.tokens + 1}) {
        if (budget < 1) continue;
        INFO(v.label() << " n=" << s.tokens << " P=" << s.prompt << " d=" << s.dim << " B=" << budget);
        check_runs_or_explains(v, make_stream<double>(s, 30, Look::clustered), s, budget);
      }
}

TEST_CASE("equal keys, zero keys and logits of ten thousand give finite outputs", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants())
    for (const int32_t budget : {1, 9, kBudget, s.prompt - 1}) {
      INFO(v.label() << " B=" << budget);
      auto equal = make_stream<double>(s, 31), zero = make_stream<double>(s, 31), huge = make_stream<double>(s, 31);
      for (size_t i = 0; i < equal.keys.size(); ++i) equal.keys[i] = double(i % size_t(s.dim)) - 1;
      std::fill(zero.keys.begin(), zero.keys.end(), 0.0);
      for (double& x : huge.queries) x *= 1e4;
      check_runs_or_explains(v, equal, s, budget);
      check_runs_or_explains(v, zero, s, budget);
      check_runs_or_explains(v, huge, s, budget);
    }
}
