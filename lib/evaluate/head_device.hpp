#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "caches/residency.hpp"
#include "core/score_rule.hpp"
#include "exact/head_stream.hpp"
#include "measures/row_result.hpp"

// A device that does the arithmetic of a head: sums over the prompt, decisions by score rules, and rows of caches that
// hold unmodified tokens of the trace, from their residency. CacheReplay keeps the account, so that results do not
// depend on where they were computed. The implementation is in device/.

namespace kvreplay {

// A cache over all rows after the prompt.
struct DeviceCache {
  Residency held;
  int32_t first_head = 0, heads = 0;
  bool by_head = false;  // each query head has its own ranking
  bool prefix = false;   // also compute outputs over the prompt's tokens alone; only for caches that were cut once
  bool set = false;      // also compute outputs of the same tokens at weight 1; if some weight differs from 1
  size_t family = 0;     // caches of one family have the same heads and probably hold the same tokens
};

// A cache that follows a score rule, when its first row attends.
struct DeviceDecision {
  ScoreRule rule;
  int32_t first_head = 0, heads = 0;
  int32_t begin = 0;            // its first row's token
  std::vector<int32_t> tokens;  // held before it
  std::vector<double> scores;   // their scores
};

struct Decided {
  std::vector<int32_t> until;  // [tokens] the first row that does not see a token, or Residency::kStays
  int32_t failed = -1;         // token of the first row without a token to attend to; nothing is decided from it on
};

// The requested rows [first, first + count), for all caches. Valid during the call of Take.
struct DeviceRows {
  size_t first = 0, count = 0;
  std::vector<float> l2;               // [heads of the stream, count], as in ExactRow
  std::vector<double> log_normaliser;  // likewise
  struct OfCache {
    std::vector<RowResult> of;  // [heads, count]
    std::vector<float> out;     // [heads, count, v_dim]; empty: not requested
    // Projections on the stream's gradient, [heads, count, samples]; 0 for rows without a gradient, empty without any.
    std::vector<float> projections;
  };
  // Copies a cache's results from the device. Vectors of the right size keep their memory.
  std::function<void(size_t cache, OfCache& into)> fetch;
};

class HeadDevice {
 public:
  virtual ~HeadDevice() = default;
  // Same as prompt_pass() and future_sums() in exact/tile.hpp, but without on_row.
  virtual std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) = 0;
  virtual std::vector<double> future_sums(const std::vector<int32_t>& rows) = 0;
  struct Asked {
    std::vector<int32_t> rows;  // tokens after the prompt, ascending; all have queries
    bool recalls = false, outputs = false;
  };
  using Take = std::function<void(const DeviceRows&)>;
  // Passes the rows to take() in order, in portions that fit the device.
  virtual void evaluate(const std::vector<DeviceCache>& caches, const Asked& asked, const Take& take) = 0;
  // Every token from the first `begin` on must have its queries.
  virtual std::vector<Decided> decide(const std::vector<DeviceDecision>& caches) = 0;
};
// Opens a device for the stream, which must live as long as the device; null if the device has no kernels for its
// heads. Throws DeviceError if its memory is short.
using OpenHeadDevice = std::function<std::unique_ptr<HeadDevice>(const HeadStream<float>&)>;

}  // namespace kvreplay
