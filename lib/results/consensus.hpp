#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "results/shards.hpp"

namespace kvreplay {

constexpr const char* kConsensusFile = "consensus.csv";

// How far the heads of a layer agree on what they keep of a prompt: the rows of consensus.csv (docs/measures.md). Cells
// of one method instance, budget and seed belong together.
class Consensus {
 public:
  // fields: of a cell's row. arrays: consensus.h5, with the cell's lists.
  void add(const Fields& fields, const std::filesystem::path& arrays);
  std::string csv() const;

 private:
  using Bits = std::vector<uint64_t>;  // one for each token of the prompt
  struct Layer {
    std::vector<Bits> heads;
  };
  struct Group {
    Fields names;  // the identity columns of the table
    int64_t prompt = 0;
    std::vector<int32_t> needles;
    std::map<int64_t, Layer> layers;
  };
  static std::string row(const Group& group, const std::string& layer, const std::vector<const Bits*>& heads,
                         double agreement);
  std::map<std::string, Group> groups_;
  std::vector<std::string> order_;  // keys of groups_, as their first cells came
};

}  // namespace kvreplay
