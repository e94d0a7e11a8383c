#pragma once
#include <string>
#include <vector>

#include "trace/tensors.hpp"

namespace kvreplay {

// A trace as another one shows it. A class that derives from it changes `info_` and overrides what it shows
// differently. `trace` must live as long as the view.
class TensorsView : public Tensors {
 public:
  explicit TensorsView(const Tensors& trace) : trace_(trace), info_(trace.info()) {}

  const TraceInfo& info() const override { return info_; }
  void read_keys(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                 std::span<float> into) const override {
    trace_.read_keys(prompt, layer, head, count, into);
  }
  void read_values(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                   std::span<float> into) const override {
    trace_.read_values(prompt, layer, head, count, into);
  }
  void read_queries(const std::string& prompt, int32_t layer, int32_t head, int64_t first, int64_t rows,
                    std::span<float> into) const override {
    trace_.read_queries(prompt, layer, head, first, rows, into);
  }
  DeviceTensors on_device(const std::string& prompt, int32_t layer) const override {
    return trace_.on_device(prompt, layer);
  }
  std::vector<uint8_t> token_classes(const std::string& prompt) const override { return trace_.token_classes(prompt); }
  std::vector<int32_t> position_ids(const std::string& prompt) const override { return trace_.position_ids(prompt); }
  std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const override {
    return trace_.query_positions(prompt, layer);
  }
  std::vector<float> sink_logits(const std::string& prompt, int32_t layer) const override {
    return trace_.sink_logits(prompt, layer);
  }
  void read_up_values(const std::string& prompt, int32_t layer, int32_t head, std::span<float> into) const override {
    trace_.read_up_values(prompt, layer, head, into);
  }
  void read_output_weights(const std::string& prompt, int32_t layer, int32_t head,
                           std::span<float> into) const override {
    trace_.read_output_weights(prompt, layer, head, into);
  }
  void read_repeat_queries(const std::string& prompt, int32_t layer, int32_t head,
                           std::span<float> into) const override {
    trace_.read_repeat_queries(prompt, layer, head, into);
  }
  void read_repeat_keys(const std::string& prompt, int32_t layer, int32_t head, std::span<float> into) const override {
    trace_.read_repeat_keys(prompt, layer, head, into);
  }
  std::vector<float> repeat_input_norms(const std::string& prompt, int32_t layer) const override {
    return trace_.repeat_input_norms(prompt, layer);
  }
  void read_lookahead_queries(const std::string& prompt, int32_t layer, int32_t head,
                              std::span<float> into) const override {
    trace_.read_lookahead_queries(prompt, layer, head, into);
  }
  std::vector<int32_t> gradient_rows(const std::string& prompt, int32_t layer) const override {
    return trace_.gradient_rows(prompt, layer);
  }
  void read_gradient(const std::string& prompt, int32_t layer, int32_t head, int32_t sample,
                     std::span<float> into) const override {
    trace_.read_gradient(prompt, layer, head, sample, into);
  }

 protected:
  const Tensors& trace_;
  TraceInfo info_;
};

}  // namespace kvreplay
