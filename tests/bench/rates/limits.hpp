#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay::app {

// What this machine can do on one thread, measured and not looked up.

// Multiplies and adds in registers alone with the widest vectors that the processor has. Returns the floating
// point operations that were done.
double fill_fma_units();
const char* widest_vectors();  // "AVX-512", "AVX2+FMA" or "SSE2": what fill_fma_units uses

// C's expf, one number after the other. Returns how many.
double scalar_exponentials();

// OpenBLAS, where the machine has one: a product of matrices on one thread.
class Blas {
 public:
  // `file`: a shared library of OpenBLAS, also as numpy ships it; empty: the system's, if any. Throws
  // ConfigError when a named file has no single precision product.
  explicit Blas(const std::string& file);
  bool found() const { return product_ != nullptr; }
  const std::string& name() const { return name_; }
  // out = a b of [n, n] matrices; returns the floating point operations.
  double multiply(const float* a, const float* b, float* out, int32_t n) const;

 private:
  void* product_ = nullptr;
  bool wide_ = false;  // 64-bit integers
  std::string name_;
};

}  // namespace kvreplay::app
