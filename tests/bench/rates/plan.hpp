#pragma once
#include <string>
#include <vector>

#include "tests/bench/rates/limits.hpp"
#include "tests/bench/rates/subject.hpp"
#include "tests/bench/rates/table.hpp"

namespace kvreplay::app {

// All measurements of a bench, in the order of its table.
struct BenchPlan {
  struct Entry {
    Task task;
    double work;
    RateUnit unit;
  };
  std::vector<Entry> entries;
  std::vector<RatioSpec> ratios;
};

// Names of parts that ratios refer to.
inline constexpr const char *kExactPass = "exact pass", *kEverything = "everything";
// for example "h2o, 5 budgets"
std::string name_with_count(const Subject& subject, size_t method);

// The arguments must exist as long as the plan's tasks.
void add_limits(BenchPlan& plan, const Blas& blas);
// Tiles of the engine's own products and exponentials, at the subject's shapes.
void add_kernels(BenchPlan& plan, const Subject& subject);
// The exact pass, the prompt's statistics, each method at all budgets and at the largest, and everything.
void add_replays(BenchPlan& plan, const Subject& subject);
// Each method of `one` at its largest budget, on a trace and on one four times as long.
void add_lengths(BenchPlan& plan, const Subject& one, const Subject& four);

}  // namespace kvreplay::app
