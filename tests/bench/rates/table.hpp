#pragma once
#include <string>
#include <vector>

#include "tests/bench/rates/rounds.hpp"

namespace kvreplay::app {

// How seconds become the number that is shown.
struct RateUnit {
  const char* name;
  double factor;
  bool inverted;  // time for a piece of work instead of work in a time
};
inline constexpr RateUnit kGigaflops{"GF/s", 1e-9, false}, kGigalogits{"Glogit/s", 1e-9, false},
    kGigaexps{"Gexp/s", 1e-9, false}, kMicroseconds{"us/token/head", 1e6, true};

struct Measured {
  std::string name;
  TaskTime time;
  Clock clock;
  double work;  // in the unit's own count: operations, logits, exponentials, or tokens x heads
  RateUnit unit;
  double rate() const;  // of the shortest time
};

// One measurement beside another, by names. Rates are divided, or times; `minus` names a part that both
// contain and that is taken off first.
struct RatioSpec {
  std::string name, of, to, minus;
  bool of_times;
};
struct Ratio {
  RatioSpec spec;
  double value;
};

struct BenchTable {
  std::vector<Measured> rates;
  std::vector<Ratio> ratios;
};
// Leaves out a ratio if a name of it was not measured (no OpenBLAS), or if nothing remains to divide by.
std::vector<Ratio> ratios_of(const std::vector<Measured>& rates, const std::vector<RatioSpec>& specs);

std::string text_of(const BenchTable& table);
// kind, name, value, unit, min_s, median_s, clock, of, to, minus: `kind` is rate or ratio, `clock` cpu or
// wall.
std::string csv_of(const BenchTable& table);
// facts: a JSON object; its members stand beside the table's.
std::string json_of(const BenchTable& table, const std::string& facts);

}  // namespace kvreplay::app
