#include "device/devices.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "base/errors.hpp"
#include "device/cuda/cuda_devices.hpp"
#include "device/head.hpp"

namespace kvreplay {
namespace {

using Open = std::function<std::unique_ptr<Runtime>()>;

std::vector<DeviceKind>& kinds() {
  static std::vector<DeviceKind> all{{"cuda", cuda::devices, cuda::why_not, cuda::open_runtime}};
  return all;
}

const DeviceKind* kind_of(const std::string& name) {
  const std::string word = name.substr(0, name.find(':'));
  const auto found =
      std::find_if(kinds().begin(), kinds().end(), [&](const DeviceKind& kind) { return kind.name == word; });
  return found == kinds().end() ? nullptr : &*found;
}

// Runtimes (each with a queue of work and its buffers) are opened once and used by one head after the other.
class RuntimePool {
 public:
  explicit RuntimePool(Open open) : open_(std::move(open)) {}
  std::unique_ptr<Runtime> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto runtime = std::move(idle_.back());
        idle_.pop_back();
        return runtime;
      }
    }
    return open_();
  }
  void give_back(std::unique_ptr<Runtime> runtime) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(runtime));
  }

 private:
  Open open_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Runtime>> idle_;
};

// A runtime of a pool; it returns to the pool with the handle.
class PoolHandle {
 public:
  explicit PoolHandle(std::shared_ptr<RuntimePool> pool) : pool_(std::move(pool)), runtime_(pool_->take()) {}
  ~PoolHandle() {
    if (runtime_ == nullptr) return;  // moved
    runtime_->forget();
    pool_->give_back(std::move(runtime_));
  }
  PoolHandle(PoolHandle&&) = default;
  PoolHandle& operator=(PoolHandle&&) = delete;
  Runtime& runtime() { return *runtime_; }

 private:
  std::shared_ptr<RuntimePool> pool_;
  std::unique_ptr<Runtime> runtime_;
};
// The order of the base classes matters: the head's memory is released before the runtime.
class PooledHead final : PoolHandle, public DeviceHead {
 public:
  PooledHead(PoolHandle handle, const HeadStream<float>& stream, Grade grade, Portion most)
      : PoolHandle(std::move(handle)), DeviceHead(runtime(), stream, grade, most) {}
};

Open opener(const std::string& name) {
  const std::string full = full_name(name);
  const std::vector<DeviceInfo> all = devices();
  if (std::none_of(all.begin(), all.end(), [&](const DeviceInfo& d) { return d.name == full; }))
    throw DeviceError("there is no device " + name + " here: " + why_not(name));
  const size_t colon = full.find(':');
  const int ordinal = colon == std::string::npos ? 0 : std::stoi(full.substr(colon + 1));
  return [open = kind_of(full)->open, ordinal] { return open(ordinal); };
}

}  // namespace

void add_device_kind(DeviceKind kind) { kinds().push_back(std::move(kind)); }

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  for (const DeviceKind& kind : kinds())
    for (DeviceInfo& device : kind.devices()) all.push_back(std::move(device));
  return all;
}

std::string full_name(const std::string& name) { return name == "cuda" ? "cuda:0" : name; }

std::string why_not(const std::string& name) {
  const DeviceKind* const kind = kind_of(name);
  return kind == nullptr ? "no kind of device has that name" : kind->why_not();
}

std::unique_ptr<Runtime> open_runtime(const std::string& name) { return opener(name)(); }

OpenHeadDevice open_device(const std::string& name) { return open_heads(opener(name)); }

OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open, Portion most) {
  return [pool = std::make_shared<RuntimePool>(std::move(open)), most](const HeadStream<float>& stream) {
    PoolHandle handle(pool);
    const std::optional<Grade> grade = DeviceHead::grade_for(handle.runtime(), stream);
    std::unique_ptr<HeadDevice> head;
    if (grade) head = std::make_unique<PooledHead>(std::move(handle), stream, *grade, most);
    return head;
  };
}

}  // namespace kvreplay
