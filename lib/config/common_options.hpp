#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catalog/bound_method.hpp"
#include "config/run_config.hpp"
#include "config/values.hpp"

// The axes that every method can be combined with: their names and values, and which combinations mean
// something.

namespace kvreplay {

constexpr const char* kFilePrefix = "file:";  // of an allocator that reads its budgets from a file

// The axes of conventions C4, C6, C9, C14, the row formats, and the values they take.
const std::map<std::string, std::vector<std::string>>& option_words();
// A value that was read: a word, or a row format with its parameters.
struct OptionValue {
  std::string word;
  RowFormat row_format = {};
  bool operator==(const OptionValue& other) const {
    return word == other.word && row_format_json(row_format) == row_format_json(other.row_format);
  }
};
void set_option(CommonOptions& options, const std::string& name, const OptionValue& value);
// row_format: a word, or {name: kivi, bits: 2, g: 32, R: 128}.
std::optional<OptionValue> read_row_format(Problems& problems, const Node& item);
// Why a combination has no meaning, and what to do instead; "" when it has one.
std::string senseless(const MethodInstance& m);

}  // namespace kvreplay
