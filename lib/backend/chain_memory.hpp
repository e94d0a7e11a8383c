#pragma once
#include <map>
#include <vector>

#include "backend/chain_body.hpp"
#include "backend/runtime.hpp"
#include "exact/head_stream.hpp"
#include "replay/chain.hpp"

namespace kvreplay {

// Arrays of one chain, which go with it.
struct ChainMemory {
  explicit ChainMemory(Runtime& r) : runtime(r) {}
  Runtime& runtime;
  std::vector<DeviceArray<std::byte>> arrays;
  DeviceArray<std::byte> cells, bits, steps, tokens, num, den;  // of a portion of rows; of a launch

  template <class T>
  T* take(size_t count) {
    arrays.emplace_back(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(arrays.back().data());
  }
  // Like an array of the host, or null.
  template <class T>
  T* like(const T* host, size_t count) {
    return host == nullptr ? nullptr : take<T>(count);
  }
  template <class T>
  const T* copy(const T* host, size_t count) {
    if (host == nullptr) return nullptr;
    T* const to = take<T>(count);
    runtime.upload(to, host, count * sizeof(T));
    return to;
  }
  // Grows only.
  template <class T>
  T* reuse(DeviceArray<std::byte>& array, size_t count) {
    if (array.size() < count * sizeof(T)) array = DeviceArray<std::byte>(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(array.data());
  }
  ChainEnd* end = nullptr;
  std::vector<ChainRow> of_cells;
};

// What all chains of a head read.
struct ChainStream {
  ChainMemory memory;
  const float* values = nullptr;
  const int32_t* positions = nullptr;
  const uint8_t* classes = nullptr;
  const double* inv_freq = nullptr;
  Rotation<float> rotation;
  int32_t *query_row = nullptr, *scored = nullptr;  // [tokens]
  DeviceArray<std::byte> queries;
  int64_t query_head = 0;
  std::vector<int32_t> rows;  // of query_row and scored, on the host
  // What several chains read, by its place and extent on the host.
  std::map<std::pair<const double*, size_t>, const double*> sums;

  ChainStream(Runtime& runtime, const HeadStream<float>& stream);
  // A copy of that array; whoever asks again gets the same.
  const double* share(const double* host, size_t count);
};

// Whether rows list the tokens that each head attends to.
bool lists_attended(const ChainOrder& order);
// Heads whose rows have bits of their own, and words of a row.
size_t bit_heads(const ChainOrder& order);
size_t words_of(const HeadStream<float>& stream);
// Parts of a row's results.
int32_t parts_of(const ChainOrder& order);
// What a chain takes of the device's memory, whatever is asked of its rows.
size_t chain_bytes(const HeadStream<float>& stream, const ChainOrder& order);
// A chain whose arrays stand in `memory`. keys, sink_logits: as DeviceChains.
ChainBody make_chain(const HeadStream<float>& stream, const ChainOrder& order, const float* keys,
                     const float* sink_logits, ChainStream& shared, ChainMemory& memory);
// What is left in a chain's arrays goes to those of the host, once the runtime has been waited for.
void fetch_chain(Runtime& runtime, const HeadStream<float>& stream, const ChainBody& body,
                 const ChainOrder& order);

}  // namespace kvreplay
