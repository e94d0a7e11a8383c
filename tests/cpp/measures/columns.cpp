#include <algorithm>

#include "measures/measured_rows.hpp"
#include "measures/needles.hpp"
#include "property_exceptions.hpp"

// Measures of a replayed cell: small numbers by hand, then identities over every method.

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("the clamped error divides by the positive part of the output", "[measures]") {
  MeasuredRows rows(1);
  rows.set(0, {3, -4}, {3, -1});
  const Measured m = rows.measured();
  CHECK(*m["rel_err_out_mean"] == Approx(3 / 5.0));
  CHECK(*m["rel_err_clamped"] == Approx(3 / 3.0));
  CHECK(*m["rmse"] == Approx(3 / std::sqrt(2.0)));
}

TEST_CASE("the error is the sum of a part of the values and a part of the normaliser", "[measures]") {
  MeasuredRows rows(1);
  rows.rows[0].tau = 0.5;  // N = (1.5, 0.5)
  rows.set(0, {3, 4}, {3, 1});
  const Measured m = rows.measured();
  CHECK(*m["rel_err_numerator_mean"] == Approx(std::sqrt(1.5 * 1.5 + 3.5 * 3.5) / (0.5 * 5)));
  CHECK(*m["rel_err_normaliser_mean"] == Approx(1));
}

TEST_CASE("a normaliser beyond the range of a double leaves its measures empty", "[measures]") {
  MeasuredRows rows(1);
  rows.rows[0].tau = 0, rows.rows[0].log_tau = -2000;
  rows.set(0, {3, 4}, {3, 1});
  const Measured m = rows.measured();
  CHECK_FALSE(m["rel_err_normaliser_mean"].has_value());
  CHECK_FALSE(m["rel_err_numerator_mean"].has_value());
  CHECK(*m["log_partition_err_mean"] == 2000);
}

TEST_CASE("the quarters of six rows begin at rows 0, 1, 3 and 4", "[measures]") {
  MeasuredRows rows(6);
  for (int32_t r = 0; r < 6; ++r) rows.set(r, {1, 0}, {1.0 + r, 0});
  const Measured m = rows.measured();
  CHECK(*m["rel_err_quarter_1"] == Approx(0).margin(1e-15));
  CHECK(*m["rel_err_quarter_2"] == Approx((1 + 2) / 2.0));
  CHECK(*m["rel_err_quarter_3"] == Approx(3));
  CHECK(*m["rel_err_quarter_4"] == Approx((4 + 5) / 2.0));
  MeasuredRows few(3);
  for (int32_t r = 0; r < 3; ++r) few.set(r, {1, 0}, {2, 0});
  CHECK_FALSE(few.measured()["rel_err_quarter_1"].has_value());
}

// Row i renormalises the exact attention over `tokens` tokens, which hold `share` of it.
void attend(MeasuredRows& rows, size_t i, double share, int32_t tokens) {
  RowResult& row = rows.rows[i];
  row.tau = row.kept_mass = share, row.attended = tokens, row.plain = true;
  rows.exact[i].v_largest = 10;
}

TEST_CASE("missed mass times its gap is the error, and its bound is above it", "[measures]") {
  MeasuredRows rows(2);
  attend(rows, 0, 0.75, 1);
  attend(rows, 1, 1, 3);
  rows.set(0, {0, 5}, {0, 4});
  rows.set(1, {0, 5}, {0, 5});
  Measured m = rows.measured();
  CHECK(*m["missed_gap_mean"] == Approx(1 / 0.25 / 5));  // from row 0; row 1 misses nothing
  CHECK(*m["mass_bound_mean"] == Approx((2 * 0.25 * 10 / 5 + 0) / 2));
  CHECK(*m["kept_mass_min"] == 0.75);
  CHECK(*m["density_mean"] == Approx((1 / 2.0 + 3 / 3.0) / 2));
  rows.rows[1].plain = false;  // weights: the identity does not hold
  m = rows.measured();
  CHECK_FALSE(m["missed_gap_mean"].has_value());
  CHECK_FALSE(m["mass_bound_mean"].has_value());
}

TEST_CASE("no mass is missed if a whole sliding window is attended to, whatever the rounding", "[measures]") {
  MeasuredRows rows(1);
  attend(rows, 0, 0.99, 4);
  rows.set(0, {0, 5}, {0, 4});
  const auto within = [&](int32_t window) { rows.exact[0].visible = ExactRow(9, window).visible; };
  within(0);
  CHECK(rows.measured()["missed_gap_mean"].has_value());
  within(5);
  CHECK(rows.measured()["missed_gap_mean"].has_value());
  within(4);
  CHECK_FALSE(rows.measured()["missed_gap_mean"].has_value());
  CHECK(*rows.measured()["mass_bound_mean"] == 0);
  within(0);
  rows.rows[0].tau = 1 - 0.9e-3;
  CHECK_FALSE(rows.measured()["missed_gap_mean"].has_value());
}

TEST_CASE("a bound is compared with the share of rows within it, in the bound's norm", "[measures]") {
  MeasuredRows rows(4);
  for (int32_t r = 0; r < 4; ++r) rows.set(r, {1, 0}, {1.0 + r, 0});  // errors 0, 1, 2, 3
  for (ExactRow& row : rows.exact) row.v_frobenius = 2;
  const Measured none = rows.measured();
  CHECK_FALSE(none["bound_holds"].has_value());
  CHECK_FALSE(none["bound_epsilon"].has_value());
  const Measured spectral = rows.measured({ErrorBound::Norm::spectral, 1.0, 0.99, true});
  CHECK(*spectral["bound_holds"] == 0.5);
  CHECK(*spectral["bound_slack"] == Approx(1 / 1.5));
  CHECK(*spectral["bound_epsilon"] == 1);
  CHECK(*spectral["bound_probability"] == 0.99);
  CHECK(*spectral["bound_capped"]);
  CHECK(*spectral["eps_spectral_p99"] == Approx(2.97));
  const Measured frobenius = rows.measured({ErrorBound::Norm::frobenius, 1.0, 0.5, false});
  CHECK(*frobenius["bound_holds"] == 0.75);
  CHECK(*frobenius["bound_slack"] == Approx(1 / 0.75));
  CHECK_FALSE(*frobenius["bound_capped"]);
  CHECK_FALSE(frobenius["eps_additive_mean"].has_value());
}

TEST_CASE("the additive form is finite for logits and norms whose exponential overflows", "[measures]") {
  MeasuredRows rows(1);
  rows.set(0, {3, 4}, {3, 1});  // N - o = (0, -3) at tau' = 1
  rows.exact[0].log_normaliser = std::log(7) - 1000, rows.exact[0].v_largest = 5;
  rows.rows[0].spread = 1001;
  // 3 * 7 exp(-1000) / (2 exp(-1001) 5)
  CHECK(*rows.measured()["eps_additive_mean"] == Approx(3 * 7 * std::exp(1.0) / (2 * 5)));
}

TEST_CASE("needle masses are shares of spans, and a span ends with the prompt", "[measures]") {
  const std::vector<TokenSpan> spans = Needles{{0, 0.4, 0.95}, 3}.spans(10, {});
  REQUIRE(spans.size() == 3);
  CHECK((spans[1].begin == 4 && spans[1].end == 7));
  CHECK((spans[2].begin == 9 && spans[2].end == 10));
  const double strip[] = {1, 2, 3, 9, 4, 0, 4, 9, 9, 0, 5};
  const std::vector<int32_t> attended = {1, 4, 10, -1};
  std::vector<double> shares(4);
  needle_shares(strip, attended, spans, shares.data());
  CHECK(shares[0] == Approx((2 + 4) / 14.0));
  CHECK(shares[1] == Approx(2 / 6.0));
  CHECK(shares[2] == Approx(4 / 8.0));
  CHECK(shares[3] < 0);  // the query puts no mass there
}

TEST_CASE("the union of overlapping needles counts a token once", "[measures]") {
  const std::vector<TokenSpan> spans = Needles{{0.2, 0}, 3}.spans(10, {});  // 2..4 and 0..2
  const double strip[] = {1, 1, 8, 1, 1};
  const std::vector<int32_t> attended = {2};
  std::vector<double> shares(3);
  needle_shares(strip, attended, spans, shares.data());
  CHECK(shares[0] == Approx(8 / 12.0));
}

namespace {

constexpr int32_t kBudget = 40;
constexpr double kDouble = 1e-10;

// Tokens attended to in step t by a resident method: its kept tokens and the present token.
std::vector<int32_t> attended_set(const CellResult& r, int32_t prompt, int32_t t) {
  std::vector<int32_t> tokens = kept_list(r, r.oneshot ? 0 : size_t(t - prompt));
  for (int32_t i = r.oneshot ? prompt : t; i <= t; ++i) tokens.push_back(i);
  return tokens;
}

// ||o_missed - z|| / ||o|| of one row, or -1 if nothing is missed.
double gap_of(const HeadStream<double>& stream, const CellResult& r, int32_t head, size_t row) {
  const int32_t t = r.rows[row];
  const auto held = attended_set(r, stream.prompt, t);
  std::vector<int32_t> missed, all;
  for (int32_t i = 0; i <= t; ++i) {
    all.push_back(i);
    if (!std::binary_search(held.begin(), held.end(), i)) missed.push_back(i);
  }
  if (missed.empty()) return -1;
  const auto other = naive_attention(stream, head, t, missed), o = naive_attention(stream, head, t, all),
             z = output(r, head, row);
  double gap2 = 0, norm2 = 0;
  for (size_t c = 0; c < o.size(); ++c) gap2 += (other[c] - z[c]) * (other[c] - z[c]), norm2 += o[c] * o[c];
  return std::sqrt(gap2 / norm2);
}

}  // namespace

TEST_CASE("the gap of a renormalised subset is the distance of the missed tokens' own attention", "[properties]") {
  const StreamShape s;
  int32_t compared = 0;
  for (const MethodCase& v : variants_with("attends to what it kept")) {
    MethodCase original = v;
    original.options.positions = Positions::original;
    const auto stream = make_stream<double>(s, 41, Look::clustered);
    const CellResult r = replay(stream, {cell_of(original, kBudget, s)}).only();
    REQUIRE(r.ok);
    if (!r.measures["missed_gap_mean"] || v.entry().info.reads_full_cache) continue;
    INFO(v.label());
    double sum = 0;
    int32_t count = 0;
    for (size_t row = 0; row < r.rows.size(); ++row)
      for (int32_t h = 0; h < s.heads; ++h)
        if (const double gap = gap_of(stream, r, h, row); gap >= 0) sum += gap, ++count;
    CHECK(*r.measures["missed_gap_mean"] == Approx(sum / count).epsilon(1e-8));
    ++compared;
  }
  CHECK(compared >= 20);
}

TEST_CASE("identities of the measures hold for every method", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants())
    for (const Look look : {Look::clustered, Look::sinks, Look::huge_norms}) {
      INFO(v.label() << ", look " << int(look));
      const CellResult r = replay(make_stream<double>(s, 42, look), {cell_of(v, kBudget, s)}).only();
      REQUIRE(r.ok);
      const Measured& m = r.measures;
      const double rel = *m["rel_err_out_mean"], slack = 1 + kDouble;
      CHECK(rel <= (*m["rel_err_numerator_mean"] + *m["rel_err_normaliser_mean"]) * slack);
      CHECK(rel <= *m["rel_err_clamped"] * slack);
      if (m["mass_bound_mean"]) {  // a renormalised subset
        CHECK(rel <= *m["mass_bound_mean"] * slack + 1e-12);
        CHECK(*m["rel_err_set_mean"] == Approx(rel).epsilon(1e-13));  // summed in another order
        CHECK(*m["log_partition_err_mean"] >= *m["partition_err_mean"] * (1 - kDouble));
      }
      double quarters = 0;
      for (const auto& quarter :
           {m["rel_err_quarter_1"], m["rel_err_quarter_2"], m["rel_err_quarter_3"], m["rel_err_quarter_4"]})
        quarters += *quarter / 4;  // 32 rows: equal parts
      CHECK(quarters == Approx(rel).epsilon(1e-12).margin(1e-15));
      CHECK(*m["eps_frobenius_p99"] <= *m["eps_spectral_p99"] * slack);
      CHECK(*m["eps_spectral_p99"] <= *m["eps_spectral_max"]);
      CHECK(*m["kept_mass_min"] <= *m["kept_mass_mean"] * slack);
      CHECK(*m["mass_recall_min"] <= *m["mass_recall"] * slack);
      CHECK(m["rel_err_prefix_mean"].has_value() == r.oneshot);
      CHECK(m["bound_holds"].has_value() == m["bound_epsilon"].has_value());
    }
}

TEST_CASE("the parts of the byte account add up for every method and row format", "[properties]") {
  const StreamShape s{.dim = 6, .v_dim = 5};
  for (const MethodCase& v : variants())
    for (const char* format : {"source", "int4"}) {
      if (std::string(format) != "source" && v.entry().info.own_row_format) continue;
      INFO(v.label() << ", format " << format);
      MethodCase coded = v;
      coded.options.row_format = row_format(format);
      const CellResult r = replay(make_stream<double>(s, 43, Look::clustered), {cell_of(coded, kBudget, s)}).only();
      REQUIRE(r.ok);
      const Measured& m = r.measures;
      CHECK(*m["score_bytes"] + *m["sketch_bytes"] + *m["index_bytes"] == *m["aux_bytes"]);
      CHECK(std::min({*m["score_bytes"], *m["sketch_bytes"], *m["index_bytes"]}) >= 0);
      CHECK(*m["mean_bytes"] <= *m["total_bytes"]);
      CHECK(*m["final_bytes"] <= *m["total_bytes"]);
      CHECK(*m["equivalent_tokens"] <= (*m["key_floats"] + *m["value_floats"]) / 11);
      CHECK(*m["read_bytes_per_step"] > 0);
      CHECK(m["median_evicted_age_tokens"].has_value() == (*m["n_evictions"] > 0));
      if (m["median_evicted_age_tokens"]) CHECK(*m["median_evicted_age_tokens"] < s.tokens);
    }
}

TEST_CASE("a one-shot method that kept the whole prompt has no error", "[properties]") {
  const StreamShape s;
  for (const MethodCase& v : variants_with("everything fits")) {
    if (v.options.phase != Phase::oneshot) continue;
    INFO(v.label());
    const auto stream = make_stream<float>(s, 44, Look::sinks);
    const CellResult r = replay(stream, {cell_of(v, s.tokens + 5, s)}).only();
    CHECK(*r.measures["rel_err_prefix_mean"] < 1e-5);
  }
}

TEST_CASE("requested metrics change no bit of an output", "[properties]") {
  const StreamShape s;
  RunOptions blind;
  blind.wanted = {Work::none};
  RunOptions marked;
  marked.needles = {{0, 0.4, 0.9}, 6};
  for (const MethodCase& v : variants()) {
    INFO(v.label());
    const auto stream = make_stream<float>(s, 45, Look::clustered);
    const CellResult seen = replay(stream, {cell_of(v, kBudget, s)}).only();
    const CellResult unseen = replay(stream, {cell_of(v, kBudget, s)}, blind).only();
    const CellResult needled = replay(stream, {cell_of(v, kBudget, s)}, marked).only();
    CHECK(seen.out == unseen.out);
    CHECK(seen.out == needled.out);
    CHECK_FALSE(unseen.measures["rel_err_set_mean"].has_value());
    CHECK_FALSE(unseen.measures["rel_err_prefix_mean"].has_value());
    CHECK_FALSE(unseen.measures["rel_err_out_p50"].has_value());
    CHECK_FALSE(unseen.measures["eps_frobenius_p99"].has_value());
    CHECK_FALSE(unseen.measures["cosine_mean"].has_value());
    CHECK_FALSE(unseen.measures["median_evicted_age_tokens"].has_value());
    CHECK_FALSE(unseen.measures["kept_mass_mean"].has_value());
    CHECK(seen.measures["rel_err_out_mean"] == unseen.measures["rel_err_out_mean"]);
    CHECK(seen.measures["eps_frobenius_mean"] == unseen.measures["eps_frobenius_mean"]);
    CHECK_FALSE(seen.measures["needle_mass"].has_value());
    REQUIRE(needled.measures["needle_mass"].has_value());
    CHECK((*needled.measures["needle_mass"] >= 0 && *needled.measures["needle_mass"] <= 1 + kDouble));
    CHECK(needled.measures.extras.count("needle_mass_3") == 1);
  }
}

TEST_CASE("weights and moved positions have a separate set error", "[measures]") {
  const StreamShape s;
  const auto stream = make_stream<double>(s, 46, Look::clustered);
  CommonOptions moved = default_options("window");
  moved.positions = Positions::cache;
  const CellResult still = replay(stream, {make_cell("window", kBudget, s, {}, default_options("window"))}).only();
  const CellResult r = replay(stream, {make_cell("window", kBudget, s, {}, moved)}).only();
  // A window without gaps is not moved at all.
  CHECK(*r.measures["rel_err_set_mean"] == Approx(*r.measures["rel_err_out_mean"]).epsilon(1e-9));
  CHECK(*r.measures["rel_err_set_mean"] == Approx(*still.measures["rel_err_out_mean"]).epsilon(1e-12));
  const CellResult sinks =
      replay(stream, {make_cell("streaming_llm", kBudget, s, {}, default_options("streaming_llm"))}).only();
  CommonOptions original = default_options("streaming_llm");
  original.positions = Positions::original;
  const CellResult recorded = replay(stream, {make_cell("streaming_llm", kBudget, s, {}, original)}).only();
  CHECK(*sinks.measures["rel_err_out_mean"] != Approx(*recorded.measures["rel_err_out_mean"]).epsilon(1e-3));
  CHECK(*sinks.measures["rel_err_set_mean"] == Approx(*recorded.measures["rel_err_out_mean"]).epsilon(1e-12));
}

TEST_CASE("a subset whose logits underflow against the row's maximum still has a set error", "[measures]") {
  const StreamShape s{.tokens = 40, .prompt = 30, .heads = 1};
  auto stream = make_stream<float>(s, 47);
  for (int32_t c = 0; c < s.dim; ++c) stream.keys[size_t(c)] = 0;
  for (int32_t t = 0; t < s.tokens; ++t) stream.queries[size_t(t * s.dim)] = 300;
  stream.keys[0] = 30;  // token 0 takes all the mass, and uniform without its sink may drop it
  const CellResult r =
      replay(stream, {make_cell("uniform", 9, s, {{"sinks", 0}, {"recent", 4}}, default_options("uniform"))}).only();
  REQUIRE(r.ok);
  REQUIRE(kept_list(r, 0).front() != 0);
  CHECK(*r.measures["kept_mass_mean"] < 1e-30);
  REQUIRE(r.measures["rel_err_set_mean"].has_value());
  std::vector<double> errors;
  for (size_t row = 0; row < r.rows.size(); ++row) {
    const auto o = naive_attention(stream, 0, r.rows[row], {0}),
               set = naive_attention(stream, 0, r.rows[row], attended_set(r, s.prompt, r.rows[row]));
    double error2 = 0, norm2 = 0;
    for (size_t c = 0; c < o.size(); ++c) error2 += (set[c] - o[c]) * (set[c] - o[c]), norm2 += o[c] * o[c];
    errors.push_back(std::sqrt(error2 / norm2));
  }
  double mean = 0;
  for (const double e : errors) mean += e / double(errors.size());
  CHECK(*r.measures["rel_err_set_mean"] == Approx(mean).epsilon(1e-3));
}
