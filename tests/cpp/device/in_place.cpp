#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "core/dtype.hpp"
#include "device/beside_cores.hpp"
#include "device/devices.hpp"
#include "device/under_test.hpp"
#include "emulator/emulated_runtime.hpp"
#include "trace/trace_info.hpp"

// Tensors that the device holds already.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const StreamShape kShape{90, 50, 8, 8, 2};

uint16_t narrowed(float x, DType type) { return type == DType::float16 ? narrow_float16(x) : to_bf16(x); }

// Rounds numbers to what the type holds.
void round_to(DType type, std::vector<float>& numbers) {
  for (float& x : numbers)
    if (const uint16_t bits = narrowed(x, type); type != DType::float32) x = number_at(&bits, type, 0);
}

// [heads, rows, width] on a device, where it lies as [rows, heads, width + 3].
class Tensor {
 public:
  Tensor(Runtime& runtime, const std::vector<float>& numbers, int64_t heads, int64_t width, DType type) {
    const int64_t rows = int64_t(numbers.size()) / heads / width, pitch = heads * (width + 3), size = bytes_of(type);
    std::vector<unsigned char> bytes(size_t(rows * pitch * size), 0xFF);
    for (int64_t i = 0; i < int64_t(numbers.size()); ++i) {
      const int64_t at = i / width % rows * pitch + i / width / rows * (width + 3) + i % width;
      const uint16_t bits = narrowed(numbers[size_t(i)], type);
      std::memcpy(bytes.data() + at * size, type == DType::float32 ? (const void*)&numbers[size_t(i)] : &bits,
                  size_t(size));
    }
    held_ = uploaded(runtime, bytes);
    tensor_ = {runtime.device(), held_.data(), type, {width + 3, pitch, 1}};
  }
  const DeviceTensor& tensor() const { return tensor_; }

 private:
  DeviceArray<unsigned char> held_;
  DeviceTensor tensor_;
};

struct Stored {
  Tensor q, k, v;
  Stored(Runtime& runtime, const HeadStream<float>& s, DType type)
      : q(runtime, s.queries, s.shape.heads, s.shape.dim, type),
        k(runtime, s.keys, s.shape.blocks, s.shape.dim, type),
        v(runtime, s.values, s.shape.blocks, s.shape.v_dim, type) {
    runtime.wait();
  }
  DeviceTensors tensors() const { return {q.tensor(), k.tensor(), v.tensor()}; }
};

HeadStream<float> stored_as(DType type) {
  HeadStream<float> stream = make_stream<float>(kShape, 71, Look::sinks);
  for (auto* numbers : {&stream.keys, &stream.values, &stream.queries}) round_to(type, *numbers);
  stream.stored_bytes = bytes_of(type);
  return stream;
}

std::vector<Cell> some_cells() {
  std::vector<Cell> cells;
  const auto none = nlohmann::json::object();
  for (const char* method : {"exact", "h2o", "window", "snapkv", "uniform", "keydiff"}) {
    const bool votes = std::string(method) == "snapkv";
    cells.push_back(
        make_cell(method, 24, kShape, votes ? nlohmann::json{{"window", 6}} : none, default_options(method)));
  }
  return cells;
}

RunResult replayed(const HeadStream<float>& stream, RunOptions options) {
  options.save.kept = options.save.outputs = options.save.curves = true;
  return replay(stream, some_cells(), options);
}

}  // namespace

TEST_CASE("tensors on the device are read in place, to the last bit", "[device][replay]") {
  const DType type = GENERATE(DType::float32, DType::float16, DType::bfloat16);
  CAPTURE(name_of(type));
  const auto runtime = runtime_under_test();
  HeadStream<float> stream = stored_as(type);
  const RunResult sent = replayed(stream, on_device());
  const Stored stored(*runtime, stream, type);
  stream.on_device = stored.tensors();
  const RunResult in_place = replayed(stream, on_device());
  for (size_t i = 0; i < sent.cells.size(); ++i) {
    CHECK(sent.cells[i].ok);
    CHECK(same_bits(in_place.cells[i], sent.cells[i]));
  }
}

TEST_CASE("a tensor's heads start at its stride", "[arrays]") {
  const std::vector<uint16_t> numbers{1, 2, 3, 4, 5, 6};
  const DeviceTensor all{"emulated", numbers.data(), DType::bfloat16, {3, 1, 1}};
  CHECK(all.from_head(1).data == numbers.data() + 3);
  CHECK(DeviceTensor{}.from_head(1).data == nullptr);
}

TEST_CASE("numbers that a device holds are not sent to it", "[emulator]") {
  HeadStream<float> stream = stored_as(DType::bfloat16);
  const auto runtime = emulator::open_runtime(emulator::Schedule::forward);
  const Stored stored(*runtime, stream, DType::bfloat16);
  const auto copied = [&] {
    emulator::Work work;
    RunOptions options;
    options.device = open_heads([&] { return emulator::open_runtime(emulator::Schedule::forward, &work); });
    replayed(stream, options);
    return work.copied;
  };
  const int64_t sent = copied();
  stream.on_device = stored.tensors();
  const int64_t numbers = int64_t(stream.keys.size() + stream.values.size() + stream.queries.size());
  CHECK(sent - copied() > 3 * numbers);  // 4 bytes a number, less the places of the query rows
  stream.on_device.q.device = "another device";
  CHECK(copied() < sent);
}

TEST_CASE("an unusable query on a device is named", "[device][replay]") {
  const float bad = GENERATE(NAN, INFINITY, -0x1p41f);
  HeadStream<float> stream = stored_as(DType::float32);
  stream.queries[size_t(3 * stream.shape.dim + 1)] = bad;
  const auto runtime = runtime_under_test();
  const Stored stored(*runtime, stream, DType::float32);
  stream.on_device = stored.tensors();
  const std::vector<float> queries = std::exchange(stream.queries, {});
  stream.query_rows = 0, stream.all_query_rows = stream.tokens;
  stream.fetch_queries = [](int32_t first, int32_t, std::vector<float>&) {
    throw TraceError("query " + std::to_string(first) + " is not usable");
  };
  CHECK_THROWS_AS(on_device().device(stream), TraceError);
}
