#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/bf16.hpp"

namespace kvreplay {

class Tensors;
struct Place;
struct Extent;

// How sensitive the model's loss is to the attention output of each query head and row. A sample is the gradient of the
// sum of log p(y_t) over the rows from the first one here on, with y_t drawn from the model's own prediction. Behind
// the drawn samples there may be two more: y_t are the recorded tokens, and those of the recorded answer alone.
struct Sensitivity {
  int32_t samples = 0, rows = 0, v_dim = 0;
  bool recorded = false, answer = false;  // there is a sample of the recorded tokens; the last one is the answer's
  std::vector<uint16_t> numbers;          // bf16 [heads, rows, samples, v_dim]
  std::vector<int32_t> row_of;            // [tokens] the row of a token, or -1; empty: not recorded

  int32_t drawn() const { return samples - (recorded ? 1 : 0) - (answer ? 1 : 0); }
  bool empty() const { return row_of.empty(); }
  // [samples, v_dim]; null if the token has no row.
  const uint16_t* at(int32_t head, int32_t token) const {
    const int32_t row = empty() ? -1 : row_of[size_t(token)];
    return row < 0 ? nullptr : numbers.data() + (int64_t(head) * rows + row) * samples * v_dim;
  }
};

// Reads the recorded gradient of `heads` query heads of a layer at these tokens. Throws TraceError.
Sensitivity read_sensitivity(const Tensors& trace, const Place& place, const std::vector<int32_t>& tokens,
                             int32_t first_head, int32_t heads);
// Explains why the gradient cannot predict the loss of a replay of these tokens, and what to do; "" if it can.
std::string projection_obstacle(const Tensors& trace, const Place& place, const std::vector<int32_t>& rows,
                                const Extent& extent);

}  // namespace kvreplay
