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

// Policies and their caches in the memory of a device, all of one head, on their way from the first token to the last.
// Those of one method are blocks of one launch.
class PolicyBatch {
 public:
  // keys: [blocks, tokens, dim] on the device, sink_logits [heads] or null. recalls: recall() will be asked.
  // The prompt is read where a policy takes it in one call. piece: tokens of a launch at most.
  PolicyBatch(Runtime& runtime, const HeadStream<float>& stream, const float* keys, const float* sink_logits,
              std::span<const DevicePolicy> policies, bool recalls, int32_t piece);
  ~PolicyBatch();

  // What they write for scored rows: parts from `part` on and results, both in the order of the policies.
  struct Target {
    const std::vector<int32_t>* rows;  // ascending tokens
    AttendSums sums;                   // [parts, heads of the stream, rows]
    int32_t width;
    int32_t part;
    RowResult* results;  // of each policy, [heads, rows]
  };
  // Tokens up to `end` arrive, that one not.
  void advance(int32_t end, const Target& target);
  // Where the bits of policy i are; part.heads and by_head as its results are ranked. Valid until the next advance().
  RecallCache recall(size_t i) const;
  // How each stands.
  std::vector<PolicyEnd> ends() const;
  // When everything has arrived: arrays of the host get what is left, and the account of each is moved out.
  std::vector<DevicePolicyRecord> finish();

  // What a row of results takes besides its parts.
  size_t row_bytes() const;

 private:
  struct Group;  // of one method
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
  bool bits_;  // rows tell which tokens they attend to
  std::unique_ptr<PolicyStream> shared_;
  std::vector<std::unique_ptr<PolicyMemory>> memory_;
  std::vector<Group> groups_;
  std::vector<PolicyTask> tasks_;
  std::vector<DevicePolicyRecord> records_;
  int32_t next_ = 0;  // token
};

}  // namespace kvreplay
