#pragma once
#include "caches/step_record.hpp"
#include "core/step.hpp"
#include "device/kernels/attend_kernel.hpp"
#include "device/kernels/block_team.hpp"
#include "device/kernels/row_products.hpp"
#include "formats/row_coder.hpp"
#include "measures/row_result.hpp"

// One cache that a block replays by the text of its policy (policy_kernel.hpp): arrays, where they are, and what is to
// be done.

namespace kvreplay {

// Threads of the block.
constexpr int kPolicyThreads = 256;

// What it reads, in device memory. Heads are the cache's own, from its first on.
struct PolicyInput {
  const float* queries;           // [heads, *, dim]; those of the prompt, where a policy reads it, from token 0
  int64_t query_head;             // numbers from one head to the next
  const int32_t* query_row;       // [tokens] row of a token's query, or null: the token itself
  const int32_t* scored;          // [tokens] the token's row of the results; -1: nobody looks
  const float* sink_logits;       // [heads] or null
  const double* column_sums;      // [heads, prompt] or null, and so on as Prompt::View
  const double* column_max_sums;  // [prompt]
  const double* future_sums;      // [heads, tokens]
  QueryStatistics known;          // of the cache's heads
  const int32_t* positions;       // [tokens]
  const uint8_t* classes;         // [tokens]
  RopeView rope;
  LogitRule<float> rule;     // factor 1
  Rotation<float> rotation;  // active only where positions are re-assigned
  int32_t tokens, prompt;
};

// What it works on.
struct PolicyScratch {
  int32_t rows;             // most that the cache holds; no less than the prompt where its rows are observed
  StepScratch<float> step;  // by_head: also of a prompt row that is observed
  float* products;          // [heads * n, rows], n = PolicyRoom::prompt_rows() where prompt rows are observed, else 1
  float* weights;           // [parts, heads, width of a row of weights], as PolicyOutput's parts
  int32_t weights_pitch;    // that width: rows, and no less than tokens where `of_token` is there
  float* recorded;          // [heads, rows] where positions are re-assigned or rows are written, else null
  double* row;              // [RowCoder::scratch_doubles()] where a row format codes, else null
  float* of_token;          // [tokens] where several rows may hold a token (Layout::split), else null
};

// What it finds, for rows of results. Parts are as AttendKernel leaves them, without a sink logit and without
// squares; rows against the largest logit of their own.
struct PolicyOutput {
  AttendSums sums;     // of part 0 and the cache's first head: [*, rows]; out [*, rows, width]
  int64_t part_cells;  // from one part to the next
  // Part 0 is the cache; with `prefix` what it holds of the prompt, and part 1 what came later. The last,
  // with `set`: what the attended tokens give as they were recorded, at weight 1; empty where that is the
  // same.
  bool prefix, set;
  RowResult* results;  // [heads, rows]: what only the policy's text knows of a row
  // [heads or 1, rows, words] the tokens that a row attends to, a bit each; or null.
  uint32_t* attended;
  int32_t words;
  bool bits_by_head;
  int32_t rows, width;

  KVR_FN int32_t parts() const { return 1 + (prefix ? 1 : 0) + (set ? 1 : 0); }
};

// What it notes of the steps of a launch.
struct PolicyNotes {
  int32_t first;      // token of the first of them
  StepRecord* steps;  // [steps]
  // [steps, capacity] rows of S_t and their weights, or null.
  int32_t* tokens;
  float *num, *den;
};

// All of it but the policy, whose pointers are the device's.
struct PolicyTask {
  CacheStorage<float> storage;
  std::span<double> state;
  PolicyInput input;
  PolicyScratch scratch;
  PolicyOutput output;
  PolicyNotes notes;
  StepRules rules;
  RowCoder coder;  // where scratch has a row for it
  PolicyEnd* end;
  int32_t first, last;  // tokens first .. last - 1 arrive in this launch, one by one
  int32_t rows_from;    // first prompt row that the policy observes; negative: none
  int64_t max_rows;     // after a step; negative: nobody promises a bound
  bool opens;           // nothing has arrived: memory is cleared, whatever stood there
  bool streams_prompt;  // the prompt comes token by token; else the launch that opens takes it in one call
  bool observes;        // the policy observes every step
  bool reweights;       // option reweight: uniform
  bool split;           // Layout::split
};

// Where things are in a block's shared memory, in bytes.
struct PolicyRoom {
  size_t exchange = 0, queries = 0, partial = 0, bytes = 0;
  KVR_FN static PolicyRoom of(const HeadShape& shape, int threads) {
    PolicyRoom room;
    room.exchange = room.take(team_exchange_bytes(threads));
    room.queries = room.take(size_t(shape.heads * prompt_rows(shape.heads)) * size_t(shape.dim) * sizeof(float));
    room.partial = room.take(RowSums::scratch_floats(threads) * sizeof(float));
    return room;
  }
  // Rows of the prompt that meet its keys together.
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
