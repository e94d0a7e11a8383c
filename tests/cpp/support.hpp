#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "replay/head_replay.hpp"

// Streams and cells in memory, so that methods are tested without files.

namespace kvreplay::test {

struct StreamShape {
  int32_t tokens = 96, prompt = 64, dim = 8, v_dim = 8, heads = 2;
};

// Kinds of synthetic streams; keys, values and queries are Gaussian, drawn from a seed.
enum class Look { gaussian, clustered, sinks, duplicates, zero_rows, huge_norms };
template <class Real>
HeadStream<Real> make_stream(StreamShape s, uint32_t seed = 1, Look look = Look::gaussian);

// Two kv heads of one layer.
HeadStream<double> layer_of(const HeadStream<double>& a, const HeadStream<double>& b);

Cell make_cell(const Method& method, std::optional<int32_t> budget, const StreamShape& s,
               const nlohmann::json& params = nlohmann::json::object(), CommonOptions options = {}, uint32_t seed = 0);
Cell make_cell(const std::string& method, std::optional<int32_t> budget, const StreamShape& s,
               const nlohmann::json& params = nlohmann::json::object(), CommonOptions options = {}, uint32_t seed = 0);
// A copy with a changed variant.
Cell changed(Cell cell, const std::function<void(Variant&)>& change);
// A copy whose prompt streams token by token.
Cell streamed(const Cell& cell);
nlohmann::json params_of(const Cell& cell);  // as in results
// The options of a method if the configuration sets none.
CommonOptions default_options(const std::string& method, const nlohmann::json& params = nlohmann::json::object());
MethodValues values_of(const Method& method, const nlohmann::json& params);
// {name: value} of all parameters, resolved in a context. Throws ParameterError.
nlohmann::json resolved_params(const std::string& method, const nlohmann::json& params, const MethodContext& context);

struct RunResult {
  std::vector<CellResult> cells;
  const CellResult& only() const { return cells.at(0); }
};
template <class Real>
RunResult replay(const HeadStream<Real>& stream, const std::vector<Cell>& cells, RunOptions options = {});

// The output of a scored row: [v_dim].
std::vector<double> output(const CellResult& r, int32_t head, size_t row);
std::vector<int32_t> kept_list(const CellResult& r, size_t i);
// Exact attention in double, by plain loops.
template <class Real>
std::vector<double> naive_attention(const HeadStream<Real>& stream, int32_t head, int32_t token,
                                    const std::vector<int32_t>& tokens, const std::vector<double>& num = {},
                                    const std::vector<double>& den = {});
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

// A set of parameters with which each method of the registry can run on the default stream.
std::vector<std::string> methods_with(bool (*want)(const Method&));

// A row format for both parts, by its name and JSON of parameters.
inline RowFormat format_with(const std::string& name,
                             const std::vector<std::pair<std::string, std::string>>& parameters = {}) {
  PartFormat format = part_format(name);
  for (const auto& [parameter, json] : parameters) set_parameter(format, parameter, json);
  return row_format(format);
}

}  // namespace kvreplay::test
