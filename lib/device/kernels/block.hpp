#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "core/bf16.hpp"
#include "core/platform.hpp"

// Marks: a function that only kernels call; a loop to unroll, because its index names registers.
#if defined(__CUDACC__)
#define KVR_DEVICE __device__
#define KVR_UNROLL _Pragma("unroll")
#else
#define KVR_DEVICE
#define KVR_UNROLL
#endif

// A kernel's view of the threads that run it: the threads of one block, in warps of 32. A kernel is a trivially
// copyable struct whose operator() takes a Block, so that the same code runs on a CUDA device (cuda/cuda_block.cuh)
// and, for tests, on the CPU (tests/emulator/emulated_block.hpp). All memory that threads share inside a block is
// shared().
//
// Every thread of the warp (or of the block, for sync()) must reach collective operations. Fragments of multiply_add()
// and load_matrices() are laid out in a warp's registers as in the PTX manual for mma.m16n8k16 and ldmatrix. With g =
// lane / 4 and c = 2 (lane % 4):
//   a[0..3]: rows g, g + 8, g, g + 8 of A [16, 16]; columns c, c + 1, the last two 8 further
//   b[0..1]: rows c, c + 1 of B [16, 8], the second 8 further; column g
//   d[0..3]: rows g, g, g + 8, g + 8 of D [16, 8]; columns c, c + 1, c, c + 1

namespace kvreplay {

constexpr int kWarp = 32;

template <class B>
concept Block = requires(const B block, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t (&m)[4],
                         void* to, const void* from, bool inside, int32_t* in_shared) {
  { block.thread() } -> std::same_as<int>;   // 0..threads() - 1
  { block.threads() } -> std::same_as<int>;  // a multiple of 32
  { block.index() } -> std::same_as<int64_t>;
  { block.shared() } -> std::same_as<unsigned char*>;  // 16-byte aligned
  block.sync();
  block.sync_warp();
  { block.shuffle_xor(1.0f, 1) } -> std::same_as<float>;  // the number of lane ^ mask; any plain type
  // Adds to a number in shared memory and returns the number before. The order of threads is undefined.
  { block.atomic_add(in_shared, 1) } -> std::same_as<int32_t>;
  { block.exp2(1.0f) } -> std::same_as<float>;  // relative error of at most 2^-21
  block.multiply_add(d, a, b);                  // D += A B, bf16 numbers, float32 sums
  // Loads four matrices of 8 x 8 numbers of 16 bits. `from`: in shared memory, row lane % 8 of matrix lane / 8, 16-byte
  // aligned. m[i] holds row g, columns c, c + 1 of matrix i; transposed: rows c, c + 1, column g.
  block.load_matrices(m, from);
  block.load_matrices_transposed(m, from);
  // Copies 16 aligned bytes to shared memory; zeros unless `inside`. They are there after wait_copies<n>(), where n
  // later groups may still run, and a sync().
  block.copy_async(to, from, inside);
  block.commit_copies();
  block.template wait_copies<1>();
};

// Size of a launch.
struct LaunchShape {
  int64_t blocks;
  int threads;
  size_t shared_bytes;
};

}  // namespace kvreplay
