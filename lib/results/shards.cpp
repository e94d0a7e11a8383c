#include "results/shards.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/errors.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

bool read_line(const std::string& line, Shards& shards) {
  const json parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object()) return false;
  const auto key = parsed.find("key"), status = parsed.find("status"), row = parsed.find("row");
  if (key == parsed.end() || status == parsed.end() || row == parsed.end()) return false;
  if (!key->is_string() || !is_key(key->get<std::string>()) || !status->is_string() || !row->is_object())
    return false;
  shards.add(key->get<std::string>(), {*status == "ok", dumped(*row)});
  return true;
}

void read_file(const fs::path& file, Shards& shards) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw OutputError(file.string() + ": cannot be read. Is it yours?");
  std::string line;
  while (std::getline(in, line)) {
    const bool torn = in.eof();  // no line end
    if (torn || line.empty()) continue;
    if (!read_line(line, shards)) ++shards.unreadable_lines;
  }
}

}  // namespace

void Shards::add(const std::string& key, Published cell) {
  const auto [at, is_new] = cells.try_emplace(key, cell);
  if (!is_new && (cell.ok || !at->second.ok)) at->second = std::move(cell);
}

bool is_key(const std::string& text) {
  return text.size() == 17 && text[0] == 'k' &&
         text.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

std::string shard_line(const json& row, const json& run) {
  json line = run;
  line["key"] = row.at("key");
  line["status"] = row.at("status");
  line["row"] = row;
  return dumped(line);
}

Shards read_shards(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Shards shards;
  for (const fs::path& file : files) read_file(file, shards);
  return shards;
}

}  // namespace kvreplay
