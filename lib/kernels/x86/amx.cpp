#include <immintrin.h>

#include <cstdint>

// AMX: tiles of bf16 numbers. A thread configures them at the start of a call and releases them at its end, so that the
// operating system has no tiles to save. The intrinsics of g++ 12 accept tiles only as literal numbers, hence the
// assembly.

namespace kvreplay::kernels {
namespace {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Tiles {
  Tiles() {
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  template <int T>
  void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  void load(const uint16_t* p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride * 2), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int T>
  void store(float* p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride * 4), "i"(T) : "memory");
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/tile_kernels.hpp"

namespace kvreplay::kernels {
constinit const TileProduct kAmxProduct = tile_product;
}
