#include "results/shards.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/text.hpp"

namespace kvreplay {

namespace {

constexpr std::string_view kBefore = "{\"sum\":\"", kAfter = "\",";
constexpr size_t kSealDigits = 16;
constexpr size_t kMembersAt = kBefore.size() + kSealDigits + kAfter.size();

std::string sum_of(std::string_view members) { return sha256_hex(members).substr(0, kSealDigits); }

}  // namespace

std::string sealed_line(std::string_view members) {
  std::string line(kBefore);
  return line.append(sum_of(members)).append(kAfter).append(members).append("}");
}

std::optional<std::string_view> unsealed(std::string_view line) {
  if (line.size() <= kMembersAt || !line.starts_with(kBefore) || line.back() != '}') return std::nullopt;
  if (line.substr(kBefore.size() + kSealDigits, kAfter.size()) != kAfter) return std::nullopt;
  const std::string_view members = line.substr(kMembersAt, line.size() - kMembersAt - 1);
  if (line.substr(kBefore.size(), kSealDigits) != sum_of(members)) return std::nullopt;
  return members;
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

JsonObject process_object(const ProcessRecord& process) {
  JsonObject all;
  all.add("version", process.version).add("git_commit", process.git_commit).add("host", process.host);
  all.add("precision", process.precision).add("device", process.device).add("isa", process.isa);
  return all.add("schema", process.schema);
}

// The text between `before`, which must come next, and the next quote; `rest` then starts after that quote.
std::optional<std::string_view> taken(std::string_view& rest, std::string_view before) {
  if (!rest.starts_with(before)) return std::nullopt;
  const size_t end = rest.find('"', before.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view value = rest.substr(before.size(), end - before.size());
  rest.remove_prefix(end + 1);
  return value;
}

// This program wrote the line, because its checksum is right: its first members are where shard_line put them.
bool add_members(std::string_view members, const std::string& own_build, const LineAt& at, Shards& shards) {
  constexpr std::string_view kBegun = "\"begun\":";
  if (members.starts_with(kBegun)) {
    int64_t unit = 0;
    std::from_chars(members.data() + kBegun.size(), members.data() + members.size(), unit);
    ++shards.begun[unit];
    return true;
  }
  const auto key = taken(members, "\"key\":\""), status = taken(members, ",\"status\":\""),
             build = taken(members, ",\"build\":\""), arrays = taken(members, ",\"arrays\":\"");
  if (!key || !status || !build || !arrays || !is_key(std::string(*key))) return false;
  Published line{*status == "ok", *build == own_build, 0, at, {}};
  if (!arrays->empty()) line.arrays.emplace_back(*arrays);
  shards.add(std::string(*key), line);
  return true;
}

// A process that published nothing removes its file when it ends, perhaps after the folder was listed.
bool is_gone(const fs::path& file) {
  std::error_code ignored;
  return fs::status(file, ignored).type() == fs::file_type::not_found;
}

void read_file(const std::string& own_build, Shards& shards) {
  const auto file = uint32_t(shards.files.size() - 1);
  std::ifstream in(shards.files.back(), std::ios::binary);
  if (!in && is_gone(shards.files.back())) return;
  if (!in) throw OutputError(shards.files.back().string() + ": cannot be read. Is it yours?");
  std::string line;
  uint64_t offset = 0;
  while (std::getline(in, line)) {
    const bool torn = in.eof();  // no line end
    const LineAt at{file, uint32_t(line.size()), offset};
    offset += line.size() + 1;
    if (torn || line.empty()) continue;
    const auto members = unsealed(line);
    if (!members || !add_members(*members, own_build, at, shards)) ++shards.unreadable_lines;
  }
}

// A line may have a right checksum and yet not describe a cell.
bool is_cell_line(const json& line) {
  if (!line.is_object() || !line.contains("key") || !line.contains("row")) return false;
  const json& row = line.at("row");
  const auto is_text = [&](const char* name) { return row.contains(name) && row.at(name).is_string(); };
  const auto is_plain = [](const json& value) { return !value.is_structured(); };
  return row.is_object() && row.value("key", json()) == line.at("key") && is_text("method") && is_text("status") &&
         std::all_of(row.begin(), row.end(), is_plain);
}

std::string field_text(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? number_text(value.get<double>()) : value.dump();
}

Fields fields_in(const json& row) {
  Fields fields;
  for (const Column& column : columns()) fields.push_back(field_text(row.value(column.name, json())));
  return fields;
}

std::vector<Fields> segments_in(const json& line) {
  std::vector<Fields> rows;
  for (const json& segment : line.value("segments", json::array())) {
    Fields& row = rows.emplace_back(Fields{field_text(line.at("key"))});
    for (const Column& column : std::span(segment_columns()).subspan(1))
      row.push_back(field_text(segment.value(column.name, json())));
  }
  return rows;
}

// The CPU replays cells that a device cannot replay; the row records the device.
std::string path_of(const json& line) {
  const auto text = [](const json& object, const char* name) {
    const json value = object.value(name, json());
    return value.is_string() && value != "" ? value.get<std::string>() : std::string("?");
  };
  return fmt::format("{} {} {}", text(line.at("row"), "device"), text(line, "isa"), text(line, "precision"));
}

std::vector<fs::path> logs_of(const fs::path& dir) {
  std::vector<fs::path> files;
  if (!fs::is_directory(dir)) return files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void Shards::add(const std::string& key, const Published& line) {
  Published& cell = cells[key];
  const int32_t failures = cell.failures + (line.ok ? 0 : 1);
  const bool repeats_it = line.ok && cell.ok, better = line.own_build && !cell.own_build;
  if (repeats_it) repeats.emplace_back(key, better ? cell.at : line.at);
  std::vector<std::string> arrays = std::move(cell.arrays);
  arrays.insert(better ? arrays.begin() : arrays.end(), line.arrays.begin(), line.arrays.end());
  if (line.ok ? !cell.ok || better : !cell.ok) cell = line;
  cell.failures = failures;
  cell.arrays = std::move(arrays);
}

bool is_key(const std::string& text) {
  return text.size() == kKeyBytes && text[0] == 'k' &&
         text.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

Fields fields_of(const std::string& row) { return fields_in(json::parse(row)); }

std::string shard_line(const std::string& key, const Row& row, const ProcessRecord& process,
                       const std::string& arrays) {
  const std::string segments = row.segments.empty() ? "" : R"(,"segments":)" + row.segments;
  return sealed_line(fmt::format(R"("key":"{}","status":"{}","build":"{}","arrays":"{}",{},"row":{}{})", key,
                                 row.ok ? "ok" : "failed", process.build(), arrays, process_object(process).members(),
                                 row.json, segments));
}

std::string begun_line(int64_t unit, const ProcessRecord& process) {
  return sealed_line(fmt::format(R"("begun":{},{})", unit, process_object(process).members()));
}

Shards read_shards(const fs::path& out, const std::string& own_build) {
  Shards shards;
  for (const char* dir : {"shards", "attempts"})
    for (const fs::path& file : logs_of(out / dir)) {
      shards.files.push_back(file);
      read_file(own_build, shards);
    }
  return shards;
}

CellLine LineReader::read(const LineAt& at) {
  if (open_ != at.file) {
    in_ = std::ifstream(shards_.files.at(at.file), std::ios::binary);
    open_ = at.file;
  }
  std::string line(at.bytes, '\0');
  in_.clear();
  in_.seekg(std::streamoff(at.offset));
  in_.read(line.data(), std::streamsize(at.bytes));
  const json parsed = in_ && unsealed(line) ? json::parse(line, nullptr, false) : json();
  if (is_cell_line(parsed))
    return {fields_in(parsed.at("row")), segments_in(parsed), parsed.value("build", ""), path_of(parsed)};
  throw OutputError(
      fmt::format("{}: the line at byte {} was changed while it was read, or was not written by this program. "
                  "Remove the file, and replay the cells that it held",
                  shards_.files.at(at.file).string(), at.offset));
}

}  // namespace kvreplay
