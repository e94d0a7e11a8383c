#include "results/shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/errors.hpp"
#include "results/sealed_lines.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kKeyBytes = 17;

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// `{...}` with members -> `,...`
std::string further_members(const json& object) {
  if (object.empty()) return "";
  const std::string text = dumped(object);
  return fmt::format(",{}", std::string_view(text).substr(1, text.size() - 2));
}

// The text between `before`, which must come next, and the next quote; `rest` then starts behind that quote.
std::optional<std::string_view> taken(std::string_view& rest, std::string_view before) {
  if (!rest.starts_with(before)) return std::nullopt;
  const size_t end = rest.find('"', before.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view value = rest.substr(before.size(), end - before.size());
  rest.remove_prefix(end + 1);
  return value;
}

// A line whose sum is right is one of ours: its first members stand where shard_line put them.
bool add_members(std::string_view members, const std::string& own_build, const LineAt& at, Shards& shards) {
  constexpr std::string_view kBegun = "\"begun\":";
  if (members.starts_with(kBegun)) {
    int64_t unit = 0;
    std::from_chars(members.data() + kBegun.size(), members.data() + members.size(), unit);
    ++shards.begun[unit];
    return true;
  }
  const auto key = taken(members, "\"key\":\""), status = taken(members, ",\"status\":\""),
             build = taken(members, ",\"build\":\"");
  if (!key || !status || !build || !is_key(std::string(*key))) return false;
  shards.add(std::string(*key), *status == "ok", *build == own_build, at);
  return true;
}

void read_file(const std::string& own_build, Shards& shards) {
  const auto file = uint32_t(shards.files.size() - 1);
  std::ifstream in(shards.files.back(), std::ios::binary);
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

std::vector<fs::path> logs_of(const fs::path& dir) {
  std::vector<fs::path> files;
  if (!fs::is_directory(dir)) return files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void Shards::add(const std::string& key, bool ok, bool own_build, const LineAt& at) {
  Published& cell = cells[key];
  if (!ok) {
    ++cell.failures;
    if (!cell.ok) cell.at = at;
    return;
  }
  const bool first = !cell.ok, better = own_build && !cell.own_build;
  if (!first) repeats.emplace_back(key, better ? cell.at : at);
  if (!first && !better) return;
  cell.ok = true, cell.own_build = own_build, cell.at = at;
}

bool is_key(const std::string& text) {
  return text.size() == kKeyBytes && text[0] == 'k' &&
         text.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

std::string build_of(const json& run) { return run.value("version", "") + " " + run.value("git_commit", ""); }

std::string shard_line(const json& row, const json& run) {
  return sealed_line(fmt::format(R"("key":"{}","status":"{}","build":"{}"{},"row":{})",
                                 row.at("key").get<std::string>(), row.at("status").get<std::string>(),
                                 build_of(run), further_members(run), dumped(row)));
}

// Cells that a device has no way for are computed by the cores: the row knows.
std::string path_of(const json& line) {
  const json& device = line.at("row").value("device", json());
  return fmt::format("{} {} {}", device.is_string() ? device.get<std::string>() : "?", line.value("isa", "?"),
                     line.value("precision", "?"));
}

std::string begun_line(int64_t unit, const json& run) {
  return sealed_line(fmt::format(R"("begun":{}{})", unit, further_members(run)));
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

json LineReader::read(const LineAt& at) {
  if (open_ != at.file) {
    in_ = std::ifstream(shards_.files.at(at.file), std::ios::binary);
    open_ = at.file;
  }
  std::string line(at.bytes, '\0');
  in_.clear();
  in_.seekg(std::streamoff(at.offset));
  in_.read(line.data(), std::streamsize(at.bytes));
  json parsed = in_ && unsealed(line) ? json::parse(line, nullptr, false) : json();
  if (parsed.is_object()) return parsed;
  throw OutputError(shards_.files.at(at.file).string() + ": was changed or removed while it was read");
}

}  // namespace kvreplay
