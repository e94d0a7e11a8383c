#include "bench_device.hpp"

#include <fmt/format.h>

#include <mutex>

#include "backend/device_exact.hpp"
#include "backend/devices.hpp"
#include "backend/runtime.hpp"

namespace kvreplay::app {
namespace {

// A device's copy of the exact rows, one pass at a time.
struct ExactRows {
  ExactRows(const std::string& device, const HeadStream<float>& stream)
      : exact(open_runtime(device), stream) {}
  std::mutex mutex;
  DeviceExact exact;
  void pass() {
    const std::lock_guard lock(mutex);
    exact.pass();
  }
};

}  // namespace

void add_device(BenchPlan& plan, const Subject& subject, const std::string& device) {
  const HeadStream<float>& s = subject.stream;
  const auto on_device = [&](const std::string& name) { return name + ", " + device; };
  const auto beside_core = [&](const std::string& name, bool of_times) {
    plan.ratios.push_back({fmt::format("{}: one core / {}", name, device), of_times ? name : on_device(name),
                           of_times ? on_device(name) : name, "", of_times});
  };
  const auto rows = std::make_shared<ExactRows>(device, s);
  plan.entries.push_back(
      {{on_device(kExactPass), [rows] { rows->pass(); }, Clock::wall}, exact_operations(s), kGigaflops});
  beside_core(kExactPass, false);

  RunOptions options = subject.options;
  options.device = open_device(device);
  const auto add = [&](const std::string& name, std::vector<Cell> cells) {
    const auto replay = [&subject, options, cells = std::move(cells)] {
      replay_cells(subject, cells, options);
    };
    plan.entries.push_back({{on_device(name), replay, Clock::wall}, tokens_and_heads(s), kMicroseconds});
    beside_core(name, true);
  };
  for (size_t m = 0; m < subject.methods.size(); ++m) add(count_name(subject, m), subject.chosen(m, {}));
  add(kEverything, subject.cells);
  plan.ratios.push_back(
      {on_device("everything / exact pass"), on_device(kEverything), on_device(kExactPass), "", true});
}

}  // namespace kvreplay::app
