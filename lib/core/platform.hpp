#pragma once
// The only macros of the core: where a function may run, "this loop has no order", and how many neighbours are taken at
// once in a long loop.
// Score rules and what they need are also compiled as device code, where nvcc is found.

#if defined(__CUDACC__)
#define KVR_FN __host__ __device__
#define KVR_SIMD
#define KVR_SIMD_SUM(x)
#else
#define KVR_FN
#define KVR_PRAGMA(x) _Pragma(#x)
#define KVR_SIMD KVR_PRAGMA(omp simd)
#define KVR_SIMD_SUM(x) KVR_PRAGMA(omp simd reduction(+ : x))
#endif
#define KVR_LANES 8
