#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/policy.hpp"
#include "exact/head_stream.hpp"
#include "measures/device_row.hpp"
#include "replay/chain.hpp"

// A device that does the arithmetic of a head: sums over the prompt, who leaves a cache that follows a score
// rule, and the rows of caches that hold tokens of the trace as they stand. Decisions and accounts stay with
// the lanes, so that what a cell is does not depend on where it was computed. Any other cache it replays by
// the text of the policy. The implementation stands in backend/.

namespace kvreplay {

// A cache over all rows after the prompt: which tokens it holds, and until when.
struct HeldTokens {
  struct Entry {
    int32_t token, until;  // rows of tokens token..until-1 attend to it
    float num = 1, den = 1;
  };
  std::vector<Entry> entries;  // ascending
  bool later = false;          // and every token after the prompt, from its own row on, at weight 1
  bool weighted = false;       // some weight is not 1
  bool prefix = false;         // compare what the prompt's tokens alone give (only with `later`)
  bool set = false;            // compare what the same tokens give at weight 1
  size_t family = 0;  // caches of one family are of the same heads, and likely to hold the same tokens
  int32_t first_head = 0, heads = 0;
  bool by_head = false;  // each query head is ranked by its own probabilities
};

struct DeviceRecall {
  float top_mass, index_recall;  // as RowMeasure
};

// Some of the rows that were asked for, [first, first + count), of all caches, or of those from first_cache
// on.
struct DeviceRows {
  size_t first, count;
  size_t first_cache = 0;
  std::vector<float> l2;               // [heads of the stream, count]
  std::vector<double> log_normaliser;  // as ScoredRow
  struct OfCache {
    std::vector<DeviceRow> rows;        // [heads, count]
    std::vector<DeviceRecall> recalls;  // [heads or 1, count]; empty: not asked for
    std::vector<float> out;             // [heads, count, v_dim]; empty: not asked for
    // Of a cache that the device has replayed: [heads, count], and how it stands.
    std::vector<ChainRow> about;
    ChainEnd end;
  };
  std::vector<OfCache> caches;
};

// Tokens that a cache with a score rule holds after its prompt, ascending, and their scores.
struct ScoredCache {
  ScoreRule rule;
  double share;  // of a head's probability in the score
  std::vector<int32_t> tokens;
  std::vector<double> scores;
  int32_t first_head, heads;
};
struct Departures {
  std::vector<int32_t> victims;  // of each token after the prompt; -1: nobody leaves
  std::string failure;           // or ""
};

class HeadDevice {
 public:
  virtual ~HeadDevice() = default;
  // As prompt_pass() and future_sums() of exact/tile.hpp, without rows.
  virtual std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) = 0;
  virtual std::vector<double> future_sums(const std::vector<int32_t>& rows) = 0;
  // Whether it has room for a cache that follows a score rule.
  virtual bool fits(const ScoreRule& rule, int32_t heads) const = 0;
  virtual std::vector<Departures> departures(const std::vector<ScoredCache>& caches) = 0;
  struct Asked {
    std::vector<int32_t> rows;  // tokens after the prompt, ascending; all have queries
    bool recalls = false, outputs = false;
  };
  // take() is given the rows in order, in portions that fit the device.
  virtual void evaluate(const std::vector<HeldTokens>& caches, const Asked& asked,
                        const std::function<void(const DeviceRows&)>& take) = 0;
  // Whether it has the program of a method, and room for a block that runs it.
  virtual bool replays(const ChainPrograms& programs, const HeadShape& shape) const = 0;
  // Caches take their prompts, each in one call, and stand as they are then.
  virtual std::vector<ChainRecord> cut(const std::vector<ChainOrder>& orders) = 0;
  // The same rows of caches that it replays from the first token on.
  virtual std::vector<ChainRecord> replay(const std::vector<ChainOrder>& orders, const Asked& asked,
                                          const std::function<void(const DeviceRows&)>& take) = 0;
};
// For the stream, which outlives it. DeviceError when the device cannot take it.
using OpenHeadDevice = std::function<std::unique_ptr<HeadDevice>(const HeadStream<float>&)>;

}  // namespace kvreplay
