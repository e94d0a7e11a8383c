#include "catalog/cell.hpp"

namespace kvreplay {

SharedOver shared_over_of(const Cell& cell) {
  if (cell.method->shared_over != SharedOver::none) return cell.method->shared_over;
  switch (cell.options.allocator) {
    case Allocator::uniform:
      return SharedOver::none;
    case Allocator::ada:
      return SharedOver::layer;
    case Allocator::cake:
      return SharedOver::model;
    case Allocator::pyramid:
    case Allocator::file:
      return SharedOver::head;
  }
  return SharedOver::none;
}

bool needs_no_other_head(const Cell& cell) {
  const Allocator rule = cell.options.allocator;
  return rule == Allocator::pyramid || rule == Allocator::file || shared_over_of(cell) == SharedOver::head;
}

bool hears_all_layers(const Cell& cell) {
  return !needs_no_other_head(cell) && shared_over_of(cell) == SharedOver::model;
}

nlohmann::json given_of(const Cell& cell) {
  nlohmann::json given = given_of(*cell.method, cell.given, cell.options);
  if (cell.options.allocator == Allocator::file) given["allocator"] = cell.params.at("allocator");
  // What a file says of its lists is not given with the method, and may differ from head to head.
  if (!cell.kept.empty()) given.erase("phase");
  if (cell.lists_say_order) given.erase("order");
  return given;
}

}  // namespace kvreplay
