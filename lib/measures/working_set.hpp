#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "catalog/working_set_options.hpp"
#include "measures/metrics.hpp"
#include "measures/row_result.hpp"
#include "measures/sums.hpp"

namespace kvreplay {

// The tokens of a kv head that a fast tier of memory holds (docs/measures.md, working sets).
class HotTier {
 public:
  // evicts: the method decides what is stored, and `method` means these tokens.
  HotTier(const TierOptions& options, int32_t tokens, int32_t prompt, bool evicts);
  bool any() const { return options_.any(); }
  bool by_scores() const { return options_.policy == TierOptions::Policy::method && !evicts_; }
  bool by_residents() const { return options_.policy == TierOptions::Policy::method && evicts_; }
  // The tokens that are stored when the first row arrives. Needed by_residents() alone.
  void hold(const std::vector<int32_t>& residents);
  // Row t asks for tokens; token t itself does not count.
  void ask(int32_t t, std::span<const int32_t> tokens);
  // The end of step t. residents: the tokens that are stored then, for by_residents(). scores: [tokens], for
  // by_scores(). Otherwise unused.
  void close(int32_t t, std::span<const int32_t> residents, std::span<const double> scores);
  void go_on(const HotTier& before);  // adds the counts of another text
  void finish(Measured& to, double row_bytes) const;

 private:
  template <class Before>
  void keep_best(std::vector<int32_t>& candidates, Before before);

  TierOptions options_;
  bool evicts_;
  std::vector<uint8_t> is_hot_;  // [tokens]
  std::vector<int32_t> hot_;     // the same as a list
  std::vector<int32_t> use_;     // [tokens] last use
  int64_t requests_ = 0, hits_ = 0;
  Sums misses_;  // one number per row
};

struct WorkingSetShape {
  int32_t tokens, prompt;  // length of the text and of its prompt
  int32_t caches;          // that the cell has: several if each query head has its own
  int32_t blocks;          // kv heads in a cache
  bool chooses;            // a query-time method
  bool own_index;          // each cache has an index of its own
  bool evicts_first;       // order: evict_then_attend
  int32_t stored_bytes;    // one number takes
  int32_t row_floats;      // d + dv
};

// What the steps of a kv head read: tokens in the union of its group's sets, bytes of an index, and a hot tier.
class WorkingSet {
 public:
  WorkingSet(const WorkingSetShape& shape, const TierOptions& tier);
  // One cache's reads in a row. Rows of a cache ascend; a row is complete once all caches have added it. top: the
  // tokens that the row asks a tier for, if `TierOptions::top` is set.
  void add(int32_t token, const StepReads& reads, std::span<const int32_t> top);
  // The tokens that the caches hold when the first row arrives.
  void hold(const std::vector<int32_t>& residents) { tier_.hold(residents); }
  bool needs_residents() const { return tier_.by_residents() && shape_.evicts_first; }
  void go_on(const WorkingSet& before);  // adds the rows of another text
  void finish(Measured& to) const;

 private:
  // A row that some caches have added.
  struct Open {
    int32_t added = 0;
    int64_t tokens = 0, others = 0, scanned = 0;  // without lists: of the only cache
    double index_bytes = 0;                       // whatever is read
    int64_t floats_per_row = 0, bytes_per_scan = 0;
    std::vector<int32_t> read, scan;
    std::vector<double> scores;  // [tokens]
  };
  void close(int32_t token, Open& row, std::span<const int32_t> top);
  int64_t unite(std::vector<int32_t>& tokens);
  void add_scores(const StepReads& reads, std::vector<double>& scores) const;

  WorkingSetShape shape_;
  HotTier tier_;
  std::map<int32_t, Open> open_;
  std::vector<uint8_t> seen_;  // [tokens] 0 between calls
  Sums kv_rows_, index_bytes_;
};

// What steps would take and how many sequences would fit. caches: of the model. held_rows: that a sequence holds at the
// end of the text, for a kv head. Needs the measures of a WorkingSet.
void measure_machine(const MachineOptions& machine, int64_t caches, double held_rows, double row_bytes, Measured& to);

}  // namespace kvreplay
