#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "measures/measure.hpp"
#include "measures/sums.hpp"

namespace kvreplay {

// A part of the text whose rows are scored together: an output, or a branch.
struct SegmentStart {
  int32_t number = 0;          // its index in the trace
  std::string name;            // or its kind, if it has none
  int32_t tokens_seen = 0;     // before its first token
  double resident_tokens = 0;  // held then, mean over the caches of the kv head
};

// Errors of one segment: a row of segments.csv.
struct SegmentResult : SegmentStart {
  int32_t first_row = 0;  // token
  int64_t rows = 0;
  // Over query heads and rows; no value if there is no row to divide by.
  std::optional<double> rel_err_mean, rel_err_max, kept_mass_mean, needle_mass;
};

// Collects rows segment by segment. Without segments it does nothing.
class SegmentErrors {
 public:
  void open(const SegmentStart& start);
  void add(const MeasuredRow& row);
  // Sets n_segments, worst_segment, worst_rel_err_out_mean and first_rel_err_out_mean.
  std::vector<SegmentResult> finish(Measured& to) const;

 private:
  struct Sum {
    SegmentStart start;
    int32_t first_row = 0;
    int64_t rows = 0;
    Sums errors, masses, needles;
  };
  std::vector<Sum> sums_;
};

}  // namespace kvreplay
