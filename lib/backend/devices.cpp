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
class LentHead final : public HeadDevice {
 public:
  LentHead(std::shared_ptr<Pool> pool, const HeadStream<float>& stream)
      : pool_(std::move(pool)),
        runtime_(pool_->take()),
        head_(std::make_unique<DeviceHead>(*runtime_, stream)) {}
  ~LentHead() override {
    head_.reset();  // its memory goes before the runtime does
    runtime_->forget();
    pool_->give(std::move(runtime_));
  }
  std::vector<std::vector<double>> prompt_sums(const std::vector<int32_t>& from, bool maxima) override {
    return head_->prompt_sums(from, maxima);
  }
  std::vector<double> future_sums(const std::vector<int32_t>& rows) override {
    return head_->future_sums(rows);
  }
  bool fits(const ScoreRule& rule, int32_t heads) const override { return head_->fits(rule, heads); }
  std::vector<Departures> departures(const std::vector<ScoredCache>& chains) override {
    return head_->departures(chains);
  }
  void evaluate(const std::vector<HeldTokens>& caches, const Asked& asked,
                const std::function<void(const DeviceRows&)>& take) override {
    head_->evaluate(caches, asked, take);
  }
  bool replays(const ChainPrograms& programs, const HeadShape& shape) const override {
    return head_->replays(programs, shape);
  }
  std::vector<ChainRecord> replay(const std::vector<ChainOrder>& orders, const Asked& asked,
                                  const std::function<void(const DeviceRows&)>& take) override {
    return head_->replay(orders, asked, take);
  }

 private:
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<DeviceHead> head_;
};

}  // namespace

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all = cuda::devices();
  for (DeviceInfo& device : emulator::devices()) all.push_back(std::move(device));
  return all;
}

std::string why_not(const std::string& name) {
  return name.starts_with("cuda") ? cuda::why_not() : emulator::why_not();
}

OpenHeadDevice open_device(const std::string& name) {
  const std::string full = name == "cuda" ? "cuda:0" : name;
  const std::vector<DeviceInfo> all = devices();
  if (std::none_of(all.begin(), all.end(), [&](const DeviceInfo& d) { return d.name == full; }))
    throw DeviceError("there is no device " + name + " here: " + why_not(name));
  const Open open = full.starts_with("cuda:")
                        ? Open([ordinal = std::stoi(full.substr(5))] { return cuda::open_runtime(ordinal); })
                        : Open([] { return emulator::open_runtime(); });
  return open_heads(open);
}

OpenHeadDevice open_heads(std::function<std::unique_ptr<Runtime>()> open) {
  return [pool = std::make_shared<Pool>(std::move(open))](const HeadStream<float>& stream) {
    return std::unique_ptr<HeadDevice>(std::make_unique<LentHead>(pool, stream));
  };
}

}  // namespace kvreplay
