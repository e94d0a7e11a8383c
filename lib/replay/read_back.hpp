#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "exact/head_stream.hpp"
#include "formats/row_coding.hpp"

// What a cache reads of its rows where somebody else has decided which tokens it holds.

namespace kvreplay {

// List i is tokens[begins[i] .. begins[i + 1]), ascending: who is held after the prompt (i = 0), after the i-th later
// token. A single list: nobody leaves after the prompt.
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
  std::vector<int32_t> key_from, value_from;  // [tokens] the first row behind the prompt (0-based) that reads it coded
  std::vector<float> keys, values;            // [tokens, dim], [tokens, v_dim] coded; exact where that is never
};

// The stream holds one kv head; of it keys, values, positions and rotary embedding are looked at. format: as the layer
// stores its rows. Throws ReplayError for numbers that it cannot hold.
ReadBack read_back(const HeadStream<float>& stream, const RowFormat& format, const RowUniforms& uniforms,
                   const HeldLists& held);

}  // namespace kvreplay
