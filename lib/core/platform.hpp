#pragma once
// The only macros of the core: where a function may run, "this loop has no order", and how many neighbours
// one thread takes at once where a loop is long enough for either.
// The same text is compiled for the CPU and, where nvcc is found, as device code. Functions of the host that
// depend on KVR_LANES must not be called in a .cu file: the linker would keep one of two.

#if defined(__CUDACC__)
#define KVR_FN __host__ __device__
#define KVR_SIMD
#define KVR_SIMD_SUM(x)
#define KVR_LANES 2
#else
#define KVR_FN
#define KVR_PRAGMA(x) _Pragma(#x)
#define KVR_SIMD KVR_PRAGMA(omp simd)
#define KVR_SIMD_SUM(x) KVR_PRAGMA(omp simd reduction(+ : x))
#define KVR_LANES 8
#endif
