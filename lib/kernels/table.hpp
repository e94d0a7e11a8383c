#pragma once
#include <cstdint>

// The functions of one instruction set. Their translation units are compiled for machines that the rest of the program
// must not assume, so this header must not define code that other units could link to: plain data only.

namespace kvreplay::kernels {

constexpr int32_t kPanel = 48;  // keys in one packed panel
constexpr int32_t kLanes = 16;  // points in one block of squared_distances

struct RowSums {
  double sum, squares;  // sums of exp(scale x - shift)
};

// z is the output, o the exact output.
struct Distance {
  double error2, exact2;  // ||z - o||^2, ||o||^2
};
// p_c = o_c where it exceeds kClamp, else kClamp; N = tau z.
struct Comparison {
  static constexpr double kClamp = 1e-8;
  double mine2, inner;           // ||z||^2, <z, o>
  double positive2, numerator2;  // ||p||^2, ||N - o||^2
};

struct Lowest {
  double score;
  int32_t token;  // -1: there is none
};

// As the functions of the same names in kernels.hpp, for one precision.
template <class Real>
struct Functions {
  // keys: packed panels from the first wanted key on, [.., d, kPanel].
  void (*scores)(const Real* q, int64_t ldq, int32_t m, const Real* keys, int32_t d, int32_t count, Real* out,
                 int64_t ldo);
  void (*multiply)(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out, int64_t ldo,
                   bool add);
  RowSums (*exponentiate)(Real* row, int32_t n, Real scale, Real shift);
  Real (*row_maximum)(const Real* row, int32_t n);
  double (*gather)(const Real* from, const int32_t* index, int32_t n, Real* out);
  double (*sum)(const Real* x, int32_t n);
  double (*weigh)(const Real* x, const Real* factor, int32_t n, Real* out);
  void (*accumulate)(const Real* e, double weight, double carry, int32_t n, double* score);
  Distance (*distance)(const Real* mine, const Real* exact, int32_t n);
  Comparison (*compare)(const Real* mine, const Real* exact, int32_t n, double tau);
  void (*project)(const Real* mine, const Real* exact, const uint16_t* directions, int32_t count, int32_t n,
                  float* out);
  void (*add)(const Real* a, const Real* b, Real weight, int64_t n, Real* out);
  void (*finish)(const Real* a, const Real* b, Real factor, int64_t n, Real* out);
  double (*sum_x_log_x)(const Real* row, int32_t n);
};

// A matrix [terms, columns] of bf16 numbers in tiles of 32 terms x 16 columns, [column blocks, term_blocks, 16, 16, 2]:
// pairs of terms, then columns. Zeros after the last term and column, and one more column block of zeros.
struct TileMatrix {
  const uint16_t* numbers;
  int32_t term_blocks;
};

// out[m, columns] = a[m, terms] * b. Sums are float32.
using TileProduct = void (*)(const float* a, int64_t lda, int32_t m, const TileMatrix& b, int32_t terms,
                             int32_t columns, float* out, int64_t ldo);

struct Table {
  const char* name;  // the path's name, as in KVREPLAY_ISA
  Functions<float> of_float;
  Functions<double> of_double;
  void (*squared_distances)(const double* others, const double* point, int32_t d, double* out);
  void (*logarithms)(double* x, int32_t n);
  Lowest (*lowest)(const double* score, const double* guard, const int32_t* token, int32_t n);
  TileProduct tile_product;  // null where the path has no tiles

  const Functions<float>& of(float) const { return of_float; }
  const Functions<double>& of(double) const { return of_double; }
};

extern const Table kPortable;
#if defined(__x86_64__)
extern const Table kAvx2, kAvx512;
extern const TileProduct kAmxProduct, kAvx512Bf16Product;
#endif

}  // namespace kvreplay::kernels
