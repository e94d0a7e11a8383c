#pragma once
#include <cstdint>
#include <string>

#include "core/bf16.hpp"
#include "core/halves.hpp"

namespace kvreplay {

// Type of a tensor's numbers as they are stored. 16 bits are held as uint16_t.
enum class DType { float32, float16, bfloat16 };
KVR_FN constexpr int bytes_of(DType type) { return type == DType::float32 ? 4 : 2; }

// Number i of an array, widened exactly.
KVR_FN inline float number_at(const void* array, DType type, int64_t i) {
  if (type == DType::float32) return static_cast<const float*>(array)[i];
  const uint16_t bits = static_cast<const uint16_t*>(array)[i];
  return type == DType::float16 ? widen_float16(bits) : from_bf16(bits);
}

// False for infinity, NaN, and 2^40 or more: a product of two such vectors would overflow single precision. Tests the
// bits because std::isfinite is constant under -ffast-math.
KVR_FN inline bool is_usable(float x) { return int32_t(float_bits(x) & 0x7FFFFFFFu) < int32_t(float_bits(0x1p40f)); }

// A tensor [heads, rows, width] in the memory of a device, which may read it in place. Its numbers are complete when a
// run opens the device, or computed by work that CUDA's default stream waits for.
struct DeviceTensor {
  std::string device;  // as `run.device` spells it, for example cuda:0; empty: there is no such tensor
  const void* data = nullptr;
  DType type = DType::float32;
  int64_t strides[3] = {};  // in numbers

  DeviceTensor from_head(int64_t head) const {
    DeviceTensor part = *this;
    if (data != nullptr) part.data = static_cast<const char*>(data) + head * strides[0] * bytes_of(type);
    return part;
  }
};

}  // namespace kvreplay
