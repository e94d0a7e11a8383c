#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay::app {

// The limits of this machine on one thread, measured and not looked up.

// Multiplies and adds only in registers, with the widest vectors of the processor. Returns the number of floating point
// operations.
double run_fma_units();
const char* widest_vectors();  // used by run_fma_units: "AVX-512", "AVX2+FMA" or "SSE2"

// Calls C's expf for one number after the other. Returns how many.
double scalar_exponentials();

// OpenBLAS, if the machine has it: a product of matrices on one thread.
class Blas {
 public:
  // file: a shared library of OpenBLAS, which may be numpy's copy; empty: the system's, if any. Throws ConfigError if a
  // named file has no single precision product.
  explicit Blas(const std::string& file);
  bool found() const { return product_ != nullptr; }
  const std::string& name() const { return name_; }
  // out = a b of [n, n] matrices; returns the floating point operations.
  double multiply(const float* a, const float* b, float* out, int32_t n) const;

 private:
  void* product_ = nullptr;
  bool wide_ = false;  // the library takes 64-bit integers
  std::string name_;
};

}  // namespace kvreplay::app
