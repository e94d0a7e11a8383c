#include "measures/segment_errors.hpp"

namespace kvreplay {

void SegmentErrors::open(const SegmentStart& start) { sums_.emplace_back().start = start; }

void SegmentErrors::add(const MeasuredRow& row) {
  if (sums_.empty()) return;
  Sum& sum = sums_.back();
  if (row.head == 0) {
    if (sum.rows == 0) sum.first_row = row.exact.token;
    ++sum.rows;
  }
  sum.masses.add(row.row.kept_mass);
  if (!row.skipped) sum.errors.add(row.error / row.norm);
  if (!row.needles.empty() && row.needles.front() >= 0) sum.needles.add(row.needles.front());
}

std::vector<SegmentResult> SegmentErrors::finish(Measured& to) const {
  std::vector<SegmentResult> results;
  const SegmentResult* worst = nullptr;
  for (const Sum& sum : sums_)
    results.push_back({sum.start, sum.first_row, sum.rows, sum.errors.mean(), sum.errors.maximum(), sum.masses.mean(),
                       sum.needles.mean()});
  if (results.empty()) return results;
  to["n_segments"] = double(results.size());
  to["first_rel_err_out_mean"] = results.front().rel_err_mean;
  for (const SegmentResult& r : results)
    if (r.rel_err_mean && (worst == nullptr || *r.rel_err_mean > *worst->rel_err_mean)) worst = &r;
  if (worst == nullptr) return results;
  to["worst_segment"] = double(worst->number);
  to["worst_rel_err_out_mean"] = worst->rel_err_mean;
  return results;
}

}  // namespace kvreplay
