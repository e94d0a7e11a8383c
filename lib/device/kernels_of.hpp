#pragma once
#include <algorithm>

#include "device/runtime.hpp"

// Selects the kernel for a call of Runtime, alike for every implementation. launch(kernel) starts one.

namespace kvreplay {

template <int kWidth, class F>
void launch_attend(const AttendArgs& args, Grade grade, bool values, F launch) {
  if (grade == Grade::single) {
    if (values) launch(AttendKernel<kWidth, 3, 3>{args});
    else launch(AttendKernel<kWidth, 3, 0>{args});
  } else if (!values) {
    launch(AttendKernel<kWidth, 1, 0>{args});
  } else if (grade == Grade::recorded) {
    launch(AttendKernel<kWidth, 1, 2>{args});
  } else {
    launch(AttendKernel<kWidth, 1, 1>{args});
  }
}
template <int kWidth, class F>
void launch_columns(const ColumnArgs& args, Grade grade, bool maxima, F launch) {
  if (grade == Grade::single) {
    if (maxima) launch(ColumnKernel<kWidth, 3, true>{args});
    else launch(ColumnKernel<kWidth, 3>{args});
  } else {
    if (maxima) launch(ColumnKernel<kWidth, 1, true>{args});
    else launch(ColumnKernel<kWidth, 1>{args});
  }
}
// Calls f.template operator()<width>().
template <class F>
void with_width(int32_t width, F f) {
  if (width == 64) f.template operator()<64>();
  else if (width == 128) f.template operator()<128>();
  else f.template operator()<256>();
}

// Shared memory of the kernels that every head needs.
inline size_t shared_bytes_needed(int32_t width, Grade grade) {
  size_t bytes = 0;
  with_width(width, [&]<int kWidth> {
    bytes = grade == Grade::single
                ? std::max(AttendKernel<kWidth, 3, 3>::kSharedBytes, ColumnKernel<kWidth, 3>::kSharedBytes)
                : std::max(AttendKernel<kWidth, 1, 2>::kSharedBytes, ColumnKernel<kWidth, 1>::kSharedBytes);
  });
  return bytes;
}
}  // namespace kvreplay
