#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "trace/trace_info.hpp"

namespace kvreplay {

// The tensors of a layer that a device holds.
struct DeviceTensors {
  DeviceTensor q, k, v;
};

// Source of recorded numbers for the engine: a file (trace/trace.hpp) or arrays in memory. Not thread-safe: one reader
// at a time.
class Tensors {
 public:
  virtual ~Tensors() = default;

  virtual const TraceInfo& info() const = 0;
  const PromptInfo& prompt(const std::string& id) const;                   // throws TraceError, which lists the prompts
  const LayerInfo& layer(const std::string& prompt, int32_t layer) const;  // likewise

  // Tokens 0..count-1 of one head, widened exactly to float, [count, head_dim] or [count, v_head_dim]. `into` must have
  // that many elements. A NaN or infinity throws TraceError, which names layer, head and token.
  virtual void read_keys(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                         std::span<float> into) const = 0;
  virtual void read_values(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                           std::span<float> into) const = 0;
  // Query rows first..first+rows-1 of one query head, [rows, head_dim].
  virtual void read_queries(const std::string& prompt, int32_t layer, int32_t q_head, int64_t first, int64_t rows,
                            std::span<float> into) const = 0;

  // Queries, keys and values where a device holds them too; it need not be sent them.
  virtual DeviceTensors on_device(const std::string&, int32_t) const { return {}; }

  virtual std::vector<uint8_t> token_classes(const std::string& prompt) const = 0;  // as TokenClass; empty: unknown
  virtual std::vector<int32_t> position_ids(const std::string& prompt) const = 0;   // 0..T-1 when not recorded
  // Token index of each query row.
  virtual std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const = 0;
  virtual std::vector<float> sink_logits(const std::string& prompt, int32_t layer) const = 0;  // [Hq] or empty

  // Latent attention: what makes a query head's value from the latent, [v_head_dim, out_dim].
  virtual void read_up_values(const std::string& prompt, int32_t layer, int32_t q_head, std::span<float> into) const;
  // One query head's part of the output projection, [out_dim, LayerInfo::output_width].
  virtual void read_output_weights(const std::string& prompt, int32_t layer, int32_t q_head,
                                   std::span<float> into) const;
  // The pass that repeats the prompt (PromptInfo::repeat): all rows of one head, [LayerInfo::repeat_rows, head_dim],
  // and the norms of the hidden states from which the queries were projected, [repeat_rows].
  virtual void read_repeat_queries(const std::string& prompt, int32_t layer, int32_t q_head,
                                   std::span<float> into) const;
  virtual void read_repeat_keys(const std::string& prompt, int32_t layer, int32_t kv_head, std::span<float> into) const;
  virtual std::vector<float> repeat_input_norms(const std::string& prompt, int32_t layer) const;
  // The rows generated after the cut prompt (PromptInfo::lookahead): all rows of one head, [LayerInfo::lookahead_rows,
  // head_dim].
  virtual void read_lookahead_queries(const std::string& prompt, int32_t layer, int32_t q_head,
                                      std::span<float> into) const;
  // A branch (PromptInfo::branches, numbered from 0): all its rows of one head, [BranchInfo::tokens, head_dim] or
  // [BranchInfo::tokens, v_head_dim], in the form of read_keys(), read_values() and read_queries(). The rows follow the
  // prompt's first context_tokens rows.
  virtual void read_branch_keys(const std::string& prompt, size_t branch, int32_t layer, int32_t kv_head,
                                std::span<float> into) const;
  virtual void read_branch_values(const std::string& prompt, size_t branch, int32_t layer, int32_t kv_head,
                                  std::span<float> into) const;
  virtual void read_branch_queries(const std::string& prompt, size_t branch, int32_t layer, int32_t q_head,
                                   std::span<float> into) const;
  // Positions of a branch's rows, which continue those of the context.
  std::vector<int32_t> branch_position_ids(const std::string& prompt, size_t branch) const;
  // Token index of each row of the recorded gradient, ascending; empty if none is recorded.
  virtual std::vector<int32_t> gradient_rows(const std::string&, int32_t) const { return {}; }
  // All rows of one sample of one query head, [LayerInfo::gradient_rows, out_dim]. The samples of the recorded
  // tokens and of the answer follow the drawn ones (LayerInfo::all_gradients).
  virtual void read_gradient(const std::string& prompt, int32_t layer, int32_t q_head, int32_t sample,
                             std::span<float> into) const;
};

// Opens part of the run's trace number `trace`. Throws TraceError.
using OpenTensors = std::function<std::unique_ptr<Tensors>(size_t trace, const TraceScope& scope)>;

// Describes the first unusable number in rows first_row.. of a head, [rows, width]; "" if there is none. Unusable are
// NaN, infinity, and numbers so large that a product of two such vectors would overflow single precision. row: "token"
// or "query".
std::string unusable_number(std::span<const float> values, int64_t width, int64_t head, int64_t first_row,
                            const char* row);

}  // namespace kvreplay
