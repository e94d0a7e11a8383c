#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/key_lists.hpp"
#include "device/runtime.hpp"
#include "evaluate/head_device.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Most rows of a head that a device takes at a time, rounded down to tiles of 64. Memory bounds them too; results do
// not depend on it.
struct Portion {
  size_t rows = 8192;
};

// As many rows as there is room for, in whole tiles.
inline size_t portion_rows(size_t bytes, size_t row_bytes, size_t most) {
  return std::max(size_t{64}, std::min(bytes / row_bytes, most) / 64 * 64);
}

// A head in the memory of a device: keys and values stay there as planes of 16-bit numbers. Scored rows are processed
// in portions, so that memory does not grow with their number. Sums over the prompt's rows keep all its queries there.
class DeviceHead : public HeadDevice {
 public:
  // The grade of the kernels for the stream's heads; nullopt if the device has none, or its blocks lack the shared
  // memory for them.
  static std::optional<Grade> grade_for(const Runtime& runtime, const HeadStream<float>& stream);
  // grade: from grade_for(). Throws DeviceError if memory is short.
  DeviceHead(Runtime& runtime, const HeadStream<float>& stream, Grade grade, Portion most = {});
  std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) override;
  std::vector<double> future_sums(const std::vector<int32_t>& rows) override;
  void evaluate(const std::vector<DeviceCache>& caches, const Asked& asked, const Take& take) override;
  std::vector<Decided> decide(const std::vector<DeviceDecision>& caches) override;
  Grade grade() const { return grade_; }

 protected:
  struct Planes {
    DeviceArray<uint16_t> high, low;  // low: empty if high is the whole number
  };
  // Query rows, [heads, rows].
  struct Rows {
    std::vector<int32_t> tokens;
    DeviceArray<int32_t> token;
    DeviceArray<float> numbers;  // [heads, rows, dim]
    Planes planes;
  };
  struct Sums {
    DeviceArray<float> top, z, tokens, squares, out;
    AttendSums view() const { return {top.data(), z.data(), tokens.data(), squares.data(), out.data()}; }
  };
  struct Exact {
    DeviceArray<float> top, z, l2, out;
    ExactRows view() const { return {top.data(), z.data(), l2.data(), out.data()}; }
  };
  // Valid until the next call. Rows that are loaded already stay.
  const Rows& load_rows(std::vector<int32_t> tokens);
  Sums make_sums(size_t parts, size_t rows, bool values);
  Exact attend(const Rows& rows, const KeyLists::OnDevice& keys, const Sums& sums, bool values);

 private:
  // Rows on the device, the caches that are compared on them, and their results on the device.
  struct RowsOnDevice {
    const Rows& rows;
    std::vector<MergeCache> caches;
    std::vector<RecallCache> recalls;  // empty: recalls are not computed
    DeviceArray<RowResult> results;
    void add(const MergeCache& cache);  // its results follow those of the others
  };
  void merge(RowsOnDevice& rows_on_device, const PartRef* refs, const MergeInput& in, const Exact& exact, bool outputs,
             DeviceRows& rows, const Take& take);
  DeviceArray<uint16_t> gradient_of(const Rows& rows);
  void find_recalls(RowsOnDevice& rows_on_device, const Exact& exact);
  DeviceArray<RowResult> results_of(const RowsOnDevice& rows_on_device);
  void download_exact(const Exact& exact, DeviceRows& rows);
  void find_logits(const Rows& rows, float* logits, int64_t pitch);
  Exact find_normalisers(const Rows& rows);
  ColumnArgs column_args(const Rows& rows, const Exact& exact, int32_t columns) const;
  DeviceArray<float> gathered(const RowsInPlace& from);
  void expect_usable_queries();
  bool holds(const DeviceTensor& tensor) const { return tensor.device == runtime_.device(); }
  DeviceArray<float> block_rows(const std::vector<float>& numbers, const DeviceTensor& there, int32_t dim);
  DeviceArray<float> query_rows(const std::vector<int32_t>& tokens);
  Planes pack(const DeviceArray<float>& numbers, int64_t rows, int32_t dim);
  Exact make_exact(size_t rows, bool values);
  AttendArgs attend_args(const Rows& rows, const DeviceArray<AttendPart>& parts, const Sums& sums) const;
  MergeInput merge_input(const Rows& rows, const Sums& sums) const;
  void evaluate_rows(const std::vector<DeviceCache>& caches, const Asked& asked, const Rows& rows, DeviceRows& result,
                     const Take& take);
  size_t rows_at_once(const std::vector<DeviceCache>& caches, const Asked& asked) const;
  int32_t heads() const { return stream_.shape.heads; }

  Runtime& runtime_;
  const HeadStream<float>& stream_;
  Portion most_;
  int32_t width_;
  Grade grade_;
  DeviceArray<float> keys_;  // [blocks, tokens, dim]
  Planes key_planes_, value_planes_;
  DeviceArray<float> sink_logits_;
  Rows loaded_;
};

}  // namespace kvreplay
