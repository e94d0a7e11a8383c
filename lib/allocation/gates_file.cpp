#include "allocation/gates_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "allocation/allocator_files.hpp"
#include "allocation/learned_budgets.hpp"
#include "allocation/shared_budgets.hpp"
#include "base/errors.hpp"

namespace kvreplay {
namespace {

// The optimiser leaves gates a little outside of 0..1; published files hold such numbers. A number further outside is
// no gate.
constexpr double kBeyond = 0.1;
constexpr double kRoundingOfQuantile = 1e-9;

struct GatesOfLayer {
  int line;
  std::vector<double> gates;
};

double gate_in(const std::string& field, const std::string& path, int line) {
  double gate = 0;
  const auto read = std::from_chars(field.data(), field.data() + field.size(), gate);
  if (read.ec != std::errc{} || read.ptr != field.data() + field.size())
    refuse_line(path, line, "\"" + field + "\" is not a number: write the gate of each kv head, from 0 to 1");
  if (!(gate >= -kBeyond && gate <= 1 + kBeyond))
    refuse_line(path, line, field + " is not a gate: write a number from 0 to 1 for each kv head");
  return std::clamp(gate, 0.0, 1.0);  // as published
}

std::vector<double> gates_in(const std::string& text, const std::string& path, int line) {
  constexpr const char* kBetween = " \t\r,";
  std::vector<double> gates;
  for (size_t from = text.find_first_not_of(kBetween); from != std::string::npos;) {
    const size_t to = std::min(text.find_first_of(kBetween, from), text.size());
    gates.push_back(gate_in(text.substr(from, to - from), path, line));
    from = text.find_first_not_of(kBetween, to);
  }
  return gates;
}

std::vector<GatesOfLayer> read_gates(const std::string& path) {
  std::vector<GatesOfLayer> layers;
  int line = 0;
  for (const std::string& text : lines_of_file(path, "gates"))
    if (const std::vector<double> gates = gates_in(text, path, ++line); !gates.empty()) layers.push_back({line, gates});
  return layers;
}

// Whether the file's table is that of the model. Every line counts in the quantile, also those of other layers.
void check_shape(const std::vector<GatesOfLayer>& file, const std::string& path, const std::vector<Place>& layers) {
  for (const Place& layer : layers)
    if (size_t(layer.layer) >= file.size())
      throw ConfigError(path + ": holds gates of " + std::to_string(file.size()) + " layers, and the trace has layer " +
                        std::to_string(layer.layer) +
                        ": take the file of this model, with a line for each of its layers from 0 on");
  for (size_t i = 0; i < file.size(); ++i) {
    const auto held = std::find_if(layers.begin(), layers.end(), [&](const Place& l) { return size_t(l.layer) == i; });
    const size_t wanted = held != layers.end() ? size_t(held->kv_head) : file.front().gates.size();
    if (file[i].gates.size() != wanted)
      refuse_line(path, file[i].line,
                  "holds " + std::to_string(file[i].gates.size()) + " gates, and layer " + std::to_string(i) + " has " +
                      std::to_string(wanted) + " kv heads: take the file of this model");
  }
}

// How many of `heads` gates lie below their quantile by linear interpolation.
size_t count_below(double quantile, size_t heads) {
  if (quantile >= 1) return heads;  // as published: nothing then keeps all tokens, not even the largest gate
  return size_t(std::ceil(quantile * double(heads - 1) - kRoundingOfQuantile));
}

// The method that defines what a streaming head holds, with the parameters of the cell.
MethodValues separating_method(const Cell& cell) {
  if (cell.options().allocator != Allocator::duo) return cell.variant->values;
  MethodValues values = values_of(cell, "duo_attention");
  for (const auto& [name, json] : cell.options().looking) values.set(*values.method().parameter(name), json);
  return values;
}

}  // namespace

std::string gates_of(const Cell& cell) {
  if (cell.options().allocator == Allocator::duo) return cell.options().allocator_file;
  return cell.method().lists_in.empty() ? cell.variant->values.file() : "";
}

std::vector<bool> streams_by_gates(const std::string& path, double stream_frac, const std::vector<Place>& layers) {
  const std::vector<GatesOfLayer> file = read_gates(path);
  check_shape(file, path, layers);
  std::vector<double> gates;
  std::vector<size_t> first;  // index of each layer's first gate
  for (const GatesOfLayer& layer : file) {
    first.push_back(gates.size());
    gates.insert(gates.end(), layer.gates.begin(), layer.gates.end());
  }
  std::vector<size_t> order(gates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return gates[a] < gates[b]; });
  std::vector<bool> of_file(gates.size(), false), streams;
  for (size_t i = 0; i < count_below(stream_frac, gates.size()); ++i) of_file[order[i]] = true;
  for (const Place& head : heads_of(layers))
    streams.push_back(of_file[first[size_t(head.layer)] + size_t(head.kv_head)]);
  return streams;
}

void share_by_gates(Cell& cell, const std::vector<Place>& layers) {
  const MethodValues method = separating_method(cell);
  const double frac = std::stod(parameter_json(*method.method().parameter("stream_frac"), method.policy()));
  const Protect ends = method.method().host.protection(method.policy());
  const std::vector<bool> streams = streams_by_gates(gates_of(cell), frac, layers);
  const size_t head = place_of(cell, heads_of(layers));
  if (cell.options().allocator == Allocator::duo) return share_with_streaming(cell, ends, streams, {{&cell, head}});
  const int32_t all = cell.extent.tokens;
  give(cell, streams[head] ? std::min(ends.sinks + ends.recent, all) : all);
}

}  // namespace kvreplay
