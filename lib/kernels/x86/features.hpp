#pragma once

// What this processor can do and this operating system lets us use, from feature bits: virtual machines
// report models that contradict their features.

namespace kvreplay::kernels {

struct Features {
  bool avx2 = false;    // and FMA
  bool avx512 = false;  // F, BW, DQ, VL
};
Features features();

}  // namespace kvreplay::kernels
