#include "trace/trace_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "core/bf16.hpp"
#include "core/halves.hpp"
#include "trace/h5_write.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kChunkRows = 1024;

// The standard HDF5 custom float: sign in bit 15, 8 bits of exponent from bit 7, 7 of mantissa, bias 127.
h5::Handle half_type(DType type) {
  h5::Handle made(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  const bool brain = type == DType::bfloat16;
  H5Tset_fields(made.get(), 15, brain ? 7 : 10, brain ? 8 : 5, 0, brain ? 7 : 10);
  H5Tset_size(made.get(), 2);
  H5Tset_ebias(made.get(), brain ? 127 : 15);
  return made;
}

h5::Handle stored_type(DType type) {
  return type == DType::float32 ? h5::Handle(H5Tcopy(H5T_IEEE_F32LE), H5Tclose) : half_type(type);
}

uint16_t narrow(float value, DType type) { return type == DType::bfloat16 ? to_bf16(value) : narrow_float16(value); }

struct OpenTensor {
  std::string name;
  DType type;
  int64_t rows, width, at = 0;  // `at` counts rows of all heads
  h5::Handle dataset, file_type;
  Sha256 digest;
};

}  // namespace

struct TraceWriter::State {
  h5::PartFile file;
  std::optional<OpenTensor> tensor;
  std::vector<std::string> digests;

  void finish_dataset(const std::string& name, const std::string& digest) {
    h5::set_attribute(file, name, "sha256", digest);
    digests.push_back(digest);
  }
  void write_rows(int64_t head, int64_t row, int64_t count, const void* data);
};

void TraceWriter::State::write_rows(int64_t head, int64_t row, int64_t count, const void* data) {
  const auto extent = [](int64_t n) { return static_cast<hsize_t>(n); };
  const hsize_t start[] = {extent(head), extent(row), 0}, box[] = {1, extent(count), extent(tensor->width)};
  const h5::Handle file_space(H5Dget_space(tensor->dataset.get()), H5Sclose);
  const h5::Handle memory_space(H5Screate_simple(3, box, nullptr), H5Sclose);
  H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, start, nullptr, box, nullptr);
  file.check(H5Dwrite(tensor->dataset.get(), tensor->file_type.get(), memory_space.get(), file_space.get(), H5P_DEFAULT,
                      data) >= 0,
             "writing " + tensor->name);
}

TraceWriter::TraceWriter(const std::filesystem::path& path) {
  const h5::Lock lock;
  state_ = std::unique_ptr<State>(new State{h5::PartFile(path), std::nullopt, {}});
  h5::set_attribute(state_->file, "/", "kvreplay_schema", int64_t{1});
}

TraceWriter::~TraceWriter() {
  const h5::Lock lock;
  state_.reset();
}

void TraceWriter::attribute(const std::string& object, const std::string& name, int64_t value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file, object, name, value);
}

void TraceWriter::attribute(const std::string& object, const std::string& name, double value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file, object, name, value);
}

void TraceWriter::attribute(const std::string& object, const std::string& name, const std::string& value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file, object, name, value);
}

void TraceWriter::integers(const std::string& name, std::span<const int32_t> data) {
  const h5::Lock lock;
  const auto length = static_cast<int64_t>(data.size());
  const h5::Handle dataset = h5::create_dataset(state_->file, name, H5T_STD_I32LE, {length}, {}, {});
  state_->file.check(H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0,
                     "writing " + name);
  Sha256 digest;
  digest.update(std::as_bytes(data));
  state_->finish_dataset(name, digest.hex());
}

void TraceWriter::begin_tensor(const std::string& name, int64_t heads, int64_t rows, int64_t width, DType type) {
  const h5::Lock lock;
  assert(!state_->tensor);
  h5::Handle file_type = stored_type(type);
  h5::Handle dataset = h5::create_dataset(state_->file, name, file_type.get(), {heads, rows, width},
                                          {1, std::min(kChunkRows, rows), width}, {.fletcher32 = true});
  state_->tensor.emplace(OpenTensor{name, type, rows, width, 0, std::move(dataset), std::move(file_type), Sha256()});
}

void TraceWriter::append(std::span<const float> values) {
  const h5::Lock lock;
  OpenTensor& tensor = *state_->tensor;
  const int64_t count = static_cast<int64_t>(values.size()) / tensor.width, head = tensor.at / tensor.rows,
                row = tensor.at % tensor.rows;
  assert(count * tensor.width == static_cast<int64_t>(values.size()) && row + count <= tensor.rows);
  for (const float x : values)
    if (!std::isfinite(stored_value(x, tensor.type)))
      throw ConfigError(fmt::format("{}: {} overflows {}. Use bfloat16 or float32, or smaller norms", tensor.name, x,
                                    name_of(tensor.type)));
  tensor.at += count;
  if (tensor.type == DType::float32) {
    tensor.digest.update(std::as_bytes(values));
    return state_->write_rows(head, row, count, values.data());
  }
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [&](float x) { return narrow(x, tensor.type); });
  tensor.digest.update(std::as_bytes(std::span(bits)));
  state_->write_rows(head, row, count, bits.data());
}

void TraceWriter::end_tensor() {
  const h5::Lock lock;
  assert(state_->tensor->at % state_->tensor->rows == 0);
  const std::string name = state_->tensor->name, digest = state_->tensor->digest.hex();
  state_->tensor.reset();
  state_->finish_dataset(name, digest);
}

void TraceWriter::close(const std::string& metadata) {
  const h5::Lock lock;
  assert(!state_->tensor);
  std::sort(state_->digests.begin(), state_->digests.end());
  Sha256 id;
  for (const std::string& digest : state_->digests) id.update(digest);
  id.update(metadata);
  h5::set_attribute(state_->file, "/", "trace_id", id.hex());
  h5::set_attribute(state_->file, "/", "complete", int64_t{1});
  state_->file.publish();
}

float stored_value(float value, DType type) {
  if (type == DType::float32) return value;
  return type == DType::bfloat16 ? from_bf16(to_bf16(value)) : widen_float16(narrow_float16(value));
}

std::string rope_to_json(const Rope& rope) {
  return nlohmann::json{{"type", rope.type},
                        {"theta", rope.theta},
                        {"inv_freq", rope.inv_freq},
                        {"attention_factor", rope.attention_factor},
                        {"layout", rope.layout == Rope::Layout::half_split ? "half_split" : "interleaved"},
                        {"rotary_dims", rope.rotary_dims}}
      .dump();
}

}  // namespace kvreplay
