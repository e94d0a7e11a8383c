#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// All metrics of a cell: name, unit, meaning, the work beyond what every cell costs, and how methods are compared by
// it. The table drives results.csv, `metrics:`, `list metrics`, the documentation, and what the analysis compares
// methods by. To add a metric, append a line at the end, so that columns keep their positions, and assign its value in
// a measure (measures/*.cpp) or in the accounting of sizes (caches/cell_setup.cpp). Its Work is whatever that
// assignment reads.

namespace kvreplay {

// Work that only some metrics need. Work that no requested metric needs is not done, and its metrics have no value.
enum class Work : uint32_t {
  none = 0,
  spectral = 1 << 0,       // ||V||_op of every scored row, and bounds that use it
  recalls = 1 << 1,        // sorting every scored row
  set_error = 1 << 2,      // one product per tile, for methods that do more than select tokens
  prefix_error = 1 << 3,   // one product over the prompt's rows, for one-shot methods
  bounds = 1 << 4,         // counting the rows within a theorem's bound
  quantiles = 1 << 5,      // storing the error of every row, and a partial sort per cell
  details = 1 << 6,        // parts of an output's error: cosine, clamped, numerator and normaliser
  ages = 1 << 7,           // one number per evicted token
  masses = 1 << 8,         // comparing normaliser and kept tokens with the exact row
  curves = 1 << 9,         // storing the error of every row, to be saved
  projections = 1 << 10,   // projecting the error of every row on the recorded gradient
  reads = 1 << 11,         // uniting what the caches of a group read in each row
  after_prompt = 1 << 12,  // listing the tokens that are held at the end of the prompt
};
constexpr Work operator|(Work a, Work b) { return Work(uint32_t(a) | uint32_t(b)); }

// A set of Work.
struct Wanted {
  Work work = Work((1 << 13) - 1);  // everything
  bool has(Work some) const { return (uint32_t(work) & uint32_t(some)) != 0; }
  void add(Work some) { work = work | some; }
  void drop(Work some) { work = Work(uint32_t(work) & ~uint32_t(some)); }
};

// Whether a method is better with less or with more of a metric; unsaid: no method is better or worse by it.
enum class Better : uint8_t { unsaid, less, more };
const char* word(Better better);  // "less", "more" or ""

// How methods are compared by a metric. A metric with more is at most 1, and methods are compared by one minus it.
struct Comparison {
  Better better = Better::unsaid;
  const char* words = "";  // what methods are compared by: the metric, or one minus it; "": its name
};
constexpr Comparison less(const char* words = "") { return {Better::less, words}; }
constexpr Comparison more(const char* one_minus_it) { return {Better::more, one_minus_it}; }

struct MetricInfo {
  const char* name;
  const char* unit;  // "1" = a pure number
  const char* help;
  Work work;
  Comparison comparison;

  constexpr MetricInfo(const char* its_name, const char* its_unit, const char* its_help, Work its_work = Work::none,
                       Comparison compared = {})
      : name(its_name), unit(its_unit), help(its_help), work(its_work), comparison(compared) {}
  constexpr MetricInfo(const char* its_name, const char* its_unit, const char* its_help, Comparison compared)
      : MetricInfo(its_name, its_unit, its_help, Work::none, compared) {}
};

constexpr MetricInfo kMetrics[] = {
    {"rel_err_out_mean", "1", "|z - o| / |o|, mean over heads and scored rows", less("mean relative error")},
    {"rel_err_out_p50", "1", "|z - o| / |o|, median", Work::quantiles, less("median relative error")},
    {"rel_err_out_p95", "1", "|z - o| / |o|, 95 % quantile", Work::quantiles,
     less("95 % quantile of the relative error")},
    {"rel_err_out_max", "1", "|z - o| / |o|, maximum", less("largest relative error")},
    {"rel_err_fro", "1", "sqrt(sum |z - o|^2 / sum |o|^2) over the last 256 scored rows",
     less("ratio of norms, last rows")},
    {"cosine_mean", "1", "cosine of z and o, mean", Work::details, more("cosine distance")},
    {"eps_spectral_mean", "1", "|z - o| / (|x| |V|_op), mean", Work::spectral, less("ε spectral")},
    {"eps_spectral_max", "1", "|z - o| / (|x| |V|_op), maximum", Work::spectral, less()},
    {"eps_frobenius_mean", "1", "|z - o| / (|x| |V|_F), mean", less()},
    {"eps_frobenius_max", "1", "|z - o| / (|x| |V|_F), maximum", less()},
    {"partition_err_mean", "1", "|tau / Z - 1|, mean", Work::masses, less("partition error")},
    {"partition_err_max", "1", "|tau / Z - 1|, maximum", Work::masses, less("largest partition error")},
    {"kept_mass_mean", "1", "exact probability of the attended tokens, mean", Work::masses, more("missing mass")},
    {"mass_recall", "1", "kept mass over the mass of equally many best tokens, mean", Work::recalls,
     more("missed mass of the best tokens")},
    {"index_recall", "1", "share of the attended tokens that are among equally many best, mean", Work::recalls,
     more("missed share of the best tokens")},
    {"peak_kept_tokens", "tokens", "tokens in the cache after a step, peak"},
    {"mean_kept_tokens", "tokens", "tokens in the cache after a step, mean"},
    {"peak_attended_tokens", "tokens", "tokens attended in a step, peak"},
    {"peak_bytes", "bytes", "keys, values and weights at their stored width, peak"},
    {"aux_bytes", "bytes", "scores, sketches and indices of the method"},
    {"total_bytes", "bytes", "peak_bytes + aux_bytes"},
    {"full_bytes", "bytes", "the exact cache at the last token"},
    {"n_evictions", "tokens", "evicted tokens, including the prompt's cut"},
    {"bound_log10_tokens", "1", "log10 of the stored rows that the method's theorem requires"},
    {"bound_holds", "1", "share of (head, row) pairs whose error is within the theorem's bound",
     Work::spectral | Work::bounds, more("share of rows beyond the bound")},
    {"rows_skipped", "pairs", "(head, row) pairs whose exact output is zero, left out of every ratio"},
    {"mean_attended_tokens", "tokens", "tokens attended in a step, mean over heads and scored rows"},
    {"n_quantised", "rows", "rows that the row format rewrote"},
    {"n_recoded", "rows", "rows that a row format by age coded again"},
    {"rel_err_clamped", "1",
     "|z - o| / |max(o, 1e-8)|, mean: divides by the positive part of o; only for comparison with BalanceKV's "
     "published bars",
     Work::details, less()},
    {"rmse", "value", "sqrt(mean of |z - o|^2 / dv)", less("root mean square error")},
    {"rel_err_quarter_1", "1", "rel_err_out_mean over the first quarter of the scored rows",
     less("error of the first quarter of rows")},
    {"rel_err_quarter_2", "1", "rel_err_out_mean over the second quarter", less("error of the second quarter of rows")},
    {"rel_err_quarter_3", "1", "rel_err_out_mean over the third quarter", less("error of the third quarter of rows")},
    {"rel_err_quarter_4", "1", "rel_err_out_mean over the last quarter", less("error of the last quarter of rows")},
    {"rel_err_prefix_mean", "1", "rel_err_out_mean with tokens after the prompt removed from z and o; one-shot",
     Work::prefix_error, less("error on the prompt’s tokens alone")},
    {"rel_err_set_mean", "1", "error of exact attention over the attended tokens: the cost of their selection alone",
     Work::set_error, less("error of the kept set alone")},
    {"rel_err_numerator_mean", "1", "|N - o| / (tau' |o|), N = z tau', tau' = tau / Z: the values' part", Work::details,
     less("error of the numerator")},
    {"rel_err_normaliser_mean", "1", "|1 / tau' - 1|: the normaliser's part", Work::details,
     less("error of the normaliser")},
    {"eps_spectral_p99", "1", "|z - o| / (|x| |V|_op), 99 % quantile", Work::spectral | Work::quantiles, less()},
    {"eps_frobenius_p99", "1", "|z - o| / (|x| |V|_F), 99 % quantile", Work::quantiles, less()},
    {"eps_additive_mean", "1",
     "numerator error / (j exp(-r^2 / sqrt(d)) max |v|), unnormalised, mean; methods with such a theorem", less()},
    {"bound_epsilon", "1", "epsilon for which the method's theorem was evaluated", Work::spectral | Work::bounds},
    {"bound_slack", "1", "bound_epsilon / the measured mean in the theorem's form", Work::spectral | Work::bounds},
    {"bound_probability", "1", "probability with which the theorem holds", Work::spectral | Work::bounds},
    {"bound_capped", "1", "1 if sizes were smaller than the theorem requires, else 0", Work::spectral | Work::bounds},
    {"log_partition_err_mean", "1", "|ln tau - ln Z|, mean", Work::masses, less("partition error, logarithm")},
    {"kept_mass_min", "1", "exact probability of the attended tokens, minimum", Work::masses,
     more("largest missing mass")},
    {"mass_recall_min", "1", "mass_recall, minimum over rows", Work::recalls,
     more("largest missed mass of the best tokens")},
    {"missed_gap_mean", "1", "|o_missed - z| / |o| where more than 1e-3 of the mass is missed; renormalised subsets",
     Work::masses, less()},
    {"mass_bound_mean", "1", "2 missed mass max |v| / |o|, bounds the error of renormalised subsets; mean",
     Work::masses, less()},
    {"density_mean", "1", "attended tokens / (t + 1), mean", Work::masses},
    {"missed_mass_bound_mean", "1", "the method's bound of the missed mass, mean; methods with such a bound"},
    {"needle_mass", "1", "attended share of the exact mass on replay.needles, mean", Work::masses,
     more("missing mass on the needles")},
    {"mean_bytes", "bytes", "cache, scores, sketches and indices after a step, mean"},
    {"final_bytes", "bytes", "cache, scores, sketches and indices after the last step"},
    {"equivalent_tokens", "tokens", "stored key and value numbers / (d + dv), peak"},
    {"key_floats", "numbers", "stored numbers of keys, peak"},
    {"value_floats", "numbers", "stored numbers of values, peak"},
    {"weight_floats", "numbers", "weights, counts, masses, peak"},
    {"score_bytes", "bytes", "the scores' part of aux_bytes"},
    {"sketch_bytes", "bytes", "the sketches' part of aux_bytes"},
    {"index_bytes", "bytes", "the positions' part of aux_bytes"},
    {"read_bytes_per_step", "bytes", "keys, values, weights and sketches that attention reads, mean"},
    {"median_evicted_age_tokens", "tokens", "age t - i of a token i when it is evicted, median", Work::ages},
    {"kl_head_mean", "nats",
     "predicted loss from this head's errors alone: 1/2 mean over samples of <g, z - o>^2, g the recorded gradient; "
     "summed over the group, per predicted token",
     Work::projections, less("nats of single heads")},
    {"prompt_bytes", "bytes", "cache, scores, sketches and indices after the prompt's cut, before the next token"},
    {"prompt_full_bytes", "bytes", "the exact cache of the prompt"},
    {"mean_full_bytes", "bytes", "the exact cache after a step, mean over the steps of mean_bytes"},
    {"cosine_distance_sq", "1", "(1 - cosine of z and o)^2, mean", Work::details, less("squared cosine distance")},
    {"resident_pages", "pages", "pages that hold a token after a step, mean; with the option page"},
    {"resident_pages_peak", "pages", "pages that hold a token after a step, peak"},
    {"reclaimed_bytes", "bytes", "rows of the pages that eviction has freed, mean over steps"},
    {"fragmentation", "1", "slots without a token in the resident pages, share, mean over steps"},
    {"n_segments", "segments", "outputs or branches that were scored; with replay.turns or replay.branches"},
    {"worst_segment", "1", "index of the segment with the largest mean relative error; segments.csv lists all"},
    {"worst_rel_err_out_mean", "1", "rel_err_out_mean over the rows of the worst segment",
     less("error of the worst segment")},
    {"first_rel_err_out_mean", "1", "rel_err_out_mean over the rows of the first segment",
     less("error of the first segment")},
    {"kv_read_bytes_per_step", "bytes", "keys and values of the tokens that some head of the group reads, mean",
     Work::reads},
    {"index_read_bytes_per_step", "bytes", "a query-time method's index, as far as a step reads it, mean", Work::reads},
    {"index_stored_bytes", "bytes", "a query-time method's index after the last step"},
    {"overlap_mean", "1", "tokens that a row and the row before it attend to, over those that one of them does, mean",
     Work::reads},
    {"recall_at_k", "1",
     "share of the k tokens of the largest exact probability that are attended, mean; replay.recall_k", Work::recalls,
     more("missed share of the best k tokens")},
    {"mass_recall_at_k", "1", "exact probability of these over that of all k, mean", Work::recalls,
     more("missed mass of the best k tokens")},
    {"tier_hit_rate", "1", "share of the tokens asked for that the hot tier holds; replay.tier", Work::reads},
    {"tier_swap_tokens_per_step", "tokens", "tokens asked for that the hot tier does not hold, mean", Work::reads},
    {"tier_swap_tokens_peak", "tokens", "tokens asked for that the hot tier does not hold, peak", Work::reads},
    {"tier_swap_bytes_per_step", "bytes", "their keys and values, mean", Work::reads},
    {"model_tokens_per_s", "1/s", "tokens per second that the machine of replay.machine allows, a bound", Work::reads},
    {"model_max_batch", "sequences", "sequences that fit into its memory", Work::reads},
    {"needle_kept", "1", "share of the tokens of replay.needles that a cache holds after the prompt, mean over caches",
     Work::after_prompt, more("share of the needles that is evicted")},
};

std::vector<std::string> metric_names();
// The work that these metrics need; everything if no metric is named.
Wanted wanted_by(const std::vector<std::string>& metrics);

// A metric by its name; an unknown name does not compile.
struct Metric {
  size_t index = 0;
  consteval Metric(const char* name) {
    while (std::string_view(kMetrics[index].name) != name) ++index;  // runs out of the table otherwise
  }
};

// The metrics of one cell. A metric without a value does not apply or was not requested.
class Measured {
 public:
  std::optional<double>& operator[](Metric metric) { return values_[metric.index]; }
  const std::optional<double>& operator[](Metric metric) const { return values_[metric.index]; }
  std::optional<double>& at(size_t metric) { return values_[metric]; }
  std::span<const std::optional<double>> all() const { return values_; }  // in the order of kMetrics

  std::map<std::string, double> extras;  // the method's own numbers, and needle_mass_1, ...
  double select_s = 0, attend_s = 0;     // times of this run; every comparison of results ignores them

 private:
  std::optional<double> values_[std::size(kMetrics)];
};

}  // namespace kvreplay
