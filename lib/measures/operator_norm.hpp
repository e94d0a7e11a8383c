#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// ||V_{0..t}||_F and ||V_{0..t}||_op for growing t, from the running Gram matrix V^T V in double precision.
class ValueNorms {
 public:
  // spectral: whether spectral() will be called.
  explicit ValueNorms(int32_t v_dim, bool spectral = true);
  template <class Real>
  void add(const Real* value);  // [v_dim]
  double frobenius() const;
  double largest() const { return largest_; }  // max ||v||
  // Largest singular value, relative error below 1e-10. Stores its vector, so that the next call, a few tokens later,
  // starts close to the solution.
  double spectral();

 private:
  std::vector<double> gram_;   // [v_dim, v_dim], the lower triangle; empty without `spectral`
  std::vector<double> start_;  // [v_dim]
  double largest_ = 0, squares_ = 0;
};

}  // namespace kvreplay
