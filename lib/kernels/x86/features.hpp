#pragma once

// Features that this processor has and this operating system lets us use, from feature bits: virtual machines report
// models that contradict their features.

namespace kvreplay::kernels {

struct Features {
  bool avx2 = false;    // and FMA
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512bf16 = false;
  bool amx = false;  // tiles of bf16 numbers; requests them from the operating system
};
Features features();

}  // namespace kvreplay::kernels
