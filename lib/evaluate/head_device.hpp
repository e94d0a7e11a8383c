#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "caches/device_policy.hpp"
#include "caches/residency.hpp"
#include "exact/head_stream.hpp"
#include "measures/row_result.hpp"

// A device that does the arithmetic of a head: sums over the prompt, the rows of caches that hold tokens of the trace
// as they stand (it is told what they hold when), and any other cache by the text of its policy. Decisions and accounts
// stay with CacheReplay, so that what a cell is does not depend on where it was computed. The implementation stands in
// device/.

namespace kvreplay {

// A cache over all rows after the prompt.
struct DeviceCache {
  Residency held;
  int32_t first_head = 0, heads = 0;
  bool by_head = false;  // each query head is ranked by its own probabilities
  bool prefix = false;   // compare what the prompt's tokens alone give; only of caches that were cut once
  bool set = false;      // compare what the same tokens give at weight 1, where some weight differs
  size_t family = 0;     // caches of one family are of the same heads, and likely to hold the same tokens
};

// Some of the rows that were asked for, [first, first + count), of all caches, or of those from first_cache on.
struct DeviceRows {
  size_t first = 0, count = 0, first_cache = 0;
  std::vector<float> l2;               // [heads of the stream, count], as ExactRow
  std::vector<double> log_normaliser;  // likewise
  struct OfCache {
    std::vector<RowResult> of;  // [heads, count]
    std::vector<float> out;     // [heads, count, v_dim]; empty: not asked for
    // On the stream's gradient, [heads, count, samples], 0 in rows without one; empty: the stream has none.
    std::vector<float> projections;
    PolicyEnd end;  // how a policy that the device runs stands
  };
  std::vector<OfCache> caches;
};

class HeadDevice {
 public:
  virtual ~HeadDevice() = default;
  // As prompt_pass() and future_sums() of exact/tile.hpp, without rows.
  virtual std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) = 0;
  virtual std::vector<double> future_sums(const std::vector<int32_t>& rows) = 0;
  struct Asked {
    std::vector<int32_t> rows;  // tokens after the prompt, ascending; all have queries
    bool recalls = false, outputs = false;
  };
  using Take = std::function<void(const DeviceRows&)>;
  // take() is given the rows in order, in portions that fit the device.
  virtual void evaluate(const std::vector<DeviceCache>& caches, const Asked& asked, const Take& take) = 0;
  // Whether it has the program of a method, and room for a block that runs it.
  virtual bool runs(const DevicePrograms& programs, const HeadShape& shape) const = 0;
  // Caches take their prompts, each in one call, and stand as they are then.
  virtual std::vector<DevicePolicyRecord> cut(const std::vector<DevicePolicy>& policies) = 0;
  // Rows of caches that it replays from the first token on.
  virtual std::vector<DevicePolicyRecord> replay(const std::vector<DevicePolicy>& policies, const Asked& asked,
                                                 const Take& take) = 0;
};
// For the stream, which outlives it. DeviceError when the device cannot take it.
using OpenHeadDevice = std::function<std::unique_ptr<HeadDevice>(const HeadStream<float>&)>;

}  // namespace kvreplay
