#pragma once
#include <map>
#include <vector>

#include "caches/device_policy.hpp"
#include "device/kernels/policy_task.hpp"
#include "device/runtime.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Arrays of one policy and its cache, which go with it.
struct PolicyMemory {
  explicit PolicyMemory(Runtime& r) : runtime(r) {}
  Runtime& runtime;
  std::vector<DeviceArray<std::byte>> arrays;
  DeviceArray<std::byte> bits, steps, tokens, num, den;  // of a portion of rows; of a launch

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
  PolicyEnd* end = nullptr;
};

// What all policies of a head read.
struct PolicyStream {
  PolicyMemory memory;
  const float* values = nullptr;
  const int32_t* positions = nullptr;
  const uint8_t* classes = nullptr;
  const double* inv_freq = nullptr;
  Rotation<float> rotation;
  int32_t *query_row = nullptr, *scored = nullptr;  // [tokens]
  DeviceArray<std::byte> queries;
  int64_t query_head = 0;
  std::vector<int32_t> rows;  // of query_row and scored, on the host
  // What several policies read, by its place and extent on the host.
  std::map<std::pair<const void*, size_t>, const void*> sums;

  PolicyStream(Runtime& runtime, const HeadStream<float>& stream);
  // A copy of that array; whoever asks again gets the same.
  template <class Number>
  const Number* share(const Number* host, size_t count);
};

// Whether rows list the tokens that each head attends to.
bool lists_attended(const DevicePolicy& policy);
// Heads whose rows have bits of their own, and words of a row.
size_t bit_heads(const DevicePolicy& policy);
size_t words_of(const HeadStream<float>& stream);
// Parts of a row's results.
int32_t parts_of(const DevicePolicy& policy);
// What a policy takes of the device's memory, whatever is asked of its rows.
size_t device_bytes_of(const HeadStream<float>& stream, const DevicePolicy& policy);
// Its task, whose arrays stand in `memory`. keys, sink_logits: as PolicyBatch.
PolicyTask make_task(const HeadStream<float>& stream, const DevicePolicy& policy, const float* keys,
                     const float* sink_logits, PolicyStream& shared, PolicyMemory& memory);
// What is left in a task's arrays goes to those of the host, once the runtime has been waited for.
void fetch_policy(Runtime& runtime, const HeadStream<float>& stream, const PolicyTask& task,
                  const DevicePolicy& policy);

}  // namespace kvreplay
