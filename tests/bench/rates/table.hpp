#pragma once
#include <string>
#include <vector>

#include "tests/bench/rates/rounds.hpp"

namespace kvreplay::app {

// How seconds become the displayed number.
struct RateUnit {
  const char* name;
  double factor;
  bool inverted;  // time per work instead of work per time
};
inline constexpr RateUnit kGigaflops{"GF/s", 1e-9, false}, kGigalogits{"Glogit/s", 1e-9, false},
    kGigaexps{"Gexp/s", 1e-9, false}, kMicroseconds{"us/token/head", 1e6, true};

struct Measured {
  std::string name;
  TaskTime time;
  Clock clock;
  double work;  // counted in the unit: operations, logits, exponentials, or tokens x heads
  RateUnit unit;
  double rate() const;  // from the shortest time
};

// The ratio of two measurements, by names. Divides rates, or times. `minus` names a part of both that is subtracted
// first.
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
// Leaves out a ratio if one of its names was not measured (no OpenBLAS), or if the divisor is zero.
std::vector<Ratio> ratios_of(const std::vector<Measured>& rates, const std::vector<RatioSpec>& specs);

std::string text_of(const BenchTable& table);
// Columns: kind, name, value, unit, min_s, median_s, clock, of, to, minus. `kind` is rate or ratio, `clock` cpu or
// wall.
std::string csv_of(const BenchTable& table);
// facts: a JSON object, whose members are added to the table's.
std::string json_of(const BenchTable& table, const std::string& facts);

}  // namespace kvreplay::app
