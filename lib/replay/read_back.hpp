#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "exact/head_stream.hpp"
#include "formats/row_coding.hpp"

// The rows that a cache reads back when its lists of held tokens come from elsewhere.

namespace kvreplay {

// List i is tokens[begins[i] .. begins[i + 1]), ascending: the tokens held after the prompt (i = 0), after the i-th
// later token. With a single list, no token is evicted after the prompt.
struct HeldLists {
  std::span<const int32_t> tokens;
  std::span<const int64_t> begins;
  size_t size() const { return begins.size() - 1; }
  std::span<const int32_t> list(size_t i) const {
    return tokens.subspan(size_t(begins[i]), size_t(begins[i + 1] - begins[i]));
  }
};

// A token's key and value are exact until they are coded, and are coded once.
struct ReadBack {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> key_from, value_from;  // [tokens] first row after the prompt (0-based) that reads it coded
  std::vector<float> keys, values;            // [tokens, dim], [tokens, v_dim] coded; exact if never coded
};

// The stream holds one kv head; only its keys, values, positions and rotary embedding are read. format: the row format
// of the layer. Throws ReplayError for numbers that the format cannot hold.
ReadBack read_back(const HeadStream<float>& stream, const RowFormat& format, const RowUniforms& uniforms,
                   const HeldLists& held);

}  // namespace kvreplay
