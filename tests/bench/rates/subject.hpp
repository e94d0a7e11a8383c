#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exact/head_stream.hpp"
#include "replay/runner.hpp"
#include "tests/bench/rates/rounds.hpp"

namespace kvreplay::app {

// The subject of a bench: one kv head in memory, and cells to replay on it.
struct Subject {
  HeadStream<float> stream;
  std::vector<Cell> cells;
  RunOptions options;
  std::vector<std::string> methods;  // indexed by Variant::instance

  // The cells of one method or all methods, at one budget or all budgets.
  std::vector<Cell> chosen(std::optional<size_t> method, std::optional<int32_t> budget) const;
  std::optional<int32_t> largest_budget(size_t method) const;
  bool streams(size_t method) const;  // the cache obeys the budget after every token
};

struct SubjectRequest {
  std::string trace;                  // path of a file
  std::vector<std::string> settings;  // KEY=VALUE of the configuration
};
// The first kv head that the settings select. Throws ConfigError and TraceError as `run` does.
Subject load_subject(const SubjectRequest& request);

// A synthetic group of query heads for load_subject, in a folder that is removed with the object.
class SyntheticTrace {
 public:
  SyntheticTrace(int64_t tokens, int32_t group, int32_t dim, int32_t v_dim);
  ~SyntheticTrace();
  SyntheticTrace(const SyntheticTrace&) = delete;
  SyntheticTrace& operator=(const SyntheticTrace&) = delete;
  std::string file() const { return folder_ + "/synthetic.h5"; }

 private:
  std::string folder_;
};

// Replays cells from the first token to the last, the exact pass included. Throws if a cell fails, or if the device in
// the options leaves it to the CPU.
void replay_cells(const Subject& subject, const std::vector<Cell>& cells, const RunOptions& options);
// Exact attention of every decode row, as a replay computes it tile after tile.
void exact_outputs(const Subject& subject);
// The softmax of every prompt row, summed over columns.
void prompt_statistics(const Subject& subject);

// Work of all query heads. In order: operations for the causal logits of rows after the prompt and for their use,
// causal logits of the prompt's rows, and tokens times heads.
double exact_operations(const HeadStream<float>& stream);
double prompt_logits(const HeadStream<float>& stream);
double tokens_and_heads(const HeadStream<float>& stream);

}  // namespace kvreplay::app
