#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/paths.hpp"

#ifdef KVREPLAY_HAS_CBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int threads);
#endif

// Rates of the kernels on every instruction set of this machine (one thread, process CPU time), beside their
// yardsticks: the machine's multiply-adds, a large sgemm, the standard library's exponential. Compare only ratios
// within one run, because machines and their load differ. The shapes are those of a tile: 48 queries of each of three
// heads, 64 numbers a vector, 4,096 tokens.

namespace {

using namespace kvreplay::kernels;

constexpr int32_t kTokens = 4096, kDim = 64, kRows = 144, kHeadRows = 48;

std::vector<float> gaussian(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& number : x) number = normal(random);
  return x;
}

void set_rate(benchmark::State& state, const char* name, double of_one_iteration) {
  state.counters[name] =
      benchmark::Counter(of_one_iteration * 1e-9 * double(state.iterations()), benchmark::Counter::kIsRate);
}

void scores_tile(benchmark::State& state, const Table* table) {
  const std::vector<float> q = gaussian(kRows * kDim, 1), k = gaussian(kTokens * kDim, 2);
  const KeyPanels<float> keys(k.data(), kTokens, kDim);
  std::vector<float> strip(size_t(kRows) * kTokens);
  for (auto _ : state) {
    table->of_float.scores(q.data(), kDim, kRows, keys.numbers.data(), kDim, kTokens, strip.data(), kTokens);
    benchmark::ClobberMemory();
  }
  set_rate(state, "GF/s", 2.0 * kRows * kDim * kTokens);
}

void values_tile(benchmark::State& state, const Table* table) {
  std::vector<float> weights = gaussian(size_t(kHeadRows) * kTokens, 3), out(kHeadRows * kDim);
  for (float& x : weights) x = std::exp(-std::abs(x));
  const std::vector<float> v = gaussian(kTokens * kDim, 4);
  for (auto _ : state) {
    table->of_float.multiply(weights.data(), kTokens, kHeadRows, v.data(), kTokens, kDim, out.data(), kDim, false);
    benchmark::ClobberMemory();
  }
  set_rate(state, "GF/s", 2.0 * kHeadRows * kDim * kTokens);
}

void tile_product(benchmark::State& state, const Table* table, bool exact) {
  std::vector<float> q = gaussian(kRows * kDim, 1), k = gaussian(kTokens * kDim, 2);
  const auto make_bf16 = [](float& x) { x = float(int32_t(x * 32)) / 32; };
  std::for_each(k.begin(), k.end(), make_bf16);
  if (exact) std::for_each(q.begin(), q.end(), make_bf16);
  const TilePanels keys(k.data(), kDim, kTokens, 1, kDim);
  const TileMatrix matrix = {keys.numbers.data(), keys.term_blocks};
  std::vector<float> strip(size_t(kRows) * kTokens);
  for (auto _ : state) {
    table->tile_product(q.data(), kDim, kRows, matrix, kDim, kTokens, strip.data(), kTokens);
    benchmark::ClobberMemory();
  }
  set_rate(state, "GF/s", 2.0 * kRows * kDim * kTokens);
}

// Repeats in place: the exponents settle at -0.567, which costs as much as any other number.
void exponential_row(benchmark::State& state, const Table* table) {
  std::vector<float> row = gaussian(kTokens, 5);
  for (float& x : row) x = std::abs(x);
  for (auto _ : state) benchmark::DoNotOptimize(table->of_float.exponentiate(row.data(), kTokens, -1, 0));
  set_rate(state, "Glogit/s", kTokens);
}

void maximum_row(benchmark::State& state, const Table* table) {
  const std::vector<float> row = gaussian(kTokens, 5);
  for (auto _ : state) benchmark::DoNotOptimize(table->of_float.row_maximum(row.data(), kTokens));
  set_rate(state, "G/s", kTokens);
}

void gather_columns(benchmark::State& state, const Table* table) {
  const std::vector<float> row = gaussian(kTokens, 5);
  std::mt19937 random(6);
  std::vector<int32_t> index;
  for (int32_t i = 0; i < kTokens; ++i)
    if (random() % 4 == 0) index.push_back(i);
  std::vector<float> out(index.size());
  for (auto _ : state)
    benchmark::DoNotOptimize(table->of_float.gather(row.data(), index.data(), int32_t(index.size()), out.data()));
  set_rate(state, "G/s", double(index.size()));
}

void scalar_exponential(benchmark::State& state) {
  std::vector<float> x = gaussian(kTokens, 5), e(kTokens);
  for (float& number : x) number = -std::abs(number);
  for (auto _ : state) {
    for (size_t i = 0; i < x.size(); ++i) {
      float y = std::exp(x[i]);
      benchmark::DoNotOptimize(y);
      e[i] = y;
    }
    benchmark::ClobberMemory();
  }
  set_rate(state, "Glogit/s", kTokens);
}

// The best rate of the vector multiply-adds: scores whose operands stay in the first-level cache and whose sums are so
// long that other work is negligible.
void multiply_adds(benchmark::State& state, const Table* table) {
  constexpr int32_t kTerms = 64, kRepeats = 64;
  const std::vector<float> q = gaussian(8 * kTerms, 1), k = gaussian(kPanel * kTerms, 2);
  const KeyPanels<float> keys(k.data(), kPanel, kTerms);
  std::vector<float> out(8 * kPanel);
  for (auto _ : state)
    for (int32_t i = 0; i < kRepeats; ++i) {
      table->of_float.scores(q.data(), kTerms, 8, keys.numbers.data(), kTerms, kPanel, out.data(), kPanel);
      benchmark::ClobberMemory();
    }
  set_rate(state, "GF/s", 2.0 * 8 * kTerms * kPanel * kRepeats);
}

#ifdef KVREPLAY_HAS_CBLAS
void sgemm(benchmark::State& state) {
  constexpr int kSize = 2048;
  openblas_set_num_threads(1);
  const std::vector<float> a = gaussian(size_t(kSize) * kSize, 7), b = gaussian(size_t(kSize) * kSize, 8);
  std::vector<float> c(a.size());
  for (auto _ : state)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a.data(), kSize, b.data(), kSize, 0,
                c.data(), kSize);
  set_rate(state, "GF/s", 2.0 * kSize * kSize * kSize);
}
#endif

void add_path(const Table* table) {
  const auto add = [&](const char* what, void (*run)(benchmark::State&, const Table*)) {
    benchmark::RegisterBenchmark((std::string(table->name) + "/" + what).c_str(), run, table);
  };
  if (table->tile_product != nullptr) {
    for (const bool exact : {false, true})
      benchmark::RegisterBenchmark(
          (std::string(table->name) + (exact ? "/scores of bf16 numbers" : "/scores of bf16 keys")).c_str(),
          tile_product, table, exact);
    return;  // all other kernels are those of avx512
  }
  add("scores", scores_tile);
  add("scores in the first-level cache", multiply_adds);
  add("values", values_tile);
  add("exponential", exponential_row);
  add("maximum", maximum_row);
  add("gather", gather_columns);
}

}  // namespace

int main(int argc, char** argv) {
#ifdef KVREPLAY_HAS_CBLAS
  benchmark::RegisterBenchmark("sgemm 2048^3", sgemm);
#endif
  benchmark::RegisterBenchmark("scalar exponential", scalar_exponential);
  for (const Path& path : paths())
    if (path.table != nullptr) add_path(path.table);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
