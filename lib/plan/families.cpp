#include <set>
#include <tuple>

#include "plan/plan.hpp"

namespace kvreplay {
namespace {

using Family = std::tuple<Place, size_t, std::optional<uint32_t>>;

// kv heads that decide together are one family.
Family family_of(const Cell& cell) {
  Place place = cell.place;
  if (cell.options().gqa_level == GqaLevel::layer) place.kv_head = Place::kWholeLayer;
  return {std::move(place), cell.variant->instance, cell.seed};
}

}  // namespace

std::vector<Cell> with_families(const std::vector<Cell>& todo, const std::vector<Cell>& plan) {
  std::set<Family> wanted;
  for (const Cell& cell : todo) wanted.insert(family_of(cell));
  std::vector<Cell> cells;
  for (const Cell& cell : plan)
    if (wanted.count(family_of(cell)) != 0) cells.push_back(cell);
  return cells;
}

}  // namespace kvreplay
