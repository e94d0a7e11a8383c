#include "kernels/x86/features.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace kvreplay::kernels {
namespace {

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;  // zero where the processor has no such leaf
  Leaf(unsigned leaf, unsigned part) {
    if (__get_cpuid_count(leaf, part, &a, &b, &c, &d) == 0) a = b = c = d = 0;
  }
};

// Registers that the operating system saves: bits of XCR0.
uint64_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

// The operating system provides the tile registers only on request.
bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool holds(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

}  // namespace

Features features() {
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  constexpr unsigned kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  Features have;
  const Leaf basic(1, 0), extended(7, 0), more(7, 1);
  if (!holds(basic.c, bit_OSXSAVE | bit_FMA | bit_AVX)) return have;
  const uint64_t saved = saved_registers();
  have.avx2 = holds(saved, kYmm) && holds(extended.b, kAvx2);
  have.avx512 = have.avx2 && holds(saved, kZmm) && holds(extended.b, kF | kDq | kBw | kVl);
  have.avx512bf16 = have.avx512 && holds(more.a, kAvx512Bf16);
  have.amx = have.avx512 && holds(saved, kTiles) && holds(extended.d, kAmxBf16 | kAmxTile) && tiles_permitted();
  return have;
}

}  // namespace kvreplay::kernels
