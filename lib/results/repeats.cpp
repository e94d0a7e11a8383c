#include "results/repeats.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "results/columns.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

// The first column in which two rows differ, "" if they agree; what measures the run is left out.
std::string difference(const json& a, const json& b) {
  for (const Column& column : columns()) {
    const json x = a.value(column.name, json()), y = b.value(column.name, json());
    if (!column.timing && x != y) return fmt::format("{} ({} and {})", column.name, x.dump(), y.dump());
  }
  return "";
}

// Where it was computed is no result.
json numbers_of(const json& line) {
  json row = line.at("row");
  row.erase("device");
  return row;
}

}  // namespace

Repeats compare_repeats(const ResultsFolder& folder) {
  const Shards& shards = folder.shards();
  LineReader chosen_lines(shards), other_lines(shards);
  Repeats repeats;
  for (const auto& [key, at] : shards.repeats) {
    const Published& cell = shards.cells.at(key);
    const json chosen = chosen_lines.read(cell.at), other = other_lines.read(at);
    const std::string column = difference(numbers_of(chosen), numbers_of(other));
    const bool same_build = chosen.value("build", "") == other.value("build", "");
    if (column.empty()) ++repeats.equal;
    else if (cell.own_build && !same_build) ++repeats.replaced;
    else if (path_of(chosen) != path_of(other)) ++repeats.elsewhere;
    else
      throw InconsistentError(
          fmt::format("{}: two results on one path ({}): {} differ in {}, in {} and {}. Remove the file that "
                      "is wrong, or replay "
                      "with one build: kvreplay sweep work --stale",
                      key, path_of(chosen), same_build ? "they" : "two builds", column,
                      shards.files[cell.at.file].string(), shards.files[at.file].string()));
  }
  return repeats;
}

}  // namespace kvreplay
