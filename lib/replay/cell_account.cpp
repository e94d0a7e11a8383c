#include "replay/cell_account.hpp"

#include <algorithm>

#include "measures/sums.hpp"

namespace kvreplay {
namespace {

struct Charged {
  int64_t CellMeasures::*to;
  int64_t LaneLedger::*from;
};
constexpr Charged kCharged[] = {
    {&CellMeasures::peak_bytes, &LaneLedger::peak_bytes},
    {&CellMeasures::aux_bytes, &LaneLedger::peak_aux_bytes},
    {&CellMeasures::score_bytes, &LaneLedger::score_bytes},
    {&CellMeasures::sketch_bytes, &LaneLedger::sketch_bytes},
    {&CellMeasures::index_bytes, &LaneLedger::index_bytes},
    {&CellMeasures::final_bytes, &LaneLedger::final_bytes},
    {&CellMeasures::key_floats, &LaneLedger::peak_key_floats},
    {&CellMeasures::value_floats, &LaneLedger::peak_value_floats},
    {&CellMeasures::weight_floats, &LaneLedger::peak_weight_floats},
};

double ratio(int64_t sum, int64_t count) { return count > 0 ? double(sum) / double(count) : 0.0; }

}  // namespace

void account_cell(std::span<const LaneLedger* const> ledgers, const CellSizes& sizes, CellMeasures& m) {
  const auto extra_bytes = [&](auto& to, auto amount) {
    to = sizes.shared ? std::max(to, amount) : to + amount;
  };
  double kept = 0, floats = 0, read = 0;
  int64_t attended = 0, rows = 0, read_steps = 0;
  std::vector<double> ages;
  for (const LaneLedger* ledger : ledgers) {
    const LaneLedger& l = *ledger;
    for (const Charged& c : kCharged) extra_bytes(m.*c.to, l.*c.from);
    m.peak_kept_tokens = std::max(m.peak_kept_tokens, l.peak_kept);
    m.peak_attended_tokens = std::max(m.peak_attended_tokens, l.peak_attended);
    kept += ratio(l.kept_sum, l.kept_steps);
    attended += l.attended_sum, rows += l.attended_rows;
    extra_bytes(m.mean_bytes, ratio(l.bytes_sum, l.kept_steps));
    extra_bytes(floats, double(l.peak_floats));
    read += ratio(l.read_sum, l.read_steps), read_steps += l.read_steps;
    ages.insert(ages.end(), l.evicted_ages.begin(), l.evicted_ages.end());
    m.n_evictions += l.evictions;
    m.n_quantised += l.quantised;
    m.select_s += l.select_s;
    m.attend_s += l.attend_s;
    m.extras.insert(l.extras.begin(), l.extras.end());
  }
  m.mean_kept_tokens = kept / double(ledgers.size());
  if (rows > 0) m.mean_attended_tokens = double(attended) / double(rows);
  m.total_bytes = m.peak_bytes + m.aux_bytes;
  m.equivalent_tokens = floats / sizes.row_floats;
  if (read_steps > 0) m.read_bytes_per_step = read;
  if (!ages.empty()) m.median_evicted_age_tokens = quantile(ages, 0.5);
  if (const auto bound = m.extras.find("bound_log10_tokens"); bound != m.extras.end())
    m.bound_log10_tokens = bound->second;
  m.full_bytes = int64_t(sizes.full_tokens) * sizes.row_floats * sizes.stored_bytes;
}

}  // namespace kvreplay
