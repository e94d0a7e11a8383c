#include "tests/bench/rates/device.hpp"

#include <fmt/core.h>

#include <mutex>

#include "device/devices.hpp"
#include "device/head.hpp"

namespace kvreplay::app {
namespace {

// Computes exact rows of a head on a device repeatedly, with keys, values and queries staying in its memory. This
// measures the kernels without copies.
class ExactRows final : DeviceHead {
 public:
  // The rows of all tokens after the prompt that have a query.
  ExactRows(Runtime& runtime, const HeadStream<float>& stream)
      : DeviceHead(runtime, stream, grade_for(runtime, stream).value()),
        queue_(runtime),
        rows_(load_rows(rows_of(stream))),
        lists_({}, rows_.tokens, stream.prompt, stream.shape.heads),
        keys_(lists_.upload(runtime)),
        sums_(make_sums(lists_.parts(), rows_.tokens.size(), true)) {}
  // Computes outputs, largest logits, normalisers and ||p||_2 of every row and waits for them. One thread at a time;
  // others wait.
  void pass() {
    const std::lock_guard lock(mutex_);
    const Exact exact = attend(rows_, keys_, sums_, true);
    queue_.wait();
  }

 private:
  static std::vector<int32_t> rows_of(const HeadStream<float>& stream) {
    std::vector<int32_t> tokens;
    for (int32_t t = stream.prompt; t < stream.tokens; ++t)
      if (stream.query_row[size_t(t)] >= 0) tokens.push_back(t);
    return tokens;
  }
  Runtime& queue_;
  const Rows& rows_;
  KeyLists lists_;
  KeyLists::OnDevice keys_;
  Sums sums_;
  std::mutex mutex_;
};

// A device's queue and its user.
struct Opened {
  Opened(const std::string& device, const HeadStream<float>& stream)
      : runtime(open_runtime(device)), exact(*runtime, stream) {}
  std::unique_ptr<Runtime> runtime;
  ExactRows exact;
};

}  // namespace

void add_device(BenchPlan& plan, const Subject& subject, const std::string& device) {
  const HeadStream<float>& s = subject.stream;
  const auto on_device = [&](const std::string& name) { return name + ", " + device; };
  const auto compare_with_core = [&](const std::string& name, bool of_times) {
    plan.ratios.push_back({fmt::format("{}: one core / {}", name, device), of_times ? name : on_device(name),
                           of_times ? on_device(name) : name, "", of_times});
  };
  const auto opened = std::make_shared<Opened>(device, s);
  plan.entries.push_back(
      {{on_device(kExactPass), [opened] { opened->exact.pass(); }, Clock::wall}, exact_operations(s), kGigaflops});
  compare_with_core(kExactPass, false);

  RunOptions options = subject.options;
  options.device = open_device(device);
  const auto add = [&](const std::string& name, std::vector<Cell> cells) {
    const auto replay = [&subject, options, cells = std::move(cells)] { replay_cells(subject, cells, options); };
    plan.entries.push_back({{on_device(name), replay, Clock::wall}, tokens_and_heads(s), kMicroseconds});
    compare_with_core(name, true);
  };
  for (size_t m = 0; m < subject.methods.size(); ++m) add(name_with_count(subject, m), subject.chosen(m, {}));
  add(kEverything, subject.cells);
  plan.ratios.push_back(
      {on_device("everything / exact pass"), on_device(kEverything), on_device(kExactPass), "", true});
}

}  // namespace kvreplay::app
