#include "apps/bounds/rows.hpp"

#include <fmt/core.h>

#include <cmath>

#include "base/text.hpp"
#include "theory/balancekv.hpp"
#include "theory/buzz.hpp"
#include "theory/sizes.hpp"
#include "theory/subgen.hpp"
#include "theory/walk.hpp"

namespace kvreplay::app {
namespace {

using theory::LogNumber;

constexpr const char* kSpectral = "of |x|_2 |V|_op";
constexpr const char* kFrobenius = "of |x|_2 |V|_F";
constexpr const char* kFit = "not of the theorem: from the walk's drift on unit vectors";

struct Rows {
  const BoundInputs& in;
  std::vector<BoundRow> rows;

  double operator[](const char* name) const { return in.at(name); }
  void add(const char* quantity, LogNumber x, const char* unit, std::string note = "",
           std::optional<double> probability = {}) {
    const auto log10 = x.exact_zero() ? std::nullopt : std::optional(x.log10());
    rows.push_back({quantity, log10, x.plain(), unit, probability, std::move(note)});
  }
  void add_missing(const char* quantity, const char* unit, const char* note) {
    rows.push_back({quantity, {}, {}, unit, {}, note});
  }
  std::string order(const char* constant) const {
    return fmt::format("constant {}: only an order", number_text(in.at(constant)));
  }
};

std::string beside(std::string note, bool when, const char* more) { return when ? note + "; " + more : note; }

std::vector<BoundRow> subgen(const BoundInputs& in) {
  Rows r{in, {}};
  const double n = r["n"], d = r["d"], v_dim = r["v_dim"], m = r["clusters"];
  const auto sizes = theory::SubGen::of(r["epsilon"], r["delta"], r["r"], n, d, r["c_t"], r["c_s"]);
  const LogNumber rows = sizes.rows(m), numbers = sizes.numbers(m, d, v_dim);
  const std::string order =
      fmt::format("constants {} and {}: only an order", number_text(r["c_t"]), number_text(r["c_s"]));
  r.add("t", sizes.t, "keys per cluster",
        beside(r.order("c_t"), sizes.t >= n, "t >= n: a cluster alone asks for the whole cache"));
  r.add("s", sizes.s, "slots", r.order("c_s"));
  r.add("stored_rows", rows, "rows", beside(order, rows >= n, "no fewer than the exact cache"));
  r.add("memory", numbers, "numbers",
        beside(order, numbers >= LogNumber(n) * (d + v_dim), "no less than the exact cache"));
  r.add("time_per_token", sizes.time_per_token(m, d), "operations", "an order");
  r.add("error", r["epsilon"], kSpectral, "", theory::kSubGenProbability);
  r.add("numerator_rms_error", theory::subgen_numerator_rms(sizes.s), kFrobenius,
        "at most: root of the variance with s slots, no constant");
  r.add("t_growth", theory::subgen_growth(r["delta"], r["r"], n), "power of n",
        "sub-linear memory: must vanish as n grows");
  r.add("clusters_per_token", LogNumber(m) / n, "1", "sub-linear memory: must vanish as n grows");
  return std::move(r.rows);
}

std::vector<BoundRow> balancekv(const BoundInputs& in) {
  Rows r{in, {}};
  const double n = r["n"], d = r["d"];
  const auto sizes = theory::BalanceKv::of(r["epsilon"], r["r"], n, d, r["v_dim"], r["c_batch"]);
  const bool all = sizes.keeps_everything(n);
  const char* everything = "keeps everything: t >= n";
  const std::string order = beside(r.order("c_batch"), all, everything);
  r.add("key_logit", theory::largest_logit(r["key_norm"], d), "1", "max |k|^2/sqrt(d)");
  r.add("largest_logit", theory::largest_logit(r["r"], d), "1", "r^2/sqrt(d); t grows as exp of twice this");
  r.add("t", sizes.t, "tokens per batch", order);
  r.add("levels", sizes.levels, "halvings", all ? everything : "");
  r.add("pairs", sizes.pairs(), "rows per MergeAndReduce", order);
  r.add("buckets", sizes.buckets, "buckets of values", "at most");
  r.add("stored_rows", sizes.rows(), "rows", order);
  r.add("time_per_step", sizes.time_per_step(), "operations", "an order");
  r.add("error", r["epsilon"], kFrobenius, all ? "keeps everything: the theorem says nothing" : "");
  r.add("softmax_balance_discrepancy",
        theory::softmax_balance_discrepancy(
            {n, d, r["v_dim"], r["failure"], r["query_norm"], r["key_norm"], r["value_norm"]}, r["c_discrepancy"]),
        "of sums of exp(l) v", "of n vectors; " + r.order("c_discrepancy"), 1 - r["failure"]);
  r.add("merge_and_reduce_error", theory::merge_and_reduce_error(r["epsilon"], n, r["r"], d, r["value_norm"]),
        "of sums of exp(l) v", beside("at token n", all, everything));
  return std::move(r.rows);
}

std::vector<BoundRow> walk(const BoundInputs& in) {
  Rows r{in, {}};
  const double n = r["n"], c = theory::walk_constant(n, r["failure"]), holds = 1 - r["failure"];
  r.add("c", c, "1", "30 ln(n/failure)");
  r.add("failure_threshold", theory::walk_failure_threshold(c, r["r"]), "of |<W, u>|",
        "c r^2: beyond it the walk fails", holds);
  r.add("discrepancy", theory::walk_discrepancy(n, r["failure"], r["r"], 1, r["c_walk"]), "per norm of the direction",
        r.order("c_walk"), holds);
  r.add("coin_discrepancy", theory::coin_discrepancy(n), "per norm of the direction",
        "fair coins on unit vectors: an order");
  r.add("crossover", theory::walk_crossover(c, r["d"]), "vectors", kFit);
  r.add("plateau", theory::walk_plateau(c), "per coordinate", kFit);
  return std::move(r.rows);
}

std::vector<BoundRow> buzz(const BoundInputs& in) {
  Rows r{in, {}};
  const auto variant = theory::Buzz::Variant(int(r["variant"]));
  const auto sizes = theory::Buzz::of(int64_t(r["sinks"]), int64_t(r["window"]), int64_t(r["stride"]),
                                      int64_t(r["threshold"]), variant);
  const auto prompt = int64_t(r["prompt_tokens"]);
  const auto tokens = [&](const char* name, int64_t x, const char* note) { r.add(name, double(x), "tokens", note); };
  tokens("first_pass", sizes.first_pass(), "left of a middle without old tokens");
  tokens("after_prompt", sizes.after_prompt(prompt),
         prompt - sizes.sinks - sizes.window < sizes.fires_at ? "the prompt starts no pass"
                                                              : "kept by a single pass over the prompt");
  if (!sizes.bounded()) {
    const char* unbounded = "unbounded: stride 2 or less never thins old tokens";
    for (const char* name : {"pass_low", "pass_high", "fixed_point", "peak_attended", "peak_attended_single_pass",
                             "low_point", "mean_size"})
      r.add_missing(name, "tokens", unbounded);
    return std::move(r.rows);
  }
  const auto [low, high] = sizes.limit();
  const char* ceilings =
      low == high ? "fixed point of the recursion with ceilings" : "with ceilings the recursion ends in a cycle";
  tokens("pass_low", low, ceilings);
  tokens("pass_high", high, ceilings);
  r.add("fixed_point", sizes.fixed_point(), "tokens", "without ceilings");
  tokens("peak_attended", sizes.peak_attended(), "prompt in passes until it fits");
  tokens("peak_attended_single_pass", sizes.peak_attended(prompt), "a single pass over the prompt");
  r.add("low_point", sizes.low_point(), "tokens", "about");
  r.add("mean_size", sizes.mean_size(), "tokens", "about");
  r.add("threshold_to_window", theory::buzz_threshold_to_window(r["stride"]), "1", "the rule for threshold/window");
  return std::move(r.rows);
}

std::vector<BoundRow> h2o(const BoundInputs& in) {
  Rows r{in, {}};
  const auto bytes = [&](double width) {
    return theory::cache_bytes(r["n_layers"], r["n_kv_heads"], r["budget"], r["d"], r["v_dim"], width);
  };
  r.add("greedy_ratio_line", theory::kGreedyLine, "of the best set", "a line: the theorem leaves alpha and beta open");
  r.add("cache_bytes", bytes(r["bytes"]), "bytes", "budget = heavy + recent");
  r.add("int4_share", theory::int4_share(), "of float16", "groups of 64");
  r.add("int4_cache_bytes", bytes(2 * theory::int4_share()), "bytes", "groups of 64");
  return std::move(r.rows);
}

std::vector<BoundRow> streaming_llm(const BoundInputs& in) {
  Rows r{in, {}};
  r.add("cache_bytes", theory::cache_bytes(r["n_layers"], r["n_kv_heads"], r["budget"], r["d"], r["v_dim"], r["bytes"]),
        "bytes", "budget = sinks + window");
  return std::move(r.rows);
}

std::vector<BoundRow> kernel_halving(const BoundInputs& in) {
  Rows r{in, {}};
  const LogNumber size = theory::halving_size(r["n"], r["g"]);
  r.add("tokens", size, "tokens", size >= r["n"] ? "keeps everything: 2^g sqrt(n) >= n" : "2^g sqrt(n)");
  r.add("error_order", theory::halving_error(r["n"], size, r["c_halving"]), "1", r.order("c_halving"));
  return std::move(r.rows);
}

}  // namespace

const std::vector<BoundPaper>& bound_papers() {
  static const std::vector<BoundPaper> all = {
      {"subgen",
       "SubGen, Theorem 1 and Corollary 1",
       BoundNorm::scaled_query,
       true,
       {"n", "d", "v_dim", "r", "delta", "epsilon", "clusters", "c_t", "c_s"},
       subgen},
      {"balancekv",
       "BalanceKV, Theorems 3.1-3.5",
       BoundNorm::key_and_query,
       true,
       {"n", "d", "v_dim", "r", "epsilon", "failure", "query_norm", "key_norm", "value_norm", "c_batch",
        "c_discrepancy"},
       balancekv},
      {"walk",
       "the self-balancing walk (Alweiss, Liu, Sawhney) against fair coins",
       BoundNorm::key,
       true,
       {"n", "d", "r", "failure", "c_walk"},
       walk},
      {"buzz",
       "BUZZ, Theorem 3.1, sizes",
       BoundNorm::none,
       false,
       {"variant", "sinks", "window", "stride", "threshold", "prompt_tokens"},
       buzz},
      {"h2o",
       "H2O, Theorem 4.4, and bytes",
       BoundNorm::none,
       false,
       {"budget", "n_layers", "n_kv_heads", "d", "v_dim", "bytes"},
       h2o},
      {"streaming_llm",
       "StreamingLLM, bytes",
       BoundNorm::none,
       false,
       {"budget", "n_layers", "n_kv_heads", "d", "v_dim", "bytes"},
       streaming_llm},
      {"kernel_halving",
       "kernel halving (KH-Compress), size and order of the error",
       BoundNorm::none,
       false,
       {"n", "g", "c_halving"},
       kernel_halving},
  };
  return all;
}

}  // namespace kvreplay::app
