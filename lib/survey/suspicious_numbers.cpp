#include "survey/suspicious_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "survey/recorded_output.hpp"
#include "survey/rotary_phase.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kPhaseRows = 1024;  // number of first rows whose rotation is checked
constexpr int64_t kRows = 8;          // rows per head whose attention is checked, chosen from rows with enough tokens
constexpr int32_t kFewestTokens = 64;
constexpr int32_t kSinks = 4;           // first tokens, which may take all attention even in a correct trace
constexpr int64_t kTokensCompared = 4;  // two heads of a model never share a key
constexpr double kNormRatio = 1e3;
constexpr double kUniformSpread = 0.02;  // largest standard deviation of a row's logits
constexpr double kOneTokenShare = 0.98;  // median over rows of the largest probability, without the first tokens

// One line for each kind of finding: the first place, and the number of layers.
class Findings {
 public:
  explicit Findings(const std::string& file) : file_(file) {}

  void add(const std::string& kind, const std::string& where, const std::string& text) {
    for (Finding& found : found_)
      if (found.kind == kind) {
        ++found.layers;
        return;
      }
    found_.push_back({kind, fmt::format("{}: /{}: {}", file_, where, text), 1});
  }

  void append_to(std::vector<std::string>& lines) const {
    for (const Finding& found : found_)
      lines.push_back(found.layers > 1 ? fmt::format("{} (in {} layers)", found.text, found.layers) : found.text);
  }

 private:
  struct Finding {
    std::string kind, text;
    int64_t layers;
  };
  std::string file_;
  std::vector<Finding> found_;
};

bool all_zero(std::span<const float> numbers) {
  return std::ranges::all_of(numbers, [](float x) { return x == 0; });
}

struct Squares {
  double sum = 0, count = 0;
  void add(std::span<const float> numbers) {
    for (const float x : numbers) sum += double(x) * double(x);
    count += static_cast<double>(numbers.size());
  }
  double rms() const { return count > 0 ? std::sqrt(sum / count) : 0; }
};

// Describes kv heads of the layer that have equal keys, or "".
std::string repeated_kv_heads(const Tensors& trace, const std::string& prompt, const LayerInfo& layer) {
  const int64_t tokens = std::min(kTokensCompared, layer.tokens);
  std::set<std::vector<float>> different;
  for (int32_t kv_head = 0; kv_head < layer.kv_heads; ++kv_head) {
    std::vector<float> keys(static_cast<size_t>(tokens * layer.head_dim));
    trace.read_keys(prompt, layer.layer, kv_head, tokens, keys);
    if (all_zero(keys)) return "";
    different.insert(std::move(keys));
  }
  const auto count = static_cast<int32_t>(different.size());
  if (count == layer.kv_heads) return "";
  return fmt::format(
      "only {} of {} kv heads differ, as if some were repeated for their query heads. Write each once: every copy is "
      "replayed, and its bytes are counted",
      count, layer.kv_heads);
}

class LayerChecks {
 public:
  LayerChecks(const Tensors& trace, const PromptInfo& prompt, const LayerInfo& layer)
      : trace_(trace), prompt_(prompt.id), layer_(layer), tokens_(trace.query_positions(prompt.id, layer.layer)) {
    if (!layer.rope) return;
    const std::vector<int32_t> positions = trace.position_ids(prompt.id);
    std::vector<int32_t> of_queries;
    for (const int32_t token : std::span(tokens_).first(phase_rows(layer.query_rows)))
      of_queries.push_back(positions[static_cast<size_t>(token)]);
    query_phase_.emplace(*layer.rope, std::move(of_queries));
    key_phase_.emplace(
        *layer.rope,
        std::vector<int32_t>(positions.begin(), positions.begin() + static_cast<int64_t>(phase_rows(layer.tokens))));
  }

  void look(Findings& findings) {
    for (int32_t kv_head = 0; kv_head < layer_.kv_heads; ++kv_head) look_at(kv_head);
    const std::string group = layer_path(prompt_, layer_.layer);
    report_copies(group, findings);
    report_norms(group, findings);
    report_attention(group, findings);
    if (!layer_.rope) return;
    for (const auto& [phase, name, rows] :
         {std::tuple(&*key_phase_, "/k", "keys"), std::tuple(&*query_phase_, "/q", "queries")})
      if (const std::string text = phase->suspicion(rows); !text.empty())
        findings.add(std::string("phase") + name, group + name, text);
  }

 private:
  static size_t phase_rows(int64_t rows) { return static_cast<size_t>(std::min(rows, kPhaseRows)); }

  void look_at(int32_t kv_head) {
    std::vector<float> keys(static_cast<size_t>(layer_.tokens * layer_.head_dim));
    std::vector<float> values(static_cast<size_t>(layer_.tokens * layer_.v_head_dim));
    trace_.read_keys(prompt_, layer_.layer, kv_head, layer_.tokens, keys);
    trace_.read_values(prompt_, layer_.layer, kv_head, layer_.tokens, values);
    keys_are_values_ &= keys == values && !all_zero(keys);
    key_squares_.add(keys);
    if (key_phase_) key_phase_->add(keys, layer_.head_dim);
    for (int32_t i = 0; i < layer_.group(); ++i) check_queries(kv_head * layer_.group() + i, keys);
  }

  void check_queries(int32_t q_head, const std::vector<float>& keys) {
    std::vector<float> queries(static_cast<size_t>(layer_.query_rows * layer_.head_dim));
    trace_.read_queries(prompt_, layer_.layer, q_head, 0, layer_.query_rows, queries);
    query_squares_.add(queries);
    if (query_phase_) query_phase_->add(queries, layer_.head_dim);
    queries_are_keys_ &= queries == keys && !all_zero(keys);
    const auto first = std::ranges::lower_bound(tokens_, kFewestTokens - 1) - tokens_.begin();
    const int64_t usable = layer_.query_rows - first, count = std::min(kRows, usable);
    for (int64_t i = 1; i <= count; ++i) {
      const int64_t row = first + i * usable / count - 1;
      const auto at = queries.begin() + row * layer_.head_dim;
      check_row({at, at + layer_.head_dim}, tokens_[static_cast<size_t>(row)], keys);
    }
  }

  void check_row(const std::vector<double>& query, int32_t token, const std::vector<float>& keys) {
    const auto seen = std::span(keys).first(static_cast<size_t>((int64_t{token} + 1) * layer_.head_dim));
    std::vector<double> logits = products_of(query, {seen, layer_.head_dim}).dot;
    double sum = 0, squares = 0;
    for (double& l : logits) {
      l *= layer_.scaling;
      sum += l;
      squares += l * l;
    }
    const auto n = static_cast<double>(logits.size());
    spreads_.push_back(std::sqrt(std::max(0.0, squares / n - sum / n * sum / n)));
    const auto rest = std::span(logits).subspan(kSinks);
    const double largest = *std::ranges::max_element(rest);
    double weights = 0;
    for (const double l : rest) weights += std::exp(l - largest);
    largest_shares_.push_back(1 / weights);
  }

  void report_copies(const std::string& group, Findings& findings) const {
    if (queries_are_keys_) findings.add("q is k", group + "/q", "holds the numbers of k. Write the queries");
    if (keys_are_values_) findings.add("k is v", group + "/v", "holds the numbers of k. Write the values");
    if (const std::string text = repeated_kv_heads(trace_, prompt_, layer_); !text.empty())
      findings.add("repeated", group + "/k", text);
  }

  void report_norms(const std::string& group, Findings& findings) const {
    const double q = query_squares_.rms(), k = key_squares_.rms();
    if (q == 0 || k == 0 || (q < kNormRatio * k && k < kNormRatio * q)) return;
    findings.add(
        "norms", group + "/q",
        fmt::format("queries are {:.3g} in the root mean square, keys {:.3g}: a factor of {:.0e}. Record both as "
                    "attention sees them",
                    q, k, std::max(q / k, k / q)));
  }

  void report_attention(const std::string& group, Findings& findings) {
    if (spreads_.empty() || layer_.softcap > 0) return;
    if (const double most = *std::ranges::max_element(spreads_); most < kUniformSpread) {
      findings.add("uniform", group,
                   fmt::format("attention is uniform in every row that was checked (logits differ by {:.1g}). Compare "
                               "scaling {:.4g} and the norms of q and k with the model's",
                               most, layer_.scaling));
      return;
    }
    const auto middle = largest_shares_.begin() + static_cast<int64_t>(largest_shares_.size() / 2);
    std::ranges::nth_element(largest_shares_, middle);
    if (*middle > kOneTokenShare)
      findings.add(
          "one token", group,
          fmt::format("attention is on one token alone in most rows ({:.3f} of what the first {} tokens leave). "
                      "Compare scaling {:.4g} and the norms of q and k with the model's",
                      *middle, kSinks, layer_.scaling));
  }

  const Tensors& trace_;
  const std::string prompt_;
  const LayerInfo& layer_;
  const std::vector<int32_t> tokens_;  // token of each query row
  std::optional<RotaryPhase> key_phase_, query_phase_;
  bool keys_are_values_ = true, queries_are_keys_ = true;
  Squares query_squares_, key_squares_;
  std::vector<double> spreads_, largest_shares_;  // one entry per row
};

}  // namespace

std::vector<std::string> suspicious_shapes(const Tensors& trace) {
  std::vector<std::string> lines = swapped_axes(trace.info());
  for (const PromptInfo& prompt : trace.info().prompts) {
    if (prompt.layers.empty()) continue;
    const LayerInfo& first = prompt.layers.front();
    if (const std::string text = repeated_kv_heads(trace, prompt.id, first); !text.empty())
      lines.push_back(
          fmt::format("{}: /{}/k: {}", trace.info().path.string(), layer_path(prompt.id, first.layer), text));
  }
  return lines;
}

std::vector<std::string> suspicious_numbers(const Tensors& trace) {
  std::vector<std::string> lines;
  for (const PromptInfo& prompt : trace.info().prompts) {
    Findings findings(trace.info().path.string());
    for (const LayerInfo& layer : prompt.layers) LayerChecks(trace, prompt, layer).look(findings);
    findings.append_to(lines);
  }
  return lines;
}

}  // namespace kvreplay
