#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "device/kernels/attend_kernel.hpp"
#include "device/kernels/column_kernel.hpp"
#include "device/kernels/decide_kernel.hpp"
#include "device/kernels/load_kernels.hpp"
#include "device/kernels/merge_kernel.hpp"
#include "device/kernels/probability_kernel.hpp"
#include "device/kernels/recall_kernel.hpp"

// A device as the host sees it: memory, copies and the kernels of this folder, executed in order. This file does not
// depend on CUDA; cuda/ contains one implementation, tests/emulator the other.

namespace kvreplay {

// Number of bf16 products that replace one float32 product (docs/cuda.md).
enum class Grade {
  bf16,      // one: inputs are rounded to bf16, probabilities too
  recorded,  // the trace's numbers are bf16: logits one, values two
  single,    // float32 grade: three
};

// Kernels that are compiled once for all widths.
using SimpleKernel = std::variant<GatherKernel, UnusableKernel, PackKernel, ExactMergeKernel, CacheMergeKernel,
                                  ProbabilityKernel, RecallKernel, DecideKernel>;

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual std::string device() const = 0;  // its name, as `run.device` spells it
  // At least 256-byte aligned. Throws DeviceError that names the free memory if there is no room.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Executed in order with the kernels. `from` may change right after the call; `to` holds the bytes after wait().
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Waits until all work is done. Throws DeviceError if a kernel failed.
  virtual void wait() = 0;

  // After an error: ends running work and drops pending downloads, whose targets may be freed.
  virtual void forget() noexcept = 0;
  // Largest shared memory of one block.
  virtual size_t most_shared_bytes() const = 0;

  virtual void run(const SimpleKernel& kernel) = 0;
  // width: padded width of the rows in AttendArgs, one of kWidths. values: false: writes no `out`.
  virtual void attend(const AttendArgs& args, int32_t width, Grade grade, bool values) = 0;
  // maxima: sums the largest head of each row.
  virtual void columns(const ColumnArgs& args, int32_t width, Grade grade, bool maxima) = 0;
};

// Padded widths that kernels are compiled for.
constexpr int32_t kWidths[] = {64, 128, 256};
constexpr int32_t padded_width(int32_t dim) {
  for (const int32_t width : kWidths)
    if (dim <= width) return width;
  return 0;  // too wide for the device
}

// An array in the memory of a device.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Runtime& runtime, size_t count)
      : runtime_(&runtime), count_(count), data_(static_cast<T*>(runtime.allocate(count * sizeof(T)))) {}
  DeviceArray(Runtime& runtime, std::span<const T> from) : DeviceArray(runtime, from.size()) { upload(from); }
  ~DeviceArray() {
    if (data_ != nullptr) runtime_->release(data_);
  }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    swap(other);
    return *this;
  }
  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void upload(std::span<const T> from) { runtime_->upload(data_, from.data(), from.size_bytes()); }
  // Copies elements first..first + to.size() - 1; they are valid after wait().
  void download(std::span<T> to, size_t first = 0) const {
    if (!to.empty()) runtime_->download(to.data(), data_ + first, to.size_bytes());
  }

 private:
  void swap(DeviceArray& other) noexcept {
    std::swap(runtime_, other.runtime_), std::swap(count_, other.count_), std::swap(data_, other.data_);
  }
  Runtime* runtime_ = nullptr;
  size_t count_ = 0;
  T* data_ = nullptr;
};

}  // namespace kvreplay
