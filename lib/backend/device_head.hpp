#pragma once
#include <memory>
#include <vector>

#include "backend/device_chains.hpp"
#include "backend/key_lists.hpp"
#include "backend/runtime.hpp"
#include "replay/head_device.hpp"

namespace kvreplay {

// A head in the memory of a device: keys and values stay there as planes of 16-bit numbers, rows come and go
// in portions, so that memory does not grow with the number of rows.
class DeviceHead : public HeadDevice {
 public:
  // DeviceError when heads are wider than kernels are compiled for, or there is no room.
  DeviceHead(Runtime& runtime, const HeadStream<float>& stream);
  std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) override;
  std::vector<double> future_sums(const std::vector<int32_t>& rows) override;
  bool fits(const ScoreRule& rule, int32_t heads) const override;
  std::vector<Departures> departures(const std::vector<ScoredCache>& chains) override;
  void evaluate(const std::vector<HeldTokens>& caches, const Asked& asked,
                const std::function<void(const DeviceRows&)>& take) override;
  bool replays(const ChainPrograms& programs, const HeadShape& shape) const override;
  std::vector<ChainRecord> cut(const std::vector<ChainOrder>& orders) override;
  std::vector<ChainRecord> replay(const std::vector<ChainOrder>& orders, const Asked& asked,
                                  const std::function<void(const DeviceRows&)>& take) override;
  Grade grade() const { return grade_; }

 protected:
  struct Planes {
    DeviceArray<uint16_t> high, low;  // low: empty where high is all
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
  Rows load_rows(std::vector<int32_t> tokens);
  Sums make_sums(size_t parts, size_t rows, bool values);
  Exact attend(const Rows& rows, const KeyLists::OnDevice& keys, const Sums& sums, bool values);

 private:
  // Adds the recalls of each cache to its results.
  void find_recalls(std::vector<RecallLane> lanes, const Rows& rows, const Exact& exact, DeviceRows& result);
  // From the sums of parts to what each cache's rows say; adds caches to the results.
  struct Merge {
    std::vector<MergeLane> lanes;
    const PartRef* refs;
    bool outputs;
  };
  void merge(Merge how, const MergeInput& in, const Exact& exact, DeviceRows& result);
  DeviceChains chains_of(std::span<const ChainOrder> orders, bool recalls);
  void replay_some(std::span<const ChainOrder> orders, const Asked& asked,
                   const std::function<void(const DeviceRows&)>& take, std::vector<ChainRecord>& records);
  void replay_rows(DeviceChains& chains, std::span<const ChainOrder> orders, const Asked& asked, Rows rows,
                   DeviceRows& result);
  struct ChainMemory {
    DeviceArray<int32_t> held;
    DeviceArray<double> scores;
    DeviceArray<int32_t> victims;
    DeviceArray<ScoreChainEnd> end;
    DeviceArray<float> scratch;  // empty: shared memory holds it
  };
  ChainMemory make_chain(const ScoredCache& cache, const Rows& rows, std::vector<ScoreChain>& chains);
  Exact find_normalisers(const Rows& rows);
  ColumnArgs column_args(const Rows& rows, const Exact& exact, int32_t columns) const;
  Planes pack(const DeviceArray<float>& numbers, int64_t rows, int32_t dim);
  Exact make_exact(size_t rows, bool values);
  AttendArgs attend_args(const Rows& rows, const DeviceArray<AttendPart>& parts, const Sums& sums) const;
  MergeInput merge_input(const Rows& rows, const Sums& sums) const;
  void evaluate_rows(const std::vector<HeldTokens>& caches, const Asked& asked, Rows rows,
                     DeviceRows& result);
  void download_exact(const Exact& exact, DeviceRows& result);
  size_t rows_at_once(const std::vector<HeldTokens>& caches, const Asked& asked) const;
  void require_kernels() const;
  int32_t heads() const { return stream_.shape.heads; }

  Runtime& runtime_;
  const HeadStream<float>& stream_;
  int32_t width_;
  Grade grade_;
  DeviceArray<float> keys_;  // [blocks, tokens, dim]
  Planes key_planes_, value_planes_;
  DeviceArray<float> sink_logits_;
};

}  // namespace kvreplay
