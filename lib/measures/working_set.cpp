#include "measures/working_set.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/select.hpp"

namespace kvreplay {

HotTier::HotTier(const TierOptions& options, int32_t tokens, int32_t prompt, bool evicts)
    : options_(options), evicts_(evicts) {
  if (!options.any()) return;
  is_hot_.assign(size_t(tokens), 0);
  use_.resize(size_t(tokens));
  std::iota(use_.begin(), use_.end(), 0);
  if (by_residents()) return;
  for (int32_t token = std::max(0, prompt - options.hot); token < prompt; ++token)
    hot_.push_back(token), is_hot_[size_t(token)] = 1;
}

void HotTier::hold(const std::vector<int32_t>& residents) {
  for (const int32_t token : hot_) is_hot_[size_t(token)] = 0;
  hot_ = residents;
  for (const int32_t token : hot_) is_hot_[size_t(token)] = 1;
}

void HotTier::ask(int32_t t, std::span<const int32_t> tokens) {
  int64_t misses = 0;
  for (const int32_t token : tokens) {
    if (token == t) continue;
    ++requests_;
    misses += is_hot_[size_t(token)] != 0 ? 0 : 1;
    use_[size_t(token)] = t;
  }
  hits_ += int64_t(tokens.size()) - std::count(tokens.begin(), tokens.end(), t) - misses;
  misses_.add(double(misses));
  if (options_.policy == TierOptions::Policy::method) return;
  hot_.insert(hot_.end(), tokens.begin(), tokens.end());
}

// Whatever is not hot and was not asked for has been used less recently than all that is hot.
void HotTier::close(int32_t t, std::span<const int32_t> residents, std::span<const double> scores) {
  if (by_residents()) return hold({residents.begin(), residents.end()});
  std::vector<int32_t> candidates;
  if (by_scores()) {
    candidates.resize(size_t(t) + 1);
    std::iota(candidates.begin(), candidates.end(), 0);
    return keep_best(candidates, [&](int32_t a, int32_t b) {
      const uint64_t of_a = order_key(scores[size_t(a)]), of_b = order_key(scores[size_t(b)]);
      return of_a != of_b ? of_a > of_b : a < b;
    });
  }
  candidates = hot_;
  candidates.push_back(t);
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  keep_best(candidates, [&](int32_t a, int32_t b) {
    const int32_t of_a = use_[size_t(a)], of_b = use_[size_t(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
}

template <class Before>
void HotTier::keep_best(std::vector<int32_t>& candidates, Before before) {
  const size_t count = std::min(candidates.size(), size_t(options_.hot));
  std::nth_element(candidates.begin(), candidates.begin() + int64_t(count), candidates.end(), before);
  candidates.resize(count);
  hold(candidates);
}

void HotTier::go_on(const HotTier& before) {
  requests_ += before.requests_, hits_ += before.hits_;
  misses_.add_all(before.misses_);
}

void HotTier::finish(Measured& to, double row_bytes) const {
  if (!options_.any() || misses_.count() == 0) return;
  if (requests_ > 0) to["tier_hit_rate"] = double(hits_) / double(requests_);
  to["tier_swap_tokens_per_step"] = misses_.mean();
  to["tier_swap_tokens_peak"] = misses_.maximum();
  to["tier_swap_bytes_per_step"] = *misses_.mean() * row_bytes;
}

WorkingSet::WorkingSet(const WorkingSetShape& shape, const TierOptions& tier)
    : shape_(shape), tier_(tier, shape.tokens, shape.prompt, !shape.chooses), seen_(size_t(shape.tokens), 0) {}

void WorkingSet::add(int32_t token, const StepReads& reads, std::span<const int32_t> top) {
  Open& row = open_[token];
  row.tokens += reads.tokens, row.others += reads.others, row.scanned += reads.scanned;
  row.read.insert(row.read.end(), reads.read.begin(), reads.read.end());
  row.scan.insert(row.scan.end(), reads.scan.begin(), reads.scan.end());
  if (shape_.chooses) {
    const ExtraBytes& index = reads.index;
    const double bytes = index.floats_read() * shape_.stored_bytes + double(index.bytes_read());
    row.index_bytes = shape_.own_index || row.added == 0 ? row.index_bytes + bytes : std::max(row.index_bytes, bytes);
    row.floats_per_row = index.sketch_floats_per_row, row.bytes_per_scan = index.aux_bytes_per_scan;
  }
  if (tier_.by_scores()) add_scores(reads, row.scores);
  if (++row.added < shape_.caches) return;
  close(token, row, top);
  open_.erase(token);
}

// A token that is no candidate for some heads counts with those for which it is one.
void WorkingSet::add_scores(const StepReads& reads, std::vector<double>& scores) const {
  constexpr double kOutside = -std::numeric_limits<double>::infinity();
  scores.resize(size_t(shape_.tokens), kOutside);
  for (size_t i = 0; i < reads.held.size(); ++i) {
    double& sum = scores[size_t(reads.held[i])];
    if (reads.scores[i] != kOutside) sum = sum == kOutside ? reads.scores[i] : sum + reads.scores[i];
  }
}

// Leaves each token once; returns how many there are.
int64_t WorkingSet::unite(std::vector<int32_t>& tokens) {
  const auto is_new = [&](int32_t token) { return std::exchange(seen_[size_t(token)], uint8_t{1}) == 0; };
  tokens.erase(std::remove_if(tokens.begin(), tokens.end(), [&](int32_t token) { return !is_new(token); }),
               tokens.end());
  for (const int32_t token : tokens) seen_[size_t(token)] = 0;
  return int64_t(tokens.size());
}

void WorkingSet::close(int32_t t, Open& row, std::span<const int32_t> top) {
  if (shape_.caches > 1) {
    row.tokens = unite(row.read);
    row.scan.insert(row.scan.end(), row.read.begin(), row.read.end());
    row.scanned = unite(row.scan) - row.tokens;
  }
  kv_rows_.add(double(row.tokens + row.others));
  const double of_index = row.index_bytes + double(row.floats_per_row * shape_.stored_bytes * row.tokens +
                                                   row.bytes_per_scan * (row.tokens + row.scanned));
  index_bytes_.add(of_index / shape_.blocks);
  if (!tier_.any()) return;
  if (tier_.by_residents() && !shape_.evicts_first) {  // C_t without t was stored when the row arrived
    std::vector<int32_t> before = row.read;
    std::erase(before, t);
    tier_.hold(before);
  }
  tier_.ask(t, top.empty() ? std::span<const int32_t>(row.read) : top);
  tier_.close(t, row.read, row.scores);
}

void WorkingSet::go_on(const WorkingSet& before) {
  tier_.go_on(before.tier_);
  kv_rows_.add_all(before.kv_rows_), index_bytes_.add_all(before.index_bytes_);
}

void WorkingSet::finish(Measured& to) const {
  if (kv_rows_.count() == 0) return;
  const double row_bytes = double(shape_.row_floats) * shape_.stored_bytes;
  to["kv_read_bytes_per_step"] = *kv_rows_.mean() * row_bytes;
  to["index_read_bytes_per_step"] = index_bytes_.mean();
  tier_.finish(to, row_bytes);
}

void measure_machine(const MachineOptions& machine, int64_t caches, double held_rows, double row_bytes, Measured& to) {
  if (!machine.any() || !to["kv_read_bytes_per_step"]) return;
  const double copies = double(machine.batch) * double(caches);
  const double read = *to["kv_read_bytes_per_step"] + *to["index_read_bytes_per_step"];
  const double hbm_s = (machine.weights_bytes + copies * read) / machine.hbm_bw;
  const double link_s = copies * to["tier_swap_bytes_per_step"].value_or(0) / machine.link_bw;
  const double step_s = machine.overlap ? std::max(hbm_s, link_s) : hbm_s + link_s;
  to["model_tokens_per_s"] = double(machine.batch) / step_s;
  const double held = double(caches) * (held_rows * row_bytes + to["index_stored_bytes"].value_or(0));
  const double room = (1 - machine.reserve) * machine.hbm_bytes - machine.weights_bytes;
  to["model_max_batch"] = std::max(0.0, std::floor(room / held));
}

}  // namespace kvreplay
