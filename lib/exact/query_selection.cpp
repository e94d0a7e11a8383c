#include "exact/query_selection.hpp"

namespace kvreplay {

template <class Real>
std::vector<uint8_t> scored_tokens(const HeadStream<Real>& stream, const QuerySelection& selection) {
  std::vector<size_t> rows;
  for (size_t t = size_t(stream.prompt); t < size_t(stream.tokens); ++t)
    if (stream.query_row[t] >= 0) rows.push_back(t);
  using Kind = QuerySelection::Kind;
  const size_t count = size_t(selection.count), step = selection.kind == Kind::stride ? count : 1;
  const size_t first = selection.kind == Kind::last && rows.size() > count ? rows.size() - count : 0;
  std::vector<uint8_t> scored(size_t(stream.tokens), 0);
  for (size_t i = first; i < rows.size(); i += step) scored[rows[i]] = 1;
  return scored;
}

template std::vector<uint8_t> scored_tokens(const HeadStream<float>&, const QuerySelection&);
template std::vector<uint8_t> scored_tokens(const HeadStream<double>&, const QuerySelection&);

}  // namespace kvreplay
