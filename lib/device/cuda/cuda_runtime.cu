#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cuda/cuda_devices.hpp"
#include "device/cuda/errors.cuh"
#include "device/cuda/kernels.cuh"
#include "device/kernels_of.hpp"

namespace kvreplay::cuda {
namespace {

constexpr int kLeastCapability = 8;  // bf16 tensor cores
constexpr size_t kStageBytes = size_t{8} << 20;

std::string mib(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Host memory that a device reads and writes while the host continues.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(size_t bytes) : bytes_(bytes) { check(cudaMallocHost(&data_, bytes), "pin memory of the host"); }
  ~Pinned() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  Pinned(Pinned&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// One stream. Copies use pinned buffers. Uploads alternate between two, so that filling one overlaps the transfer of
// the other. Each running download has its own; small ones are kept for reuse.
class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(int ordinal) : ordinal_(ordinal) {
    use();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "open a stream");
    for (Stage& stage : stages_) {
      stage.memory = Pinned(kStageBytes);
      check(cudaEventCreateWithFlags(&stage.sent, cudaEventDisableTiming), "make an event");
    }
    keep_freed_memory();
    follow_callers();
  }
  ~CudaRuntime() override {
    cudaSetDevice(ordinal_);
    cudaStreamSynchronize(stream_);
    for (const Stage& stage : stages_) cudaEventDestroy(stage.sent);
    cudaStreamDestroy(stream_);
  }

  std::string device() const override { return "cuda:" + std::to_string(ordinal_); }
  void* allocate(size_t bytes) override {
    use();
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(&memory, std::max<size_t>(bytes, 256), stream_);
    if (error == cudaErrorMemoryAllocation) refuse(bytes);
    check(error, "allocate memory");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFreeAsync(memory, stream_); }

  void upload(void* to, const void* from, size_t bytes) override {
    use();
    for (size_t done = 0; done < bytes; done += kStageBytes) {
      const size_t count = std::min(kStageBytes, bytes - done);
      Stage& stage = stages_[next_stage_++ % 2];
      check(cudaEventSynchronize(stage.sent), "copy to the device");
      std::memcpy(stage.memory.data(), static_cast<const unsigned char*>(from) + done, count);
      check(cudaMemcpyAsync(static_cast<unsigned char*>(to) + done, stage.memory.data(), count, cudaMemcpyHostToDevice,
                            stream_),
            "copy to the device");
      check(cudaEventRecord(stage.sent, stream_), "copy to the device");
    }
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    use();
    Pinned memory = pinned(bytes);
    check(cudaMemcpyAsync(memory.data(), from, bytes, cudaMemcpyDeviceToHost, stream_), "copy from the device");
    coming_.push_back({to, bytes, std::move(memory)});
  }
  void wait() override {
    use();
    check(cudaStreamSynchronize(stream_), "finish its work");
    for (Coming& c : coming_) {
      std::memcpy(c.to, c.memory.data(), c.bytes);
      if (c.memory.bytes() <= kStageBytes) spare_.push_back(std::move(c.memory));
    }
    coming_.clear();
  }

  void forget() noexcept override {
    cudaSetDevice(ordinal_);
    cudaStreamSynchronize(stream_);
    coming_.clear();
  }

  void run(const SimpleKernel& kernel) override {
    use();
    std::visit([&](const auto& one) { start(one, stream_); }, kernel);
  }
  size_t most_shared_bytes() const override {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal_), "be asked");
    return size_t(bytes);
  }
  void attend(const AttendArgs& args, int32_t width, Grade grade, bool values) override {
    use();
    with_width(width, [&]<int kWidth> { OfWidth<kWidth>::attend(args, grade, values, stream_); });
  }
  void columns(const ColumnArgs& args, int32_t width, Grade grade, bool maxima) override {
    use();
    with_width(width, [&]<int kWidth> { OfWidth<kWidth>::columns(args, grade, maxima, stream_); });
  }

 private:
  struct Stage {
    Pinned memory;
    cudaEvent_t sent = nullptr;
  };
  struct Coming {
    void* to;
    size_t bytes;
    Pinned memory;
  };
  // A runtime serves one thread after the other.
  void use() const { check(cudaSetDevice(ordinal_), "be chosen"); }
  // A caller's tensors may still be computed: its library has ordered them before the default stream (DLPack).
  void follow_callers() const {
    cudaEvent_t ready = nullptr;
    check(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), "make an event");
    check(cudaEventRecord(ready, cudaStreamLegacy), "order its work");
    check(cudaStreamWaitEvent(stream_, ready, 0), "order its work");
    check(cudaEventDestroy(ready), "order its work");
  }
  void keep_freed_memory() const {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, ordinal_), "open its memory");
    uint64_t everything = ~uint64_t{0};
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything), "keep its memory");
  }
  [[noreturn]] void refuse(size_t bytes) const {
    cudaGetLastError();  // the error is reported; clear it for the next call
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw DeviceError(device() + " has no room for another " + mib(bytes) + " (" + mib(free) + " of " + mib(total) +
                      " free); take fewer jobs (-j), fewer methods a run, or --device cpu");
  }
  Pinned pinned(size_t bytes) {
    const auto fits = [&](const Pinned& p) { return p.bytes() >= bytes; };
    const auto better = [&](const Pinned& a, const Pinned& b) {
      return fits(a) != fits(b) ? fits(a) : a.bytes() < b.bytes();
    };
    const auto found = std::min_element(spare_.begin(), spare_.end(), better);
    if (found == spare_.end() || !fits(*found)) return Pinned(bytes);
    Pinned memory = std::move(*found);
    spare_.erase(found);
    return memory;
  }
  int ordinal_;
  cudaStream_t stream_ = nullptr;
  Stage stages_[2];
  size_t next_stage_ = 0;
  std::vector<Coming> coming_;
  std::vector<Pinned> spare_;
};

int device_count(std::string* problem) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (problem != nullptr)
    *problem = error == cudaSuccess || error == cudaErrorNoDevice ? "no NVIDIA GPU is visible"
               : error == cudaErrorInsufficientDriver
                   ? "the NVIDIA driver is missing, or older than this program's CUDA " +
                         std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10)
                   : std::string("CUDA says: ") + cudaGetErrorString(error);
  return 0;
}

}  // namespace

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  const int count = device_count(nullptr);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    const bool known = cudaGetDeviceProperties(&properties, i) == cudaSuccess;
    if (!known) cudaGetLastError();  // clear the error, which no other call should see
    if (!known || properties.major < kLeastCapability) continue;
    all.push_back({"cuda:" + std::to_string(i),
                   std::string(properties.name) + ", compute capability " + std::to_string(properties.major) + "." +
                       std::to_string(properties.minor) + ", " + mib(properties.totalGlobalMem)});
  }
  return all;
}

std::string why_not() {
  std::string problem;
  if (device_count(&problem) == 0) return problem;
  return "it is not among the GPUs of compute capability 8.0 and later";
}

std::unique_ptr<Runtime> open_runtime(int ordinal) { return std::make_unique<CudaRuntime>(ordinal); }

}  // namespace kvreplay::cuda
