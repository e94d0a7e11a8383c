#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/chain_memory.hpp"
#include "backend/recall_kernel.hpp"
#include "backend/runtime.hpp"
#include "exact/head_stream.hpp"
#include "replay/chain.hpp"

namespace kvreplay {

// Chains in the memory of a device, all of one head, on their way from the first token to the last. Those of
// one method are blocks of one launch.
class DeviceChains {
 public:
  // keys: [blocks, tokens, dim] on the device, sink_logits [heads] or null. recalls: recall() will be asked.
  // The prompt is read where a chain takes it in one call.
  DeviceChains(Runtime& runtime, const HeadStream<float>& stream, const float* keys, const float* sink_logits,
               std::span<const ChainOrder> orders, bool recalls);
  ~DeviceChains();

  // What chains may write for scored rows: parts of theirs from `part` on, in the order of chains.
  struct Target {
    const std::vector<int32_t>* rows;  // ascending tokens
    AttendSums sums;                   // [parts, heads of the stream, rows]
    int32_t width;
    int32_t part;
  };
  // Tokens up to `end` arrive, that one not.
  void advance(int32_t end, const Target& target);
  // Of the rows of the last advance(), of chain i: [heads, rows].
  const std::vector<ChainRow>& cells(size_t i) const;
  // Where its bits are; part.heads and by_head as its results are ranked. Valid until the next advance().
  RecallLane recall(size_t i) const;
  // How each stands.
  std::vector<ChainEnd> ends() const;
  // When everything has arrived: arrays of the host get what is left, and chain i's account is moved out.
  std::vector<ChainRecord> finish();

  // What a row of results takes besides its parts.
  size_t row_bytes() const;

 private:
  struct Group;  // chains of one method
  void open();
  void launch(int32_t first, int32_t end, bool opens);
  void load_queries(int32_t first, int32_t end, bool all);
  void take_notes(int32_t first, int32_t end);
  void list_rows(size_t i, const std::vector<ChainStep>& noted);
  void list_attended(size_t i);

  Runtime& runtime_;
  const HeadStream<float>& stream_;
  std::span<const ChainOrder> orders_;
  bool bits_;  // rows tell which tokens they attend to
  std::unique_ptr<ChainStream> shared_;
  std::vector<std::unique_ptr<ChainMemory>> memory_;
  std::vector<Group> groups_;
  std::vector<ChainBody> bodies_;
  std::vector<ChainRecord> records_;
  int32_t next_ = 0;  // token
};

}  // namespace kvreplay
