#pragma once
#include <map>
#include <string>
#include <vector>

#include "allocation/head_scoring.hpp"

namespace kvreplay {

// The cells of one prompt whose heads cut together during decoding (hook cut_together). Their cuts are found before the
// replay, one after the other. For each cut, every head is replayed up to it with the cuts that are already known, and
// states its scores. Then every cell gets the lists of tokens that the cuts keep.
class CommonCutsOfPrompt {
 public:
  void add(Cell& cell);
  // layers: see HeadSource::layers.
  template <class Real>
  void find(const std::vector<Place>& layers, const SharingOptions& options, const HeadSource<Real>& heads);
  void list_lost(WithoutBudget& without) const;

 private:
  // Cells of one method instance, budget and seed.
  struct Together : SharedScoring {
    bool is_open = true;  // another cut may follow
    std::vector<std::vector<int32_t>> ask() const;
    void cut();
    void give() const;
  };
  std::map<std::string, Together> all_;
};

}  // namespace kvreplay
