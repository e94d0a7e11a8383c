#pragma once
#include <map>

#include "trace/array_view.hpp"
#include "trace/tensors.hpp"

// Reads trace files (HDF5, schema 1; docs/formats.md). Every file is treated as hostile: any problem throws a
// TraceError that names the file and the dataset.

namespace kvreplay {

// Throws TraceError if the name is that of an unfinished dump.
void check_trace_name(const std::filesystem::path& path);

// What a file says of itself, with the names of prompts and layers; and of one prompt and one of its layers. No tensor
// is read. A child process reads the same before (sandbox.hpp), and all of the prompt that lies in the same file, once
// for each version of a file. Throw TraceError.
TraceInfo read_names(const std::filesystem::path& path);  // trace_id is empty if the file has none
PromptInfo read_prompt_info(const std::filesystem::path& path, const std::string& prompt, int32_t layer);
// Identity of a file whose writer holds it open, by its content: the structure is checked, and digests are taken as the
// writer recorded them.
std::string written_trace_id(const std::filesystem::path& path);

// One of a layer's tensors as the file stores it.
struct StoredTensor {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  std::filesystem::path file;     // after external links
  std::optional<int64_t> offset;  // bytes from the file's begin to numbers that lie there as in memory
};

// A trace in memory: the bytes of an HDF5 file, in which large tensors have a shape but no numbers, and these tensors.
struct TraceInMemory {
  std::filesystem::path label;              // names the trace in messages and tables
  std::string image;                        // the file
  std::map<std::string, ArrayView> arrays;  // by path of their dataset: q, k, v and o_proj of a layer
};

// An open trace. Not thread-safe (HDF5 has one lock): one reader at a time.
class Trace : public Tensors {
 public:
  // Opens the file and checks its structure without reading tensors. Throws TraceError.
  explicit Trace(const std::filesystem::path& path, const TraceScope& scope = {});
  // Opens a file whose facts were read before. Throws TraceError.
  explicit Trace(TraceInfo info);
  // Opens a trace in memory, which must live as long as this object. Throws TraceError.
  explicit Trace(const TraceInMemory& trace, const TraceScope& scope = {});
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
  // The model's recorded attention output, [rows, out_dim]; requires LayerInfo::has_out.
  void read_out(const std::string& prompt, int32_t layer, int32_t q_head, int64_t rows, std::span<float> into) const;

  // A whole tensor: "q", "k", "v" or "out", [heads, rows, width]. As stored, with nothing checked: in this machine's
  // byte order, bfloat16 as its bits. As floats: as read_keys() reads them.
  StoredTensor stored(const std::string& prompt, int32_t layer, const std::string& name) const;
  void read_stored(const std::string& prompt, int32_t layer, const std::string& name, std::span<std::byte> into) const;
  void read_floats(const std::string& prompt, int32_t layer, const std::string& name, std::span<float> into) const;

  std::vector<int32_t> token_ids(const std::string& prompt) const;  // empty if not recorded
  // Text of each token, UTF-8; nullopt if not recorded.
  std::optional<std::vector<std::string>> token_texts(const std::string& prompt) const;
  DeviceTensors on_device(const std::string& prompt, int32_t layer) const override;
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
  void read_branch_keys(const std::string& prompt, size_t branch, int32_t layer, int32_t kv_head,
                        std::span<float> into) const override;
  void read_branch_values(const std::string& prompt, size_t branch, int32_t layer, int32_t kv_head,
                          std::span<float> into) const override;
  void read_branch_queries(const std::string& prompt, size_t branch, int32_t layer, int32_t q_head,
                           std::span<float> into) const override;
  std::vector<int32_t> branch_token_ids(const std::string& prompt, size_t branch) const;  // empty if not recorded
  void read_up_values(const std::string& prompt, int32_t layer, int32_t q_head, std::span<float> into) const override;
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
