#include "allocation/importance_file.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"

namespace kvreplay {
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

}  // namespace kvreplay
