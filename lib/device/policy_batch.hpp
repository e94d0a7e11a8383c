#pragma once
#include <memory>
#include <span>
#include <vector>

#include "caches/device_policy.hpp"
#include "device/kernels/recall_kernel.hpp"
#include "device/policy_memory.hpp"
#include "device/runtime.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Policies and their caches in the memory of a device, all of one head, replayed from the first token to the last.
// Policies of one method are blocks of one launch.
class PolicyBatch {
 public:
  // keys: [blocks, tokens, dim] on the device, sink_logits [heads] or null. recalls: recall() will be called. The
  // prompt is read if a policy takes it in one call. piece: most tokens of a launch.
  PolicyBatch(Runtime& runtime, const HeadStream<float>& stream, const float* keys, const float* sink_logits,
              std::span<const DevicePolicy> policies, bool recalls, int32_t piece);
  ~PolicyBatch();

  // Output for scored rows: parts from `part` on and results, both in the order of the policies.
  struct Target {
    const std::vector<int32_t>* rows;  // ascending tokens
    AttendSums sums;                   // [parts, heads of the stream, rows]
    int32_t width;
    int32_t part;
    RowResult* results;  // for each policy, [heads, rows]
  };
  // Replays the tokens up to `end`, not including it.
  void advance(int32_t end, const Target& target);
  // Location of the bits of policy i; part.heads and by_head say how its results are ranked. Valid until the next
  // advance().
  RecallCache recall(size_t i) const;
  // State of each policy.
  std::vector<PolicyEnd> ends() const;
  // Call when all tokens have arrived: copies the remaining arrays to the host and moves out each policy's record.
  std::vector<DevicePolicyRecord> finish();

  // Memory of a row of results, without its parts.
  size_t row_bytes() const;

 private:
  struct Group;  // policies of one method
  void open();
  void launch(int32_t first, int32_t end, bool opens);
  void load_queries(int32_t first, int32_t end, bool all);
  void take_notes(int32_t first, int32_t end);
  void list_rows(size_t i, const std::vector<StepRecord>& noted);
  void list_attended(size_t i);

  Runtime& runtime_;
  const HeadStream<float>& stream_;
  std::span<const DevicePolicy> policies_;
  int32_t piece_;
  bool bits_;  // rows record which tokens they attend to
  std::unique_ptr<PolicyStream> shared_;
  std::vector<std::unique_ptr<PolicyMemory>> memory_;
  std::vector<Group> groups_;
  std::vector<PolicyTask> tasks_;
  std::vector<DevicePolicyRecord> records_;
  int32_t next_ = 0;  // next token
};

}  // namespace kvreplay
