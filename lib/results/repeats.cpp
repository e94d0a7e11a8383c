#include "results/repeats.hpp"

#include <fmt/core.h>

#include "base/errors.hpp"
#include "results/columns.hpp"

namespace kvreplay {
namespace {

// The first column in which two rows differ, "" if they agree. Timings and the device are not compared.
std::string difference(const Fields& a, const Fields& b) {
  for (size_t i = 0; i < columns().size(); ++i) {
    const Column& column = columns()[i];
    if (column.timing || column.name == std::string_view("device") || a[i] == b[i]) continue;
    return fmt::format("{} ({} and {})", column.name, a[i], b[i]);
  }
  return "";
}

}  // namespace

Repeats compare_repeats(const ResultsFolder& folder) {
  const Shards& shards = folder.shards();
  LineReader chosen_lines(shards), other_lines(shards);
  Repeats repeats;
  for (const auto& [key, at] : shards.repeats) {
    const Published& cell = shards.cells.at(key);
    const CellLine chosen = chosen_lines.read(cell.at), other = other_lines.read(at);
    const std::string column = difference(chosen.fields, other.fields);
    const bool same_build = chosen.build == other.build;
    if (column.empty()) ++repeats.equal;
    else if (cell.own_build && !same_build) ++repeats.replaced;
    else if (chosen.path != other.path) ++repeats.elsewhere;
    else
      throw InconsistentError(
          fmt::format("{}: two results on one path ({}): {} differ in {}, in {} and {}. Remove the file that "
                      "is wrong, or replay "
                      "with one build: kvreplay sweep work --stale",
                      key, chosen.path, same_build ? "they" : "two builds", column, shards.files[cell.at.file].string(),
                      shards.files[at.file].string()));
  }
  return repeats;
}

}  // namespace kvreplay
