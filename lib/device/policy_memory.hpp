#pragma once
#include <map>
#include <vector>

#include "caches/device_policy.hpp"
#include "device/kernels/policy_task.hpp"
#include "device/runtime.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Arrays of one policy and its cache; they are freed with this object.
struct PolicyMemory {
  explicit PolicyMemory(Runtime& r) : runtime(r) {}
  Runtime& runtime;
  std::vector<DeviceArray<std::byte>> arrays;
  DeviceArray<std::byte> bits, steps, tokens, num, den;  // for a portion of rows, or for a launch

  template <class T>
  T* take(size_t count) {
    arrays.emplace_back(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(arrays.back().data());
  }
  // An array of the size of the host's; null if the host's is null.
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
  // Only grows.
  template <class T>
  T* reuse(DeviceArray<std::byte>& array, size_t count) {
    if (array.size() < count * sizeof(T)) array = DeviceArray<std::byte>(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(array.data());
  }
  PolicyEnd* end = nullptr;
};

// Arrays that all policies of a head read.
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
  std::vector<int32_t> rows;  // query_row and scored on the host
  // Arrays that several policies read, by their address and size on the host.
  std::map<std::pair<const void*, size_t>, const void*> sums;

  PolicyStream(Runtime& runtime, const HeadStream<float>& stream);
  // Copies the array to the device; a second call returns the same copy.
  template <class Number>
  const Number* share(const Number* host, size_t count);
};

// Whether rows list the tokens that each head attends to.
bool lists_attended(const DevicePolicy& policy);
// bit_heads: heads whose rows have separate bits. words_of: words of a row of bits.
size_t bit_heads(const DevicePolicy& policy);
size_t words_of(const HeadStream<float>& stream);
// Number of parts of a row's results.
int32_t parts_of(const DevicePolicy& policy);
// Bytes of device memory that a policy takes, apart from its results.
size_t device_bytes_of(const HeadStream<float>& stream, const DevicePolicy& policy);
// Builds the policy's task, with its arrays in `memory`. keys, sink_logits: see PolicyBatch.
PolicyTask make_task(const HeadStream<float>& stream, const DevicePolicy& policy, const float* keys,
                     const float* sink_logits, PolicyStream& shared, PolicyMemory& memory);
// Copies a task's remaining arrays to the host; they are complete after the runtime's wait().
void fetch_policy(Runtime& runtime, const HeadStream<float>& stream, const PolicyTask& task,
                  const DevicePolicy& policy);

}  // namespace kvreplay
