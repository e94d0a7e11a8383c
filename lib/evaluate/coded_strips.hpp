#pragma once
#include <map>

#include "exact/tile.hpp"
#include "formats/coded_tokens.hpp"

namespace kvreplay {

// Strips over coded keys, for caches that store their rows alike: exp(l - shift) as in the exact pass, but with the
// decoded keys of all tokens.
template <class Real>
class CodedStrips {
 public:
  // Strips for the rows of `tile` that have a strip; valid until the next tile.
  const Tile<Real>& of(CodedTokens<Real>& tokens, const HeadStream<Real>& stream, const Tile<Real>& tile) {
    auto& own = of_[&tokens];
    if (own == nullptr) {
      tokens.code_all();
      own = std::make_unique<Own>(stream, tokens.keys());
    }
    if (own->tile.begin == tile.begin && own->tile.rows == tile.rows) return own->tile;
    own->tile.begin = tile.begin, own->tile.end = tile.end, own->tile.window = tile.window;
    own->tile.rows = tile.rows;
    if (!tile.rows.empty()) own->exact.strip_pass(own->tile);
    return own->tile;
  }

 private:
  struct Own {
    ExactAttention<Real> exact;
    Tile<Real> tile;
    Own(const HeadStream<Real>& stream, const Real* keys) : exact(stream, keys) { tile.begin = -1; }
  };
  std::map<const CodedTokens<Real>*, std::unique_ptr<Own>> of_;
};

}  // namespace kvreplay
