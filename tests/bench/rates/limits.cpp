#include "tests/bench/rates/limits.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cmath>
#include <cstdlib>

#include "base/errors.hpp"

// This file is compiled with contraction, so a product and a sum become one instruction if the machine has it.

namespace kvreplay::app {
namespace {

constexpr int kChains = 12;  // independent chains: more than latency times units of any present core
constexpr int64_t kLinks = 1 << 22;

typedef float FourFloats __attribute__((vector_size(16)));
typedef float EightFloats __attribute__((vector_size(32)));
typedef float SixteenFloats __attribute__((vector_size(64)));

template <class Lanes>
[[gnu::always_inline]] inline double run_chains() {
  constexpr int kFloats = sizeof(Lanes) / sizeof(float);
  Lanes factor{}, term{}, sum[kChains];
  for (int i = 0; i < kFloats; ++i) factor[i] = 0.5F, term[i] = 1.0F + 0.001F * float(i);
  for (Lanes& s : sum) s = term;
  asm volatile("" : "+m"(factor), "+m"(term));  // keeps the compiler from computing the result
  for (int64_t link = 0; link < kLinks; ++link)
    for (Lanes& s : sum) s = s * factor + term;
  for (Lanes& s : sum) asm volatile("" ::"m"(s));
  return 2.0 * kChains * kFloats * double(kLinks);
}

double run_narrow() { return run_chains<FourFloats>(); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] double run_avx2() { return run_chains<EightFloats>(); }
[[gnu::target("avx512f")]] double run_avx512() { return run_chains<SixteenFloats>(); }
#endif

struct Vectors {
  const char* name;
  double (*run)();
};

Vectors chosen() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {"AVX-512", run_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {"AVX2+FMA", run_avx2};
  return {"SSE2", run_narrow};
#else
  return {"128-bit vectors", run_narrow};
#endif
}

// The C interface of BLAS; numpy's copy takes 64-bit integers and marks them in its names.
template <class Int>
using Product = void (*)(int order, int left, int right, Int m, Int n, Int k, float alpha, const float* a, Int lda,
                         const float* b, Int ldb, float beta, float* c, Int ldc);
constexpr int kRowMajor = 101, kAsIs = 111;

template <class Int>
void call(void* product, const float* a, const float* b, float* out, Int n) {
  reinterpret_cast<Product<Int>>(product)(kRowMajor, kAsIs, kAsIs, n, n, n, 1.0F, a, n, b, n, 0.0F, out, n);
}

void* opened(const std::string& file) {
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);  // set before loading, because it starts its threads then
  if (!file.empty()) return ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  for (const char* name : {"libopenblas.so.0", "libopenblas.so"})
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

}  // namespace

double run_fma_units() { return chosen().run(); }
const char* widest_vectors() { return chosen().name; }

double scalar_exponentials() {
  constexpr int kNumbers = 1 << 21;
  float x = -80, sum = 0;
  for (int i = 0; i < kNumbers; ++i) {
    sum += std::exp(x);
    x += 80.0F / kNumbers;
  }
  asm volatile("" ::"m"(sum));
  return kNumbers;
}

Blas::Blas(const std::string& file) {
  void* library = opened(file);
  if (library == nullptr && file.empty()) return;
  if (library == nullptr)
    throw ConfigError(fmt::format("--blas {}: {}. Name a shared library of OpenBLAS", file, ::dlerror()));
  name_ = file.empty() ? "OpenBLAS" : file;
  for (const char* symbol : {"cblas_sgemm", "scipy_cblas_sgemm"})
    if (product_ == nullptr) product_ = ::dlsym(library, symbol);
  for (const char* symbol : {"cblas_sgemm64_", "scipy_cblas_sgemm64_"})
    if (product_ == nullptr && (product_ = ::dlsym(library, symbol)) != nullptr) wide_ = true;
  if (product_ == nullptr && !file.empty())
    throw ConfigError(fmt::format("--blas {}: it has no cblas_sgemm. Name a shared library of OpenBLAS", file));
}

double Blas::multiply(const float* a, const float* b, float* out, int32_t n) const {
  if (wide_) call<int64_t>(product_, a, b, out, n);
  else call<int32_t>(product_, a, b, out, n);
  return 2.0 * double(n) * double(n) * double(n);
}

}  // namespace kvreplay::app
