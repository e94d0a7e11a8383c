#pragma once
#include <map>

#include "trace/array_view.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {

struct LayerArrays {
  ArrayView q, k, v;
  std::vector<int32_t> q_pos;  // token of each query row; empty: 0, 1, ...
  std::vector<float> sinks;    // [Hq], or empty
};
struct PromptArrays {
  std::map<int32_t, LayerArrays> layers;
  std::vector<int32_t> position_ids;  // [T]; empty: 0, 1, ...
  std::vector<uint8_t> classes;       // [T] TokenClass, or empty
};

// A trace whose tensors are arrays. `info` holds the metadata that a file would hold.
struct TraceArrays {
  TraceInfo info;
  std::map<std::string, PromptArrays> prompts;
};
// Fills the layers of `info` from the arrays: heads, dims, rows, types. Throws TraceError if the shapes do not agree.
void take_shapes(TraceArrays& arrays);

class ArrayTensors : public Tensors {
 public:
  // The arrays must live as long as this object; nothing is copied.
  explicit ArrayTensors(const TraceArrays& arrays) : arrays_(arrays) {}

  const TraceInfo& info() const override { return arrays_.info; }
  void read_keys(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                 std::span<float> into) const override;
  void read_values(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                   std::span<float> into) const override;
  void read_queries(const std::string& prompt, int32_t layer, int32_t q_head, int64_t first, int64_t rows,
                    std::span<float> into) const override;
  DeviceTensors on_device(const std::string& prompt, int32_t layer) const override;
  std::vector<uint8_t> token_classes(const std::string& prompt) const override;
  std::vector<int32_t> position_ids(const std::string& prompt) const override;
  std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const override;
  std::vector<float> sink_logits(const std::string& prompt, int32_t layer) const override;

 private:
  const PromptArrays& of(const std::string& prompt_id) const;
  const LayerArrays& of(const std::string& prompt_id, int32_t number) const;
  const TraceArrays& arrays_;
};

}  // namespace kvreplay
