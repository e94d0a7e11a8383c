#include "backend/devices.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "backend/cuda/cuda_devices.hpp"
#include "backend/device_head.hpp"
#include "backend/emulator/emulated_devices.hpp"
#include "base/errors.hpp"

namespace kvreplay {
namespace {

using Open = std::function<std::unique_ptr<Runtime>()>;

// Runtimes (a queue of work and its buffers each) are opened once and lent to one head after the other.
class Pool {
 public:
  explicit Pool(Open open) : open_(std::move(open)) {}
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
  void give(std::unique_ptr<Runtime> runtime) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(runtime));
  }

 private:
  Open open_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Runtime>> idle_;
};

// A head and the runtime that it was lent.
class Lease {
 protected:
  explicit Lease(std::shared_ptr<Pool> pool) : pool_(std::move(pool)), runtime_(pool_->take()) {}
  ~Lease() {
    runtime_->forget();
    pool_->give(std::move(runtime_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Runtime& runtime() { return *runtime_; }

 private:
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Runtime> runtime_;
};
// The order of its parts matters: the head's memory goes before the runtime does.
class LentHead final : Lease, public DeviceHead {
 public:
  LentHead(std::shared_ptr<Pool> pool, const HeadStream<float>& stream)
      : Lease(std::move(pool)), DeviceHead(runtime(), stream) {}
};

Open opener(const std::string& name) {
  const std::string full = full_name(name), prefix = "cuda:";
  const std::vector<DeviceInfo> all = devices();
  if (std::none_of(all.begin(), all.end(), [&](const DeviceInfo& d) { return d.name == full; }))
    throw DeviceError("there is no device " + name + " here: " + why_not(name));
  if (!full.starts_with(prefix)) return [] { return emulator::open_runtime(); };
  return [ordinal = std::stoi(full.substr(prefix.size()))] { return cuda::open_runtime(ordinal); };
}

}  // namespace

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all = cuda::devices();
  for (DeviceInfo& device : emulator::devices()) all.push_back(std::move(device));
  return all;
}

std::string full_name(const std::string& name) { return name == "cuda" ? "cuda:0" : name; }

std::string why_not(const std::string& name) {
  return name.starts_with("cuda") ? cuda::why_not() : emulator::why_not();
}

std::unique_ptr<Runtime> open_runtime(const std::string& name) { return opener(name)(); }

OpenHeadDevice open_device(const std::string& name) { return open_heads(opener(name)); }

OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open) {
  return [pool = std::make_shared<Pool>(std::move(open))](const HeadStream<float>& stream) {
    return std::unique_ptr<HeadDevice>(std::make_unique<LentHead>(pool, stream));
  };
}

}  // namespace kvreplay
