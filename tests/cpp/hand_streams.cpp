#include "hand_streams.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::test {

HeadStream<double> stream_of_keys(const std::vector<double>& keys, int32_t prompt, int32_t heads) {
  const int32_t n = int32_t(keys.size());
  HeadStream<double> s = make_stream<double>({.tokens = n, .prompt = prompt, .dim = 1, .v_dim = 1, .heads = heads});
  s.keys = keys;
  s.rule.scale = 1;
  std::fill(s.queries.begin(), s.queries.end(), 1.0);
  for (int32_t i = 0; i < n; ++i) s.values[size_t(i)] = i;
  return s;
}

HeadStream<double> weighted_stream(const std::vector<double>& w, int32_t prompt, int32_t heads) {
  std::vector<double> keys(w.size());
  std::transform(w.begin(), w.end(), keys.begin(), [](double x) { return std::log(x); });
  return stream_of_keys(keys, prompt, heads);
}

}  // namespace kvreplay::test
