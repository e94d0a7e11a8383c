#include "allocation/allocator_files.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "core/method_info.hpp"

namespace kvreplay {

void refuse_line(const std::string& path, int line, const std::string& text) {
  throw ConfigError(path + ":" + std::to_string(line) + ": " + text);
}

std::vector<std::string> lines_of_file(const std::string& path, const char* option) {
  std::ifstream in(path);
  if (!in) throw ConfigError(path + ": cannot be read. Is the path in `" + option + "` right?");
  std::vector<std::string> lines;
  for (std::string text; std::getline(in, text);) lines.push_back(text);
  return lines;
}

namespace {

using nlohmann::json;

json object_in(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw ConfigError(path + ": cannot be read. Is the path in `allocator` right?");
  json all = json::parse(in, nullptr, false);
  if (!all.is_object())
    throw ConfigError(path +
                      ": is no JSON object: write {\"LAYER-HEAD\": score} for every query head, as in {\"7-0\": 0.4}");
  return all;
}

double score_in(const json& value, const std::string& where) {
  double sum = 0, count = 0;
  const auto add = [&](const json& number) {
    if (!number.is_number() || number.get<double>() < 0)
      throw ConfigError(where + ": must be a number of at least 0, or a list of them");
    sum += number.get<double>(), ++count;
  };
  if (value.is_array()) std::for_each(value.begin(), value.end(), add);
  else add(value);
  if (count == 0) throw ConfigError(where + ": is an empty list: write a score");
  return sum / count;
}

}  // namespace

std::vector<double> importance_in_file(const std::string& path, const std::vector<Place>& heads, int32_t group) {
  const json all = object_in(path);
  std::vector<double> importance(heads.size(), 0);
  for (size_t i = 0; i < heads.size(); ++i)
    for (int32_t h = heads[i].kv_head * group; h < (heads[i].kv_head + 1) * group; ++h) {
      const std::string name = std::to_string(heads[i].layer) + "-" + std::to_string(h);
      const auto found = all.find(name);
      if (found == all.end())
        throw ConfigError(path + ": holds no head " + name +
                          ": write a score for every query head of the trace's layers");
      importance[i] += score_in(*found, path + ", head " + name);
    }
  return importance;
}

namespace {

struct Line {
  int number;
  std::vector<int32_t> values;
};

std::vector<int32_t> numbers_of(const std::string& path, int number, const std::string& text) {
  std::vector<int32_t> values;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t from = std::min(text.find_first_not_of(" \t", begin), end);
    const size_t to = text.find_last_not_of(" \t\r", end == 0 ? 0 : end - 1) + 1;
    int64_t value = -1;
    const auto read = std::from_chars(text.data() + from, text.data() + to, value);
    const bool sound = from < to && read.ec == std::errc{} && read.ptr == text.data() + to;
    if (!sound || value < 0 || value > int64_t(kManyTokens))
      refuse_line(path, number, "every field must be a whole number of tokens, as in layer,kv_head,tokens");
    values.push_back(int32_t(value));
    begin = end + 1;
  }
  return values;
}

std::vector<Line> read(const std::string& path) {
  std::vector<Line> lines;
  int number = 0;
  for (const std::string& text : lines_of_file(path, "allocator"))
    if (++number; text.find_first_of("0123456789") != std::string::npos)
      lines.push_back({number, numbers_of(path, number, text)});
  return lines;
}

}  // namespace

int32_t tokens_in_file(const std::string& path, int32_t layer, int32_t kv_head, int32_t kv_heads) {
  const std::vector<Line> lines = read(path);
  // A table with three kv heads also has three columns. Rows are recognised by their second column: it holds kv heads,
  // a table's holds tokens.
  const bool rows = std::all_of(lines.begin(), lines.end(),
                                [&](const Line& l) { return l.values.size() == 3 && l.values[1] < kv_heads; });
  if (!rows) {
    for (const Line& l : lines)
      if (int32_t(l.values.size()) != kv_heads)
        refuse_line(path, l.number,
                    "holds " + std::to_string(l.values.size()) + " numbers: write rows " +
                        "layer,kv_head,tokens, or a table with a column for each of the " + std::to_string(kv_heads) +
                        " kv heads");
    if (layer < int32_t(lines.size())) return lines[size_t(layer)].values[size_t(kv_head)];
  }
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
    return rows && l.values[0] == layer && l.values[1] == kv_head;
  });
  if (found == lines.end())
    throw ConfigError(path + ": no tokens for layer " + std::to_string(layer) + ", kv head " + std::to_string(kv_head));
  return found->values[2];
}

}  // namespace kvreplay
