#pragma once

namespace kvreplay {

// One (query head, row) of a cache against the exact row, as a device found it.
struct DeviceRow {
  float tau, log_tau;  // the denominator / the exact one; tau may leave its range where log_tau does not
  float kept_mass;     // exact probability of the attended tokens
  float error2, exact2, mine2, inner, positive2, numerator2;  // as kernels::Distance and Comparison
  float prefix, set;  // relative errors of side outputs; negative: there is none
};

}  // namespace kvreplay
