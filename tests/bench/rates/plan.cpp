#include "tests/bench/rates/plan.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "exact/tile.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay::app {
namespace {

constexpr int32_t kSquare = 2048;  // size of the library's product
constexpr const char *kFma = "FMA units", *kSgemm = "sgemm 2048^3", *kExpf = "scalar expf", *kScores = "kernel scores",
                     *kValues = "kernel values", *kExponentials = "kernel exponentials", *kPrompt = "prompt statistics";

// A tile of queries against every key, as in one call of a kernel. `times` calls are one measurement.
struct TileShape {
  int32_t rows, keys, d, d_values, times;
  explicit TileShape(const HeadStream<float>& s)
      : rows(tile_rows(1)), keys(s.tokens), d(s.shape.dim), d_values(s.shape.v_dim), times(0) {
    constexpr double kLogits = 2e7;  // enough for the clock's resolution, few enough for many rounds
    times = std::max(1, int32_t(kLogits / (double(rows) * keys)));
  }
  double logits() const { return double(times) * rows * keys; }
};

void add(BenchPlan& plan, const std::string& name, double work, RateUnit unit, std::function<void()> call) {
  plan.entries.push_back({{name, std::move(call)}, work, unit});
}

void compute_scores(const HeadStream<float>& s, const TileShape& t) {
  const kernels::KeyPanels<float> panels(s.keys.data(), t.keys, t.d);
  std::vector<float> strip(size_t(t.rows) * size_t(t.keys));
  for (int32_t i = 0; i < t.times; ++i)
    kernels::scores(s.queries.data(), t.d, t.rows, panels, 0, t.keys, strip.data(), t.keys);
}

void compute_values(const HeadStream<float>& s, const TileShape& t) {
  const std::vector<float> strip(size_t(t.rows) * size_t(t.keys), 0.5F);
  std::vector<float> out(size_t(t.rows) * size_t(t.d_values));
  for (int32_t i = 0; i < t.times; ++i)
    kernels::multiply(strip.data(), t.keys, t.rows, s.values.data(), t.keys, t.d_values, out.data(), t.d_values);
}

void compute_exponentials(const TileShape& t) {
  std::vector<float> strip(size_t(t.rows) * size_t(t.keys));
  for (int32_t i = 0; i < t.times; ++i) {
    std::fill(strip.begin(), strip.end(), -1.0F);
    for (int32_t r = 0; r < t.rows; ++r)
      kernels::exponentiate(strip.data() + size_t(r) * size_t(t.keys), t.keys, 1.0F, 0.0F);
  }
}

void add_cells(BenchPlan& plan, const std::string& name, const Subject& subject, std::vector<Cell> cells) {
  add(plan, name, tokens_and_heads(subject.stream), kMicroseconds,
      [&subject, cells = std::move(cells)] { replay_cells(subject, cells, subject.options); });
}

void add_method(BenchPlan& plan, const Subject& subject, size_t method) {
  const std::string all = name_with_count(subject, method);
  add_cells(plan, all, subject, subject.chosen(method, {}));
  plan.ratios.push_back({all + " / exact pass", all, kExactPass, "", true});
  const auto largest = subject.largest_budget(method);
  if (!largest || subject.chosen(method, {}).size() < 2) return;
  const std::string alone = fmt::format("{}, {} alone", subject.methods[method], *largest);
  add_cells(plan, alone, subject, subject.chosen(method, largest));
  plan.ratios.push_back({fmt::format("{} / {} alone", all, *largest), all, alone, "", true});
  plan.ratios.push_back({fmt::format("{} / {} alone, less exact pass", all, *largest), all, alone, kExactPass, true});
}

}  // namespace

std::string name_with_count(const Subject& subject, size_t method) {
  const size_t count = subject.chosen(method, {}).size();
  return fmt::format("{}, {} budget{}", subject.methods[method], count, count == 1 ? "" : "s");
}

void add_limits(BenchPlan& plan, const Blas& blas) {
  const double flops = run_fma_units();
  add(plan, kFma, flops, kGigaflops, [] { run_fma_units(); });
  if (blas.found()) {
    const double n = kSquare;
    add(plan, kSgemm, 2 * n * n * n, kGigaflops, [&blas] {
      const std::vector<float> a(size_t(kSquare) * kSquare, 0.5F);
      std::vector<float> out(a.size());
      blas.multiply(a.data(), a.data(), out.data(), kSquare);
    });
    plan.ratios.push_back({"sgemm / FMA units", kSgemm, kFma, "", false});
  }
  add(plan, kExpf, scalar_exponentials(), kGigaexps, [] { scalar_exponentials(); });
}

void add_kernels(BenchPlan& plan, const Subject& subject) {
  const HeadStream<float>& s = subject.stream;
  const TileShape t(s);
  add(plan, kScores, 2 * t.logits() * t.d, kGigaflops, [&s, t] { compute_scores(s, t); });
  add(plan, kValues, 2 * t.logits() * t.d_values, kGigaflops, [&s, t] { compute_values(s, t); });
  add(plan, kExponentials, t.logits(), kGigaexps, [t] { compute_exponentials(t); });
  plan.ratios.push_back({"scores / FMA units", kScores, kFma, "", false});
  plan.ratios.push_back({"values / FMA units", kValues, kFma, "", false});
  plan.ratios.push_back({"exponentials / scalar expf", kExponentials, kExpf, "", false});
}

void add_replays(BenchPlan& plan, const Subject& subject) {
  const HeadStream<float>& s = subject.stream;
  add(plan, kExactPass, exact_operations(s), kGigaflops, [&subject] { exact_outputs(subject); });
  add(plan, kPrompt, prompt_logits(s), kGigalogits, [&subject] { prompt_statistics(subject); });
  plan.ratios.push_back({"exact pass / FMA units", kExactPass, kFma, "", false});
  plan.ratios.push_back({"exact pass / sgemm", kExactPass, kSgemm, "", false});
  for (size_t m = 0; m < subject.methods.size(); ++m) add_method(plan, subject, m);
  add_cells(plan, kEverything, subject, subject.cells);
  plan.ratios.push_back({"everything / exact pass", kEverything, kExactPass, "", true});
}

void add_lengths(BenchPlan& plan, const Subject& one, const Subject& four) {
  for (size_t m = 0; m < one.methods.size(); ++m) {
    const auto name = [&](const Subject& subject) {
      return fmt::format("{}, {} tokens, sampled queries", one.methods[m], subject.stream.tokens);
    };
    for (const Subject* subject : {&one, &four}) add_cells(plan, name(*subject), *subject, subject->chosen(m, {}));
    plan.ratios.push_back(
        {fmt::format("{}, time({}) / time({})", one.methods[m], four.stream.tokens, one.stream.tokens), name(four),
         name(one), "", true});
  }
}

}  // namespace kvreplay::app
