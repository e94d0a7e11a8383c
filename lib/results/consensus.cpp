#include "results/consensus.hpp"

#include <algorithm>
#include <bit>

#include "base/json_text.hpp"
#include "base/text.hpp"
#include "results/columns.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

constexpr const char* kIdentity[] = {"trace_id", "prompt", "method", "params", "budget_tokens", "seed"};
constexpr int64_t kBits = 64;

std::vector<int64_t> integers(const std::filesystem::path& file, const std::string& name) {
  std::vector<int64_t> shape;
  const std::vector<double> numbers = read_dataset(file, name, shape);
  return {numbers.begin(), numbers.end()};
}

int64_t count(const std::vector<uint64_t>& bits) {
  int64_t all = 0;
  for (const uint64_t word : bits) all += std::popcount(word);
  return all;
}

// Tokens in both over tokens in either; 1 if there are none.
double overlap(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  int64_t both = 0, either = 0;
  for (size_t i = 0; i < a.size(); ++i) both += std::popcount(a[i] & b[i]), either += std::popcount(a[i] | b[i]);
  return either > 0 ? double(both) / double(either) : 1;
}

}  // namespace

void Consensus::add(const Fields& fields, const std::filesystem::path& arrays) {
  // A budget that was asked for as a share of the cache may differ from head to head.
  const std::string& share = fields[column_index(kShareColumn)];
  std::string key = fields[column_index("given")] + share;
  Fields names;
  for (const char* name : kIdentity) {
    const std::string& field = fields[column_index(name)];
    names.push_back(std::string(name) == "budget_tokens" && !share.empty() ? share : field);
    if (std::string(name) != "params") key += "\n" + names.back();
  }
  const auto [found, is_new] = groups_.try_emplace(key);
  Group& group = found->second;
  const std::string cell = fields[column_index("key")] + "/";
  if (is_new) {
    order_.push_back(key);
    group.names = names;
    group.prompt = integers(arrays, cell + "n_prompt").front();
    for (const int64_t token : integers(arrays, cell + "needles")) group.needles.push_back(int32_t(token));
  }
  const std::vector<int64_t> flat = integers(arrays, cell + "kept_flat"), off = integers(arrays, cell + "kept_off");
  Layer& layer = group.layers[parse_number<int64_t>(fields[column_index("layer")]).value_or(0)];
  for (size_t list = 0; list + 1 < off.size(); ++list) {
    Bits& bits = layer.heads.emplace_back(size_t((group.prompt + kBits - 1) / kBits));
    for (int64_t i = off[list]; i < off[list + 1]; ++i) {
      const int64_t token = flat[size_t(i)];
      bits[size_t(token / kBits)] |= uint64_t{1} << (token % kBits);
    }
  }
}

std::string Consensus::row(const Group& group, const std::string& layer, const std::vector<const Bits*>& heads,
                           double agreement) {
  Bits held(heads.front()->size());
  for (const Bits* bits : heads)
    for (size_t i = 0; i < held.size(); ++i) held[i] |= (*bits)[i];
  const auto is_lost = [&](int32_t token) { return (held[size_t(token / kBits)] >> (token % kBits) & 1) == 0; };
  const auto lost = std::count_if(group.needles.begin(), group.needles.end(), is_lost);
  Fields fields = group.names;
  fields.push_back(layer);
  fields.push_back(number_text(1 - double(count(held)) / double(group.prompt)));
  fields.push_back(group.needles.empty() ? "" : number_text(double(lost) / double(group.needles.size())));
  fields.push_back(number_text(agreement));
  return csv_line(fields);
}

std::string Consensus::csv() const {
  Fields heading(std::begin(kIdentity), std::end(kIdentity));
  for (const char* name : {"layer", "ger", "ger_needles", "consensus"}) heading.emplace_back(name);
  std::string text = csv_line(heading);
  for (const std::string& key : order_) {
    const Group& group = groups_.at(key);
    std::vector<const Bits*> all;
    double sum_of_layers = 0;
    for (const auto& [number, layer] : group.layers) {
      std::vector<const Bits*> heads;
      double sum = 0;
      for (const Bits& bits : layer.heads) {
        for (const Bits* other : heads) sum += overlap(*other, bits);
        heads.push_back(&bits), all.push_back(&bits);
      }
      const double pairs = double(heads.size()) * double(heads.size() - 1) / 2, mean = pairs > 0 ? sum / pairs : 1;
      sum_of_layers += mean;
      text += row(group, std::to_string(number), heads, mean);
    }
    text += row(group, "all", all, sum_of_layers / double(group.layers.size()));
  }
  return text;
}

}  // namespace kvreplay
