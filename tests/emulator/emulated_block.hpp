#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/kernels/block.hpp"

// A block on the CPU. Its threads are fibers of one thread that run one after the other from one rendezvous to the
// next, so a run repeats exactly. A warp runs until all of its threads wait for other warps, so one warp is as far
// ahead of another as barriers of the block allow. The order of threads and of warps is a setting: a kernel whose
// result depends on it has a race. Shared memory starts as NaN and has a guard at both ends.

namespace kvreplay::emulator {

// Which thread of a warp, and which warp of a block, goes first.
enum class Schedule { forward, backward, shuffled };

class Threads {
 public:
  Threads(const LaunchShape& shape, Schedule schedule);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  // Runs body(thread) on every thread of block `index` to its end. Throws std::logic_error if threads wait for each
  // other at different places, or write outside the shared memory.
  void run(int64_t index, const std::function<void(int)>& body);

  // Called by the block's threads.
  void wait_for_warp(int thread);
  void wait_for_block();
  // The bytes that each thread of a warp shows the others in a collective operation; two buffers alternate.
  static constexpr size_t kSlot = 32;
  unsigned char* slot(int thread, int turn);
  int turn(int thread) const;  // changes with every wait_for_warp()
  unsigned char* shared();
  // Copies 16 bytes, which are NaN until their group is waited for. from: null for zeros.
  void start_copy(int thread, void* to, const void* from);
  void commit_copies(int thread);
  void finish_copies(int thread, int but_last_groups);
  // Ends the launch after the block is done.
  void report_misalignment(const char* what);
  int64_t index() const { return index_; }
  int threads() const { return shape_.threads; }
  int64_t barriers() const;  // whole blocks waited, so far

 private:
  struct Impl;
  LaunchShape shape_;
  int64_t index_ = 0;
  std::unique_ptr<Impl> impl_;
};

class EmulatedBlock {
 public:
  EmulatedBlock(Threads& threads, int thread) : threads_(&threads), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const { return threads_->threads(); }
  int64_t index() const { return threads_->index(); }
  unsigned char* shared() const { return threads_->shared(); }
  void sync() const { threads_->wait_for_block(); }
  void sync_warp() const { threads_->wait_for_warp(thread_); }

  template <class T>
  T shuffle_xor(T x, int mask) const {
    give(&x, sizeof x);
    T other;
    take(lane() ^ mask, &other, sizeof other);
    return other;
  }
  int32_t atomic_add(int32_t* in_shared, int32_t x) const { return std::exchange(*in_shared, *in_shared + x); }
  float exp2(float x) const { return std::exp2(x); }
  void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const {
    struct Mine {
      uint32_t a[4], b[2];
    } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[kWarp];
    give(&mine, sizeof mine);
    for (int l = 0; l < kWarp; ++l) take(l, &all[l], sizeof all[l]);
    const int g = lane() / 4, c = 2 * (lane() % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, column = c + i % 2;
      for (int k = 0; k < 16; ++k) {
        const int owner = k % 8 / 2, half = k / 8;
        const uint32_t pair_a = all[4 * g + owner].a[row + 2 * half], pair_b = all[4 * column + owner].b[half];
        d[i] += half_of(pair_a, k % 2) * half_of(pair_b, k % 2);
      }
    }
  }
  void load_matrices(uint32_t (&m)[4], const void* from) const { load(m, from, false); }
  void load_matrices_transposed(uint32_t (&m)[4], const void* from) const { load(m, from, true); }
  void copy_async(void* to, const void* from, bool inside) const {
    check_alignment(to, "the target of a copy"), check_alignment(from, "the source of a copy");
    threads_->start_copy(thread_, to, inside ? from : nullptr);
  }
  void commit_copies() const { threads_->commit_copies(thread_); }
  template <int n>
  void wait_copies() const {
    threads_->finish_copies(thread_, n);
  }

 private:
  void check_alignment(const void* at, const char* what) const {
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0) threads_->report_misalignment(what);
  }
  int lane() const { return thread_ % kWarp; }
  static float half_of(uint32_t pair, int which) { return from_bf16(uint16_t(pair >> 16 * which)); }
  void give(const void* from, size_t bytes) const {
    static_assert(Threads::kSlot >= 6 * sizeof(uint32_t));
    std::memcpy(threads_->slot(thread_, threads_->turn(thread_)), from, bytes);
    threads_->wait_for_warp(thread_);
  }
  void take(int lane, void* to, size_t bytes) const {
    std::memcpy(to, threads_->slot(thread_ / kWarp * kWarp + lane, 1 - threads_->turn(thread_)), bytes);
  }
  void load(uint32_t (&m)[4], const void* from, bool transposed) const {
    check_alignment(from, "a row of a matrix");
    give(&from, sizeof from);
    const int g = lane() / 4, c = 2 * (lane() % 4);
    for (int i = 0; i < 4; ++i) {
      const auto number = [&](int row, int column) -> uint32_t {
        const uint16_t* start;
        take(8 * i + row, &start, sizeof start);
        return start[column];
      };
      m[i] = transposed ? number(c, g) | number(c + 1, g) << 16 : number(g, c) | number(g, c + 1) << 16;
    }
  }
  Threads* threads_;
  int thread_;
};
static_assert(Block<EmulatedBlock>);

constexpr size_t kMostSharedBytes = size_t{227} << 10;  // most of one block

// Returns the number of barriers that blocks have waited at.
template <class Kernel>
int64_t launch(const Kernel& kernel, const LaunchShape& shape, Schedule schedule) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
  if (shape.shared_bytes > kMostSharedBytes)
    throw std::logic_error("a block asks for more shared memory than there is");
  Threads threads(shape, schedule);
  for (int64_t b = 0; b < shape.blocks; ++b)
    threads.run(b, [&](int thread) { kernel(EmulatedBlock(threads, thread)); });
  return threads.barriers();
}

}  // namespace kvreplay::emulator
