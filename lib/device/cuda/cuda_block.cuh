#pragma once
#include "device/kernels/block.hpp"

// The threads of a CUDA block. Needs compute capability 8.0: bf16 tensor cores, asynchronous copies.

namespace kvreplay::cuda {

struct CudaBlock {
  int64_t block;  // grids may be larger than one launch
  __device__ int thread() const { return int(threadIdx.x); }
  __device__ int threads() const { return int(blockDim.x); }
  __device__ int64_t index() const { return block; }
  __device__ unsigned char* shared() const {
    extern __shared__ __align__(16) unsigned char memory[];
    return memory;
  }
  // Not __syncthreads(), which requires every warp to have converged. After loops that its threads leave at different
  // times, ptxas 13.0 assumes convergence although there is none.
  __device__ void sync() const { asm volatile("barrier.sync 0;" ::: "memory"); }
  __device__ void sync_warp() const { __syncwarp(); }

  template <class T>
  __device__ T shuffle_xor(T x, int mask) const {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
  __device__ int32_t atomic_add(int32_t* in_shared, int32_t x) const { return atomicAdd(in_shared, x); }
  __device__ float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  // Volatile: shared memory changes between two loads of the same address.
  __device__ void load_matrices(uint32_t (&m)[4], const void* from) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address(from))
                 : "memory");
  }
  __device__ void load_matrices_transposed(uint32_t (&m)[4], const void* from) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address(from))
                 : "memory");
  }
  __device__ void copy_async(void* to, const void* from, bool inside) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
  }
  __device__ void commit_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int n>
  __device__ void wait_copies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
  }

 private:
  __device__ static uint32_t address(const void* in_shared) { return uint32_t(__cvta_generic_to_shared(in_shared)); }
};

// Blocks of a kernel that must fit on one processor, so that some compute while others wait. The number bounds their
// registers. 0: the compiler decides.
template <class Kernel>
constexpr int resident_blocks() {
  if constexpr (requires { Kernel::kResidentBlocks; }) return Kernel::kResidentBlocks;
  else return 0;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, resident_blocks<Kernel>())
    run_kernel(Kernel kernel, int64_t first_block) {
  kernel(CudaBlock{first_block + int64_t(blockIdx.x)});
}

}  // namespace kvreplay::cuda
