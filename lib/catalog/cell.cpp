#include "catalog/cell.hpp"

namespace kvreplay {

Council council_of(const Cell& cell) {
  if (cell.method->council != Council::none) return cell.method->council;
  switch (cell.axes.allocator) {
    case Allocator::uniform:
      return Council::none;
    case Allocator::ada:
      return Council::layer;
    case Allocator::cake:
      return Council::model;
    case Allocator::pyramid:
    case Allocator::file:
      return Council::head;
  }
  return Council::none;
}

bool needs_no_other_head(const Cell& cell) {
  const Allocator rule = cell.axes.allocator;
  return rule == Allocator::pyramid || rule == Allocator::file || council_of(cell) == Council::head;
}

bool hears_all_layers(const Cell& cell) {
  return !needs_no_other_head(cell) && council_of(cell) == Council::model;
}

nlohmann::json given_of(const Cell& cell) {
  nlohmann::json given = given_of(*cell.method, cell.given, cell.axes);
  if (cell.axes.allocator == Allocator::file) given["allocator"] = cell.params.at("allocator");
  // What a file says of its lists is not given with the method, and may differ from head to head.
  if (!cell.kept.empty()) given.erase("phase");
  if (cell.lists_say_order) given.erase("order");
  return given;
}

}  // namespace kvreplay
