#include "emulator/emulated_runtime.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>

#include "device/kernels_of.hpp"

namespace kvreplay::emulator {
namespace {

constexpr size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xA5, kFreshByte = 0xFF;

class EmulatedRuntime final : public Runtime {
  void start(const auto& kernel) { work_.barriers += launch(kernel, kernel.shape(), schedule_), ++work_.launches; }
  auto starter() {
    return [this](const auto& kernel) { start(kernel); };
  }

 public:
  EmulatedRuntime(Schedule schedule, Work* work) : schedule_(schedule), work_(work == nullptr ? own_work_ : *work) {}
  ~EmulatedRuntime() override {
    for (const auto& [memory, bytes] : held_) free_block(memory);
  }
  std::string device() const override { return "emulated"; }
  void* allocate(size_t bytes) override {
    const size_t whole = (bytes + 2 * kGuard + kGuard - 1) / kGuard * kGuard;
    auto* const block = static_cast<unsigned char*>(std::aligned_alloc(kGuard, whole));
    if (block == nullptr) throw std::bad_alloc();
    std::fill_n(block, kGuard, kGuardByte);
    std::fill_n(block + kGuard, bytes, kFreshByte);
    std::fill(block + kGuard + bytes, block + whole, kGuardByte);
    held_[block + kGuard] = bytes;
    return block + kGuard;
  }
  void release(void* memory) noexcept override {
    const auto found = held_.find(static_cast<unsigned char*>(memory));
    if (found == held_.end()) return;
    overrun_ = overrun_ || !intact(*found);
    free_block(found->first);
    held_.erase(found);
  }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void wait() override {
    for (const auto& block : held_) overrun_ = overrun_ || !intact(block);
    if (overrun_) throw std::logic_error("a kernel wrote outside the memory of the device");
  }
  void forget() noexcept override {}
  void run(const SimpleKernel& kernel) override {
    std::visit([&](const auto& one) { start(one); }, kernel);
  }
  size_t most_shared_bytes() const override { return kMostSharedBytes; }
  void attend(const AttendArgs& args, int32_t width, Grade grade, bool values) override {
    with_width(width, [&]<int kWidth> { launch_attend<kWidth>(args, grade, values, starter()); });
  }
  void columns(const ColumnArgs& args, int32_t width, Grade grade, bool maxima) override {
    with_width(width, [&]<int kWidth> { launch_columns<kWidth>(args, grade, maxima, starter()); });
  }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    work_.copied += int64_t(bytes);
  }
  static bool intact(const std::pair<unsigned char* const, size_t>& block) {
    const auto whole = [](const unsigned char* guard) {
      return std::all_of(guard, guard + kGuard, [](unsigned char x) { return x == kGuardByte; });
    };
    return whole(block.first - kGuard) && whole(block.first + block.second);
  }
  static void free_block(unsigned char* memory) { std::free(memory - kGuard); }
  Schedule schedule_;
  Work own_work_;
  Work& work_;
  std::map<unsigned char*, size_t> held_;
  bool overrun_ = false;
};

}  // namespace

std::unique_ptr<Runtime> open_runtime(Schedule schedule, Work* work) {
  return std::make_unique<EmulatedRuntime>(schedule, work);
}

}  // namespace kvreplay::emulator
