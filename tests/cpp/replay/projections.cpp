#include "support.hpp"

// Projections of each row's error on the gradient, which predict the model's loss.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// The projection computed from the saved outputs, in double.
double projected(const HeadStream<double>& stream, const CellResult& r, int32_t head, size_t row, int32_t sample) {
  const int32_t token = r.rows[row];
  const uint16_t* const gradient = stream.sensitivity.at(head, token);
  if (gradient == nullptr) return 0;
  std::vector<int32_t> all;
  for (int32_t t = 0; t <= token; ++t) all.push_back(t);
  const std::vector<double> exact = naive_attention(stream, head, token, all), mine = output(r, head, row);
  double sum = 0;
  for (size_t c = 0; c < exact.size(); ++c)
    sum += double(from_bf16(gradient[size_t(sample) * exact.size() + c])) * (mine[c] - exact[c]);
  return sum;
}

double distance(const HeadStream<double>& stream, const CellResult& r, int32_t head, size_t row) {
  std::vector<int32_t> all;
  for (int32_t t = 0; t <= r.rows[row]; ++t) all.push_back(t);
  const std::vector<double> o = naive_attention(stream, head, r.rows[row], all), z = output(r, head, row);
  double zo = 0, zz = 0, oo = 0;
  for (size_t c = 0; c < o.size(); ++c) zo += z[c] * o[c], zz += z[c] * z[c], oo += o[c] * o[c];
  return 1 - zo / std::sqrt(zz * oo);
}

}  // namespace

TEST_CASE("cosine distances of all rows are saved beside the projections, whatever metrics were chosen", "[replay]") {
  const StreamShape s;
  const HeadStream<double> stream = make_stream<double>(s, 5);
  for (const char* method : {"snapkv", "h2o", "uniform"}) {
    INFO(method);
    RunOptions options;
    options.save.outputs = options.save.projections = true;
    options.wanted = wanted_by({"rel_err_out_mean"});
    const RunResult run = replay(stream, {make_cell(method, 16, s)}, options);
    const CellResult& r = run.only();
    REQUIRE(r.distances.size() == size_t(s.heads) * r.rows.size());
    for (int32_t h = 0; h < s.heads; ++h)
      for (size_t row = 0; row < r.rows.size(); ++row)
        CHECK(double(r.distances[size_t(h) * r.rows.size() + row]) == Approx(distance(stream, r, h, row)).margin(1e-6));
  }
}

TEST_CASE("projections equal those of the saved outputs' errors, for every evaluator", "[replay]") {
  const StreamShape s;
  const HeadStream<double> stream = make_stream<double>(s, 5);
  for (const char* method : {"snapkv", "h2o", "uniform", "streaming_llm", "exact"}) {
    INFO(method);
    RunOptions options;
    options.save.outputs = options.save.projections = true;
    const std::optional<int32_t> budget = std::string(method) == "exact" ? std::nullopt : std::optional(16);
    const RunResult run = replay(stream, {make_cell(method, budget, s)}, options);
    const CellResult& r = run.only();
    REQUIRE(r.ok);
    const size_t rows = r.rows.size();
    double squares = 0;
    for (int32_t h = 0; h < s.heads; ++h)
      for (size_t row = 0; row < rows; ++row)
        for (int32_t sample = 0; sample < 4; ++sample) {
          const double right = projected(stream, r, h, row, sample);
          CHECK(double(r.projections[(size_t(h) * rows + row) * 4 + size_t(sample)]) == Approx(right).margin(1e-6));
          if (sample < 2) squares += right * right / 2;  // the others are those of the recorded tokens and the answer
        }
    CHECK(r.measures["kl_head_mean"].value() == Approx(squares / 2 / double(rows - 1)).margin(1e-9));
  }
}

TEST_CASE("a head whose output the model ignores has cost 0, whatever its errors", "[replay]") {
  const StreamShape s;
  HeadStream<double> stream = make_stream<double>(s, 5);
  for (uint16_t& g : stream.sensitivity.numbers) g = 0;
  const CellResult r = replay(stream, {make_cell("window", 8, s)}).only();
  CHECK(r.measures["rel_err_out_mean"].value() > 0.1);
  CHECK(r.measures["kl_head_mean"].value() == 0);
}
