#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catalog/method.hpp"

// A cell is the unit of results and of resume: one (trace, prompt, layer, kv head, method instance,
// budget, seed).

namespace kvreplay {

struct Cell {
  std::string key;   // k and 16 hex digits of SHA-256 over everything that determines the numbers
  size_t trace = 0;  // index into the run's traces
  std::string trace_id, model, prompt;
  uint32_t prompt_rank = 0;  // of the prompt id among the trace's sorted ids
  int32_t layer = 0, kv_head = 0;
  const Method* method = nullptr;
  size_t instance = 0;    // of the configuration's methods
  nlohmann::json params;  // resolved, axes included: what results.csv shows
  nlohmann::json given;   // as configured, to be resolved again for a share of the budget
  CommonOptions options;
  std::optional<int32_t> budget;                      // tokens
  double real_budget = 0;                             // before it was rounded down; 0: the same
  std::optional<int32_t> allocated;                   // this head's share, where an allocator decides
  std::optional<uint32_t> seed;                       // randomised instances only
  std::string uniforms;                               // file, or empty
  std::string kept, kept_digest;                      // file of lists that it is given and what they are
  bool lists_say_order = false;                       // they say when they are attended to
  int32_t n_prefill = 0, n_tokens = 0, n_layers = 0;  // n_layers: of the model
  bool prompt_streams = false;                        // convention C5
  HeadShape shape{};                                  // of what decides together (gqa.level)
  double scale = 1;                                   // of the layer's logits

  // The situation that the method is resolved for.
  MethodContext context() const {
    return {allocated.value_or(budget.value_or(0)),
            n_prefill,
            n_tokens,
            shape,
            layer,
            n_layers,
            options.phase,
            scale,
            options.gqa_aggregate,
            0,
            0,
            0,
            real_budget,
            false};
  }
};

// Who shares a cell's budget with it.
SharedOver shared_over_of(const Cell& cell);
// A head whose share follows from the configuration alone.
bool needs_no_other_head(const Cell& cell);
// Does its share depend on heads of all layers?
bool hears_all_layers(const Cell& cell);

// The parameters and axes that are not the method's defaults, as results show them: a file by its digest, so
// that it is the same wherever it lies.
nlohmann::json given_of(const Cell& cell);

// What replaying one cell gives. An optional without a value does not apply (an empty field).
struct CellMeasures {
  int64_t n_queries = 0;
  std::optional<double> rel_err_out_mean, rel_err_out_p50, rel_err_out_p95, rel_err_out_max, rel_err_fro,
      cosine_mean;
  std::optional<double> rel_err_clamped, rmse, rel_err_prefix_mean, rel_err_set_mean, rel_err_numerator_mean,
      rel_err_normaliser_mean;
  std::array<std::optional<double>, 4> rel_err_quarters;  // of the scored rows in their order
  std::optional<double> eps_spectral_mean, eps_spectral_max, eps_frobenius_mean, eps_frobenius_max;
  std::optional<double> eps_spectral_p99, eps_frobenius_p99, eps_additive_mean;
  std::optional<double> partition_err_mean, partition_err_max, kept_mass_mean, mass_recall, index_recall;
  std::optional<double> log_partition_err_mean, kept_mass_min, mass_recall_min, missed_gap_mean,
      mass_bound_mean, density_mean, needle_mass;
  int64_t peak_kept_tokens = 0, peak_attended_tokens = 0;
  double mean_kept_tokens = 0, mean_attended_tokens = 0;
  int64_t peak_bytes = 0, aux_bytes = 0, total_bytes = 0, full_bytes = 0, n_evictions = 0, n_quantised = 0,
          rows_skipped = 0;
  int64_t final_bytes = 0, key_floats = 0, value_floats = 0, weight_floats = 0, score_bytes = 0,
          sketch_bytes = 0, index_bytes = 0;
  double mean_bytes = 0, equivalent_tokens = 0;
  std::optional<double> read_bytes_per_step, median_evicted_age_tokens;
  std::optional<double> bound_log10_tokens, bound_holds, bound_epsilon, bound_slack, bound_probability;
  std::optional<bool> bound_capped;
  std::map<std::string, double> extras;  // what the method reports of itself
  double select_s = 0, attend_s = 0;     // of this run; every comparison leaves them out
};

// Resident token lists: list i = flat[off[i] .. off[i+1]).
struct TokenLists {
  std::vector<int32_t> flat;
  std::vector<int64_t> off{0};
};

struct CellResult {
  CellMeasures measures;
  bool ok = true;
  std::string error;  // why not
  bool lost = false;  // its head could not be read, or had no share of a budget
  // Only what the run was asked to save; [heads, rows(, v_dim)], row-major.
  std::vector<int32_t> rows;  // token index of each scored row
  int32_t heads = 0, v_dim = 0;
  bool double_precision = false, oneshot = false;
  bool by_cores = true;  // false: a device computed the rows
  std::vector<double> rel_err, partition_err, out;
  TokenLists kept, attended;
  std::vector<double> num, den;  // of the kept lists, empty when all are 1
  // A step attends to what stands after it, rather than to what stood before and its token; lists and weights
  // do not say all of what it attends to.
  bool attends = false, partial = false;
};

// What a run keeps of a cell besides its measures.
struct SaveOptions {
  bool curves = false, kept = false, outputs = false;
};

}  // namespace kvreplay
