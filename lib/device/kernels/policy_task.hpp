#pragma once
#include "caches/step_record.hpp"
#include "core/step.hpp"
#include "device/kernels/attend_kernel.hpp"
#include "device/kernels/block_team.hpp"
#include "device/kernels/row_products.hpp"
#include "formats/row_coder.hpp"
#include "measures/row_result.hpp"

// One cache that a block replays with the code of its policy (policy_kernel.hpp): the arrays, their locations, and the
// work to do.

namespace kvreplay {

// Threads of the block.
constexpr int kPolicyThreads = 256;

// Input arrays in device memory. Heads are the cache's own, starting at its first.
struct PolicyInput {
  const float* queries;           // [heads, *, dim]; queries of the prompt, if a policy reads it, start at token 0
  int64_t query_head;             // numbers from one head to the next
  const int32_t* query_row;       // [tokens] row of a token's query, or null: the token itself
  const int32_t* scored;          // [tokens] the token's row of the results; -1: not scored
  const float* sink_logits;       // [heads] or null
  const double* column_sums;      // [heads, prompt] or null, further fields as in Prompt::View
  const double* column_max_sums;  // [prompt]
  const double* future_sums;      // [heads, tokens]
  QueryStatistics known;          // for the cache's heads
  const int32_t* positions;       // [tokens]
  const uint8_t* classes;         // [tokens]
  RopeView rope;
  LogitRule<float> rule;     // factor 1
  Rotation<float> rotation;  // active only if positions are re-assigned
  int32_t tokens, prompt;
};

// Working memory.
struct PolicyScratch {
  int32_t rows;             // most rows that the cache holds; at least the prompt if its rows are observed
  StepScratch<float> step;  // by_head: also for a prompt row that is observed
  float* products;          // [heads * n, rows], n = PolicyRoom::prompt_rows() if prompt rows are observed, else 1
  float* weights;           // [parts, heads, width of a row of weights], parts as in PolicyOutput
  int32_t weights_pitch;    // that width: rows, and at least tokens if `of_token` is set
  float* recorded;          // [heads, rows] if positions are re-assigned or rows are written, else null
  double* row;              // [RowCoder::scratch_doubles()] if a row format codes, else null
  float* of_token;          // [tokens] if several rows may hold a token (Layout::split), else null
};

// Output for rows of results. Parts are as AttendKernel leaves them, without a sink logit and without squares. Each row
// is relative to its own largest logit.
struct PolicyOutput {
  AttendSums sums;     // part 0, the cache's first head: [*, rows]; out [*, rows, width]
  int64_t part_cells;  // from one part to the next
  // Part 0 is the cache. With `prefix` part 0 holds the prompt's tokens and part 1 the later ones. With `set` the last
  // part is the attended tokens as recorded, at weight 1; it is empty if that is the same.
  bool prefix, set;
  RowResult* results;  // [heads, rows]: only the values of a row that the policy's code computes
  // [heads or 1, rows, words] the tokens that a row attends to, one bit each; or null.
  uint32_t* attended;
  int32_t words;
  bool bits_by_head;
  int32_t rows, width;

  KVR_FN int32_t parts() const { return 1 + (prefix ? 1 : 0) + (set ? 1 : 0); }
};

// Records of the steps of a launch.
struct PolicyNotes {
  int32_t first;      // token of the first step
  StepRecord* steps;  // [steps]
  // [steps, capacity] rows of S_t and their weights, or null.
  int32_t* tokens;
  float *num, *den;
};

// The whole task except the policy. Pointers are the device's.
struct PolicyTask {
  CacheStorage<float> storage;
  std::span<double> state;
  PolicyInput input;
  PolicyScratch scratch;
  PolicyOutput output;
  PolicyNotes notes;
  StepRules rules;
  RowCoder coder;  // only if scratch has a row for it
  PolicyEnd* end;
  int32_t first, last;  // tokens first .. last - 1 arrive in this launch, one by one
  int32_t rows_from;    // first prompt row that the policy observes; negative: none
  int64_t max_rows;     // bound after a step; negative: no bound is promised
  bool opens;           // no token has arrived: memory is cleared first
  bool streams_prompt;  // the prompt arrives token by token; else the launch that opens takes it in one call
  bool observes;        // the policy observes every step
  bool chooses;         // a step reads only some rows of the cache
  bool reweights;       // option reweight: uniform
  bool split;           // Layout::split
};

// Offsets in a block's shared memory, in bytes.
struct PolicyRoom {
  size_t exchange = 0, queries = 0, partial = 0, bytes = 0;
  KVR_FN static PolicyRoom of(const HeadShape& shape, int threads) {
    PolicyRoom room;
    room.exchange = room.take(team_exchange_bytes(threads));
    room.queries = room.take(size_t(shape.heads * prompt_rows(shape.heads)) * size_t(shape.dim) * sizeof(float));
    room.partial = room.take(RowSums::scratch_floats(threads) * sizeof(float));
    return room;
  }
  // Rows of the prompt that are multiplied with its keys together.
  KVR_FN static constexpr int32_t prompt_rows(int32_t heads) {
    constexpr int32_t kQueries = 32, kMost = 8;
    return heads >= kQueries ? 1 : kQueries / heads < kMost ? kQueries / heads : kMost;
  }

 private:
  KVR_FN size_t take(size_t n) {
    const size_t at = bytes;
    bytes += (n + 15) / 16 * 16;
    return at;
  }
};

}  // namespace kvreplay
