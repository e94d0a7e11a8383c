#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "config/problems.hpp"
#include "config/values.hpp"
#include "core/row_format.hpp"

// The parts of row_format that choose among formats: by age, by layer and kv head.

namespace kvreplay {

using ReadFormat = std::function<std::optional<RowFormat>(const Node&)>;

// list: the value of `age`.
void read_ages(Problems& problems, const Node& list, const ReadFormat& read, RowFormat& to);
// list: the value of `by`.
void read_rules(Problems& problems, const Node& list, const ReadFormat& read, RowFormat& to);
// A file with the heading layer,kv_head,row_format. mark: where the configuration names it.
void read_rules_file(Problems& problems, const Mark& mark, const std::filesystem::path& file, const ReadFormat& read,
                     RowFormat& to);

// Why rows of a format cannot change with their age; "" if they can.
std::string aging_problem(const RowFormat& entry);

}  // namespace kvreplay
