#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Lists of tokens stored one after another: list i = flat[off[i] .. off[i + 1]).
struct TokenLists {
  std::vector<int32_t> flat;
  std::vector<int64_t> off{0};
  void close() { off.push_back(int64_t(flat.size())); }  // ends a list
  void append(const TokenLists& others) {
    for (size_t i = 1; i < others.off.size(); ++i) off.push_back(int64_t(flat.size()) + others.off[i]);
    flat.insert(flat.end(), others.flat.begin(), others.flat.end());
  }
  bool operator==(const TokenLists&) const = default;
};

// What a run saves of a cell besides its metrics.
struct SaveOptions {
  bool curves = false, kept = false, outputs = false, projections = false, consensus = false;
};

}  // namespace kvreplay
