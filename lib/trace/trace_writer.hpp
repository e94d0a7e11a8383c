#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trace/trace.hpp"

namespace kvreplay {

// Writes trace files of schema 1 (docs/formats.md), whole or not at all. Writes tensors head by head, so a trace need
// not fit in memory.
class TraceWriter {
 public:
  explicit TraceWriter(const std::filesystem::path& path);  // throws OutputError
  ~TraceWriter();

  void attribute(const std::string& object, const std::string& name, int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void attribute(const std::string& object, const std::string& name, const std::string& value);
  void integers(const std::string& name, std::span<const int32_t> data);  // one axis

  // A tensor [heads, rows, width]: begin, append all rows in order, end. Throws ConfigError if a number overflows
  // `type`.
  void begin_tensor(const std::string& name, int64_t heads, int64_t rows, int64_t width, DType type);
  void append(std::span<const float> rows);  // whole rows of one head
  void end_tensor();

  // Publishes the file. `metadata` identifies the model and enters trace_id.
  void close(const std::string& metadata);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The value that the file will hold: rounded to `type` and widened again.
float stored_value(float value, DType type);
std::string rope_to_json(const Rope& rope);

}  // namespace kvreplay
