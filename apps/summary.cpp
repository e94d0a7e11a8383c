#include "apps/summary.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"

namespace kvreplay::app {

std::string instance_text(const MethodInstance& instance) {
  return NamedInstance{instance.method().info.name, given_json(instance.values, instance.options)}.label();
}

void Summary::Mean::add(const std::string& field) {
  if (field.empty()) return;
  sum += std::strtod(field.c_str(), nullptr);
  ++count;
}

std::string Summary::Mean::text() const {
  if (count == 0) return "-";
  const double mean = sum / double(count);
  return mean >= 1000 ? fmt::format("{:.0f}", mean) : fmt::format("{:.4g}", mean);
}

void Summary::expect(const std::string& key, const std::string& label, int32_t budget) {
  const auto [at, is_new] = rank_.emplace(label, labels_.size());
  if (is_new) labels_.push_back(label);
  group_of_[key] = {at->second, budget};
  ++groups_[{at->second, budget}].planned;
}

void Summary::add(const Fields& row) {
  const auto field = [&](const char* name) -> const std::string& { return row[column_index(name)]; };
  Group& group = groups_[group_of_.at(field("key"))];
  const bool ok = field("status") == "ok";
  ++(ok ? group.ok : group.failed);
  for (size_t i = 0; ok && i < std::size(kMeans); ++i) group.means[i].add(field(kMeans[i]));
}

std::string Summary::notes_of(const GroupKey& key, const Notes& notes) const {
  const auto& [rank, budget] = key;
  std::vector<std::string> said;
  for (const Note& note : notes)
    if (const Note::Concerned* one = note.concerned(labels_[rank], budget)) said.push_back(one->brief);
  return join(said, "; ");
}

// The last column, from the left; without a note there is none.
void Summary::add_notes(const Notes& notes, std::vector<std::vector<std::string>>& rows) const {
  std::vector<std::string> column = {"notes"};
  for (const auto& [key, group] : groups_) column.push_back(notes_of(key, notes));
  if (std::all_of(column.begin() + 1, column.end(), [](const std::string& note) { return note.empty(); })) return;
  size_t width = 0;
  for (const std::string& note : column) width = std::max(width, note.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(fmt::format("{:<{}}", column[i], width));
}

std::string Summary::text(const Notes& notes) const {
  const bool missing = std::any_of(groups_.begin(), groups_.end(),
                                   [](const auto& g) { return g.second.planned > g.second.ok + g.second.failed; });
  std::vector<std::vector<std::string>> rows = {{"method", "budget"}};
  rows[0].insert(rows[0].end(), std::begin(kMeans), std::end(kMeans));
  rows[0].insert(rows[0].end(), {"ok", "failed"});
  if (missing) rows[0].emplace_back("missing");
  for (const auto& [key, group] : groups_) {
    const auto& [rank, budget] = key;
    std::vector<std::string> row = {labels_[rank], budget > 0 ? std::to_string(budget) : "-"};
    for (const Mean& mean : group.means) row.push_back(mean.text());
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

void tell_damaged_lines(const ResultsFolder& folder, Console& console) {
  if (folder.shards().unreadable_lines == 0) return;
  console.warning(fmt::format("{}: {} damaged lines in shards/ and attempts/ are left out; their cells are replayed",
                              folder.dir().string(), folder.shards().unreadable_lines));
}

}  // namespace kvreplay::app
