#pragma once
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "apps/console.hpp"
#include "apps/text_table.hpp"
#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "results/note.hpp"
#include "results/store.hpp"

namespace kvreplay::app {

// The table that `run` and `sweep merge` print: one row per (method instance, budget) or per (method instance, share of
// the cache), means over its cells.
class Summary {
 public:
  // Adds a cell of the plan; instances are shown in order of appearance. budget 0: none; shares: those that the budget
  // was asked for.
  void expect(const std::string& key, const std::string& label, int32_t budget, const std::vector<double>& shares);
  // A share that an instance reaches nowhere; floor: the smallest share that it can reach, 0 if no budget can be
  // replayed.
  void expect_none(const std::string& label, double share, double floor);
  void add(const Fields& row);
  std::string text(const Notes& notes) const;

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
    void add(const std::string& field);
    std::string text(bool whole) const;  // whole: a size, printed with all digits
  };
  static constexpr const char* kMeans[] = {"cosine_distance_sq", "rel_err_out_mean", "kept_mass_mean",
                                           "peak_kept_tokens", "total_bytes"};
  static constexpr size_t kSizesFrom = 3;
  struct Ratio {  // a ratio of sums: bytes of the cells over bytes of full caches
    Mean held, full;
    std::string text() const;
  };
  struct Group {
    std::array<Mean, std::size(kMeans)> means;
    Ratio of_prompt, of_full;
    int32_t least = 0, most = 0;  // range of its cells' budgets
    int64_t planned = 0, ok = 0, failed = 0;
    std::optional<double> floor;  // no cell reaches the share
    std::string budget_text() const;
  };
  using GroupKey = std::tuple<size_t, double, int32_t>;  // index of the label, share (0: none), budget (0: by share)
  size_t rank_of(const std::string& label);
  std::string notes_of(const GroupKey& key, const Group& group, const Notes& notes) const;
  void add_notes(const Notes& notes, std::vector<std::vector<std::string>>& rows) const;

  std::map<std::string, size_t> rank_;  // rank of each label
  std::vector<std::string> labels_;     // by rank
  std::map<GroupKey, Group> groups_;
  std::unordered_map<std::string, std::vector<GroupKey>> groups_of_;  // by a cell's key
};

// Counts cells by reason of failure.
class Failures {
 public:
  void add(const Fields& row);
  void tell(Console& console) const;

 private:
  std::map<std::string, size_t> reasons_;
};

void warn_damaged_lines(const ResultsFolder& folder, Console& console);

}  // namespace kvreplay::app
