#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "results/store.hpp"

// Where the columns of results.csv get their values.

namespace kvreplay {

// Values of one row by column name; null is an empty field. `run` holds what is the same for all cells of
// a process (Store). A measure that is not a finite number is a bug of ours: the row is then a failed one
// that says so.
nlohmann::json row_values(const Cell& cell, const CellResult& result, const nlohmann::json& run);
// One field per column, as text without quotes.
std::vector<std::string> row_fields(const nlohmann::json& values);
// Name -> {unit, help, timing}, for results.meta.json.
nlohmann::json describe_columns();

std::vector<std::string> column_names();
// Fields joined by commas and quoted where needed, with the line's end.
std::string csv_line(const std::vector<std::string>& fields);

}  // namespace kvreplay
