#include "sweep/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "plan/estimate.hpp"
#include "plan/plan.hpp"
#include "results/output_files.hpp"
#include "results/shards.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kManifestSchema = 1;
constexpr std::string_view kPrefix = "plan-", kSuffix = ".jsonl", kKeyBefore = "{\"key\":\"";

// The key comes first, so that it is found without parsing.
std::string cell_line(const Cell& cell) {
  JsonObject rest;
  rest.add("trace_id", cell.variant->trace->trace_id).add("prompt", cell.place.prompt);
  rest.add("layer", cell.place.layer).add("kv_head", cell.place.kv_head).add("method", cell.method_name());
  rest.add_json("given", cell.variant->given).add_json("params", cell.variant->params);
  rest.add_json("budget_tokens", cell.budget.none() ? "null" : json_of(cell.budget.tokens));
  rest.add_json("seed", cell.seed ? json_of(*cell.seed) : "null");
  if (!cell.shares.empty()) rest.add("instance", int64_t(cell.variant->instance)).add("shares", cell.shares);
  return fmt::format("{}{}\",{}}}", kKeyBefore, cell.key, rest.members());
}

bool same_layer(const Cell& a, const Cell& b) {
  return a.place.trace == b.place.trace && a.place.prompt == b.place.prompt && a.place.layer == b.place.layer;
}

SweepUnit unit_of(const std::vector<Cell>& plan, size_t first, size_t end) {
  const Cell& cell = plan[first];
  return {cell.place, first, end - first, 0};
}

// Heads of a layer stay together if some cell decides for all of them.
std::vector<SweepUnit> units_of(const std::vector<Cell>& plan) {
  std::vector<SweepUnit> units;
  for (size_t first = 0; first < plan.size();) {
    size_t end = first;
    while (end < plan.size() && same_layer(plan[first], plan[end])) ++end;
    const bool whole = std::any_of(plan.begin() + std::ptrdiff_t(first), plan.begin() + std::ptrdiff_t(end),
                                   [](const Cell& c) { return c.options().spans_layer(); });
    for (size_t at = first; at < end;) {
      size_t next = whole ? end : at;
      while (next < end && plan[next].place.kv_head == plan[at].place.kv_head) ++next;
      units.push_back(unit_of(plan, at, next));
      at = next;
    }
    first = end;
  }
  return units;
}

std::string name_of(const std::vector<std::string>& cells) {
  Sha256 sum;
  for (const std::string& line : cells) sum.update(line), sum.update("\n");
  return sum.hex().substr(0, 16);
}

json save_json(const SaveOptions& save) {
  return {{"curves", save.curves}, {"kept", save.kept}, {"outputs", save.outputs}, {"projections", save.projections}};
}

std::string header_line(const Manifest& m) {
  json traces = json::array(), units = json::array();
  for (const SweepTrace& t : m.traces) traces.push_back({t.path.string(), t.trace_id, t.model});
  for (const SweepUnit& u : m.units)
    units.push_back({u.place.trace, u.place.prompt, u.place.layer, u.place.kv_head, u.first, u.cells, u.cost});
  json header = {{"kvreplay_plan", kManifestSchema},
                 {"name", m.name},
                 {"run_name", m.run_name},
                 {"config", json::parse(m.config)},
                 {"save", save_json(m.save)},
                 {"every_row", m.every_row},
                 {"whole_traces", m.whole_traces},
                 {"bytes_peak", m.bytes_peak},
                 {"traces", traces},
                 {"units", units}};
  if (!m.unreachable.empty()) header["unreachable"] = json::parse(m.unreachable);
  const std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  return sealed_line(std::string_view(text).substr(1, text.size() - 2));
}

// Counts in a header: whole numbers, at least 0.
size_t count_of(const json& value) { return value.get<json::number_unsigned_t>(); }
double cost_of(const json& value) {
  const double cost = value.get<double>();
  if (!(cost >= 0) || !std::isfinite(cost)) throw std::invalid_argument("a cost");
  return cost;
}

// Throws json::exception or std::exception if a member is missing or has another type.
Manifest of_header(const json& header) {
  Manifest m;
  m.name = header.at("name"), m.run_name = header.at("run_name");
  m.config = header.at("config").dump();
  const json& run = header.at("config").at("run");
  m.device = run.at("device"), m.precision = run.at("precision");
  const json& save = header.at("save");
  m.save = {save.at("curves").get<bool>(), save.at("kept").get<bool>(), save.at("outputs").get<bool>(),
            save.value("projections", false)};
  if (header.contains("unreachable")) m.unreachable = header.at("unreachable").dump();
  m.every_row = header.at("every_row").get<bool>();
  m.whole_traces = header.at("whole_traces").get<bool>();
  m.bytes_peak = int64_t(count_of(header.at("bytes_peak")));
  for (const json& t : header.at("traces")) m.traces.push_back({t.at(0).get<std::string>(), t.at(1), t.at(2)});
  for (const json& u : header.at("units"))
    m.units.push_back({{count_of(u.at(0)), u.at(1), int32_t(count_of(u.at(2))), int32_t(count_of(u.at(3)))},
                       count_of(u.at(4)),
                       count_of(u.at(5)),
                       cost_of(u.at(6))});
  return m;
}

// Whether units are consecutive, hold all cells, and name existing traces.
bool is_consistent(const Manifest& m) {
  size_t next = 0;
  for (const SweepUnit& unit : m.units) {
    if (unit.first != next || unit.cells == 0 || unit.cells > m.cells.size() - next ||
        unit.place.trace >= m.traces.size())
      return false;
    next += unit.cells;
  }
  return next == m.cells.size() && next > 0;
}

bool starts_with_key(const std::string& line) {
  return line.starts_with(kKeyBefore) && is_key(line.substr(kKeyBefore.size(), kKeyBytes));
}

bool is_plan(const std::string& name) { return name.starts_with(kPrefix) && name.ends_with(kSuffix); }

std::vector<fs::path> files_in(const fs::path& dir, bool (*wanted)(const std::string& name)) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (wanted(entry.path().filename().string())) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}
std::vector<fs::path> plans_in(const fs::path& dir) { return files_in(dir, is_plan); }

fs::path path_of(const fs::path& dir, const std::string& name) {
  return dir / fmt::format("{}{}{}", kPrefix, name, kSuffix);
}

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw ConfigError(fmt::format("{}: error: {}. Plan again: kvreplay sweep plan CONFIG -o {}", file.string(), what,
                                file.parent_path().string()));
}

Manifest parsed_header(const fs::path& file, const std::string& line) {
  if (!unsealed(line)) fail(file, "its first line was changed or damaged");
  try {
    const json header = json::parse(line);
    if (header.at("kvreplay_plan") != kManifestSchema) fail(file, "was made by another version");
    return of_header(header);
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception&) {
    fail(file, "its first line is not a plan of this version");
  }
}

Manifest read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line;
  if (!std::getline(in, line)) fail(file, "cannot be read");
  Manifest m = parsed_header(file, line);
  while (std::getline(in, line)) m.cells.push_back(line);
  if (name_of(m.cells) != m.name || path_of(file.parent_path(), m.name) != file)
    fail(file, "its cells were changed or damaged");
  if (!is_consistent(m)) fail(file, "its units do not fit its cells");
  for (size_t i = 0; i < m.cells.size(); ++i)
    if (!starts_with_key(m.cells[i])) fail(file, fmt::format("line {} names no cell", i + 2));
  return m;
}

}  // namespace

Keys Manifest::keys() const {
  Keys keys;
  for (const std::string& line : cells) keys.push_back(line.substr(kKeyBefore.size(), kKeyBytes));
  return keys;
}

std::vector<double> shares_in(const std::string& line) {
  const json cell = json::parse(line, nullptr, false);
  return cell.is_object() ? cell.value("shares", std::vector<double>{}) : std::vector<double>{};
}

double Manifest::cost() const {
  return std::accumulate(units.begin(), units.end(), 0.0,
                         [](double sum, const SweepUnit& unit) { return sum + unit.cost; });
}

RunConfig with_absolute_paths(RunConfig config) {
  const auto absolute = [](const fs::path& path) {
    return path.empty() ? path : fs::absolute(path).lexically_normal();
  };
  for (fs::path& trace : config.traces) trace = absolute(trace);
  for (MethodInstance& m : config.methods) {
    m.uniforms = absolute(m.uniforms);
    m.options.allocator_file = absolute(m.options.allocator_file).string();
    for (const ParameterSpec& spec : m.method().parameters)
      if (spec.kind == ParameterSpec::Kind::file) m.values.set(spec, json_of(absolute(m.values.file()).string()));
      else if (Calibration by = m.values.calibration();
               spec.kind == ParameterSpec::Kind::calibration && by.source == Calibration::Source::file) {
        by.name = absolute(by.name).string();
        m.values.set(spec, json_of(word(by)));
      }
  }
  config.output.dir = absolute(config.output.dir);
  return config;
}

Manifest make_manifest(const RunConfig& config, const std::vector<TraceInfo>& traces, const std::vector<Cell>& plan) {
  Manifest m;
  m.run_name = config.name;
  m.config = resolved_json(config);
  m.device = config.run.device, m.precision = config.run.double_precision ? "double" : "single";
  m.save = config.output;
  m.every_row = observes_rows(plan);
  m.whole_traces = std::any_of(plan.begin(), plan.end(),
                               [](const Cell& cell) { return needs_all_layers(cell) || needs_other_prompts(cell); });
  for (size_t t = 0; t < traces.size(); ++t)
    m.traces.push_back({config.traces.at(t), traces[t].trace_id, traces[t].model});
  RunConfig alone = config;
  alone.run.jobs = 1;
  const PlanEstimate estimated = estimate(alone, plan, traces);
  m.bytes_peak = estimated.bytes_peak;
  m.units = units_of(plan);
  for (SweepUnit& unit : m.units)
    for (size_t i = unit.first; i < unit.first + unit.cells; ++i) unit.cost += estimated.cost[i];
  for (const Cell& cell : plan) m.cells.push_back(cell_line(cell));
  m.name = name_of(m.cells);
  return m;
}

fs::path write_manifest(const fs::path& dir, const Manifest& manifest) {
  const fs::path file = path_of(dir, manifest.name);
  for (const fs::path& held : plans_in(dir))
    if (held != file)
      throw ConfigError(
          fmt::format("{}: error: holds another plan, {}. Choose another directory with -o, or remove "
                      "it and its results with --force",
                      dir.string(), held.filename().string()));
  in_directory(dir, [&] { fs::create_directories(dir); });
  TextFile out(file);
  out.append(header_line(manifest) + "\n");
  for (const std::string& line : manifest.cells) out.append(line + "\n");
  out.publish();
  in_directory(dir,
               [&] { fs::permissions(file, fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read); });
  return file;
}

Manifest read_manifest(const fs::path& dir) {
  const std::vector<fs::path> found = plans_in(dir);
  if (found.empty())
    throw ConfigError(fmt::format("{}: error: holds no plan. Make one: kvreplay sweep plan CONFIG -o {}", dir.string(),
                                  dir.string()));
  if (found.size() > 1)
    throw ConfigError(
        fmt::format("{}: error: holds {} plans. Remove the ones that are not meant", dir.string(), found.size()));
  return read_file(found.front());
}

void forget_manifest(const fs::path& dir) {
  in_directory(dir, [&] {
    for (const fs::path& file : plans_in(dir)) fs::remove(file);
    for (const fs::path& file : files_in(dir, [](const std::string& name) { return is_plan(final_name(name)); }))
      fs::remove(file);
  });
}

}  // namespace kvreplay
