#pragma once
#include "core/cache.hpp"
#include "core/method_info.hpp"

// Row formats (methods.md, "row formats"): how the entries of any cache are stored. The formatter rewrites
// rows after they were exact in their own step; policies then see the dequantised keys and values.

namespace kvreplay {

template <class Real>
class Formatter {
 public:
  // stored_bytes: of one number in the trace.
  Formatter(const RowFormat& format, int32_t stored_bytes) : format_(format), stored_bytes_(stored_bytes) {}

  // Rows that will be written, of a cache that can hold `rows` rows.
  int32_t own_rows(int32_t rows) const { return format_.kind == RowFormat::Kind::source ? 0 : rows; }
  void after_prompt(BasicCache<Real>&) {}
  void after_step(BasicCache<Real>&) {}
  // Of one kv head: `keys` keys and `values` values, those beyond the rows of the cache exact.
  int64_t payload_bytes(const BasicCache<Real>& cache, int64_t keys, int64_t values) const {
    return exact_bytes(keys * cache.shape().dim + values * cache.shape().v_dim);
  }
  int64_t sketch_bytes(const BasicCache<Real>&) const { return 0; }
  int64_t exact_bytes(int64_t floats) const { return floats * stored_bytes_; }
  int64_t quantised() const { return 0; }

 private:
  RowFormat format_;
  int32_t stored_bytes_;
};

}  // namespace kvreplay
