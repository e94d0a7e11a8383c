#pragma once
#include <map>
#include <string>
#include <vector>

#include "allocation/head_scoring.hpp"

namespace kvreplay {

// The cells of one prompt whose heads cut together while they decode (hook cut_together). Before the replay every head
// is asked once for each cut, up to which it is replayed with the cuts that are known by then, and each cell is given
// the list of what they leave.
class CommonCutsOfPrompt {
 public:
  void add(Cell& cell);
  // layers: as HeadSource::layers.
  template <class Real>
  void find(const std::vector<Place>& layers, const SharingOptions& options, const HeadSource<Real>& heads);
  void list_lost(WithoutBudget& without) const;

 private:
  // The cells of one method instance, budget and seed.
  struct Together : SharedScoring {
    bool is_open = true;  // another cut may be due
    std::vector<std::vector<int32_t>> ask() const;
    void cut();
    void give() const;
  };
  std::map<std::string, Together> all_;
};

}  // namespace kvreplay
