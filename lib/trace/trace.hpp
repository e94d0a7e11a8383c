#pragma once
#include "trace/tensors.hpp"

// Reads trace files (HDF5, schema 1; docs/formats.md). Every file is treated as hostile: any problem throws a
// TraceError that names the file and the dataset.

namespace kvreplay {

// An open trace. Not thread-safe (HDF5 has one lock): one reader at a time.
class Trace : public Tensors {
 public:
  // Opens the file and checks its structure without reading tensors. Throws TraceError.
  explicit Trace(const std::filesystem::path& path, const TraceScope& scope = {});
  ~Trace() override;
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;

  const TraceInfo& info() const override;

  void read_keys(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                 std::span<float> into) const override;
  void read_values(const std::string& prompt, int32_t layer, int32_t kv_head, int64_t count,
                   std::span<float> into) const override;
  void read_queries(const std::string& prompt, int32_t layer, int32_t q_head, int64_t first, int64_t rows,
                    std::span<float> into) const override;
  // The model's recorded attention output, [rows, v_head_dim]; requires LayerInfo::has_out.
  void read_out(const std::string& prompt, int32_t layer, int32_t q_head, int64_t rows, std::span<float> into) const;

  std::vector<int32_t> token_ids(const std::string& prompt) const;  // empty if not recorded
  std::vector<uint8_t> token_classes(const std::string& prompt) const override;
  std::vector<int32_t> position_ids(const std::string& prompt) const override;
  std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const override;
  std::vector<float> sink_logits(const std::string& prompt, int32_t layer) const override;
  void read_repeat_queries(const std::string& prompt, int32_t layer, int32_t q_head,
                           std::span<float> into) const override;
  void read_repeat_keys(const std::string& prompt, int32_t layer, int32_t kv_head,
                        std::span<float> into) const override;
  std::vector<float> repeat_input_norms(const std::string& prompt, int32_t layer) const override;
  void read_lookahead_queries(const std::string& prompt, int32_t layer, int32_t q_head,
                              std::span<float> into) const override;
  void read_output_weights(const std::string& prompt, int32_t layer, int32_t q_head,
                           std::span<float> into) const override;
  std::vector<int32_t> gradient_rows(const std::string& prompt, int32_t layer) const override;
  void read_gradient(const std::string& prompt, int32_t layer, int32_t q_head, int32_t sample,
                     std::span<float> into) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Opens these files as the traces of a run.
OpenTensors open_files(std::vector<std::filesystem::path> files);

}  // namespace kvreplay
