#include "apps/summary.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"
#include "sizing/shares.hpp"

namespace kvreplay::app {
namespace {

constexpr double kWholeBelow = 1e6;  // from here on, numbers that are not sizes get an exponent
constexpr double kRounding = 1e-20;  // the square of a rounding error

}  // namespace

void Summary::Mean::add(const std::string& field) {
  if (field.empty()) return;
  sum += std::strtod(field.c_str(), nullptr);
  ++count;
}

std::string Summary::Mean::text(bool whole) const {
  if (count == 0) return "-";
  const double mean = sum / double(count);
  if (mean < kRounding) return "0";
  return mean >= 1000 && (whole || mean < kWholeBelow) ? fmt::format("{:.0f}", mean) : fmt::format("{:.4g}", mean);
}

std::string Summary::Group::budget_text() const {
  if (floor) return *floor > 0 ? fmt::format("needs {:.1f}%", *floor * 100) : "fails";
  if (most == 0) return "-";
  return least == most ? std::to_string(most) : fmt::format("{}-{}", least, most);
}

std::string Summary::Ratio::text() const {
  return full.sum > 0 ? fmt::format("{:.1f}", held.sum / full.sum * 100) : "-";
}

size_t Summary::rank_of(const std::string& label) {
  const auto [at, is_new] = rank_.emplace(label, labels_.size());
  if (is_new) labels_.push_back(label);
  return at->second;
}

void Summary::expect(const std::string& key, const std::string& label, int32_t budget,
                     const std::vector<double>& shares) {
  const size_t rank = rank_of(label);
  std::vector<GroupKey>& own = groups_of_[key];
  for (const double share : shares) own.emplace_back(rank, share, 0);
  if (shares.empty()) own.emplace_back(rank, 0, budget);
  for (const GroupKey& at : own) {
    Group& group = groups_[at];
    group.least = group.planned == 0 ? budget : std::min(group.least, budget);
    group.most = std::max(group.most, budget);
    ++group.planned;
  }
}

void Summary::expect_none(const std::string& label, double share, double floor) {
  groups_[{rank_of(label), share, 0}].floor = floor;
}

void Summary::add(const Fields& row) {
  const auto field = [&](const char* name) -> const std::string& { return row[column_index(name)]; };
  const bool ok = field("status") == "ok";
  for (const GroupKey& at : groups_of_.at(field("key"))) {
    Group& group = groups_[at];
    ++(ok ? group.ok : group.failed);
    for (size_t i = 0; ok && i < std::size(kMeans); ++i) group.means[i].add(field(kMeans[i]));
    if (!ok) continue;
    group.of_prompt.held.add(field("prompt_bytes")), group.of_prompt.full.add(field("prompt_full_bytes"));
    group.of_full.held.add(field("total_bytes")), group.of_full.full.add(field("full_bytes"));
  }
}

// With shares, each head has its own budget; a note on the smallest budget counts for the row.
std::string Summary::notes_of(const GroupKey& key, const Group& group, const Notes& notes) const {
  const std::string& label = labels_[std::get<size_t>(key)];
  const int32_t budget = std::get<double>(key) > 0 ? group.least : std::get<int32_t>(key);
  std::vector<std::string> said;
  for (const Note& note : notes)
    if (const Note::Concerned* one = note.concerned(label, budget)) said.push_back(one->brief);
  return join(said, "; ");
}

// Adds the last column, left-aligned; nothing if there are no notes.
void Summary::add_notes(const Notes& notes, std::vector<std::vector<std::string>>& rows) const {
  std::vector<std::string> column = {"notes"};
  for (const auto& [key, group] : groups_) column.push_back(notes_of(key, group, notes));
  if (std::all_of(column.begin() + 1, column.end(), [](const std::string& note) { return note.empty(); })) return;
  size_t width = 0;
  for (const std::string& note : column) width = std::max(width, note.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(fmt::format("{:<{}}", column[i], width));
}

std::string Summary::text(const Notes& notes) const {
  const auto some = [&](auto is) { return std::any_of(groups_.begin(), groups_.end(), is); };
  const bool missing = some([](const auto& g) { return g.second.planned > g.second.ok + g.second.failed; });
  const bool prompts = some([](const auto& g) { return g.second.of_prompt.full.sum > 0; });
  const bool shares = some([](const auto& g) { return std::get<double>(g.first) > 0; });
  std::vector<std::vector<std::string>> rows = {{"method", "budget"}};
  if (shares) rows[0].insert(rows[0].begin() + 1, "share");
  rows[0].insert(rows[0].end(), std::begin(kMeans), std::end(kMeans));
  if (prompts) rows[0].emplace_back("% of prompt");
  rows[0].insert(rows[0].end(), {"% of full", "ok", "failed"});
  if (missing) rows[0].emplace_back("missing");
  for (const auto& [key, group] : groups_) {
    const auto& [rank, share, budget] = key;
    std::vector<std::string> row = {labels_[rank]};
    if (shares) row.push_back(share > 0 ? percent_text(share) : "-");
    row.push_back(group.budget_text());
    for (size_t i = 0; i < std::size(kMeans); ++i) row.push_back(group.means[i].text(i >= kSizesFrom));
    if (prompts) row.push_back(group.of_prompt.text());
    row.push_back(group.of_full.text());
    row.push_back(std::to_string(group.ok));
    row.push_back(std::to_string(group.failed));
    if (missing) row.push_back(std::to_string(group.planned - group.ok - group.failed));
    rows.push_back(std::move(row));
  }
  add_notes(notes, rows);
  return aligned(rows);
}

void Failures::add(const Fields& row) {
  if (row[column_index("status")] != "ok") ++reasons_[row[column_index("method")] + ": " + row[column_index("error")]];
}

void Failures::tell(Console& console) const {
  constexpr size_t kTold = 5;
  size_t told = 0;
  for (const auto& [reason, count] : reasons_)
    if (told++ < kTold) console.error(fmt::format("{} cells failed: {}", count, reason));
  if (reasons_.size() > kTold)
    console.error(fmt::format("and {} other reasons, see the column `error`", reasons_.size() - kTold));
}

void warn_damaged_lines(const ResultsFolder& folder, Console& console) {
  if (folder.shards().unreadable_lines == 0) return;
  console.warning(fmt::format("{}: {} damaged lines in shards/ and attempts/ are left out; their cells are replayed",
                              folder.dir().string(), folder.shards().unreadable_lines));
}

}  // namespace kvreplay::app
