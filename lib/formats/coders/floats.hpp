#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

// Floating point with 32 or 16 bits. A number beyond the range is a misfit.
template <class Rounding>
struct FloatRows {
  static constexpr FormatInfo info{
      .name = Rounding::name, .title = Rounding::title, .source = "", .tier = 1, .quantises = false};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {int64_t(width) * Rounding::kBytes, 0}; }

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return tally(team, row.width(), [&](int32_t i) {
      double& x = row.x[size_t(i)];
      CodeTally t;
      const double back = Rounding::round(x);
      t.note(x, back);
      t.misfits = std::isfinite(back) ? 0 : 1;
      x = back;
      return t;
    });
  }
};
struct ToFloat32 {
  static constexpr const char *name = "f32", *title = "float32";
  static constexpr int kBytes = 4;
  static double round(double x) { return to_float32(x); }
};
struct ToFloat16 {
  static constexpr const char *name = "f16", *title = "float16";
  static constexpr int kBytes = 2;
  static double round(double x) { return to_float16(x); }
};
struct ToBfloat16 {
  static constexpr const char *name = "bf16", *title = "bfloat16";
  static constexpr int kBytes = 2;
  static double round(double x) { return to_bfloat16(x); }
};
using F32 = FloatRows<ToFloat32>;
using F16 = FloatRows<ToFloat16>;
using Bf16 = FloatRows<ToBfloat16>;

}  // namespace kvreplay
