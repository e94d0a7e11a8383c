#include "emulator/emulated_block.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "emulator/emulated_fiber.hpp"

namespace kvreplay::emulator {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kGuardByte = 0xA5, kFreshByte = 0xFF;  // floats of 0xFF bytes are NaN

}  // namespace

// Threads arrive at a rendezvous; it opens when all are there.
struct Rendezvous {
  int arrived = 0;
  uint64_t opened = 0;
  bool open(int members) {
    if (arrived < members) return false;
    arrived = 0, ++opened;
    return true;
  }
};

struct Copy {
  void* to;
  const void* from;
};

struct Threads::Impl {
  struct Thread {
    Fiber fiber;
    const Rendezvous* at = nullptr;  // where the thread waits, or last waited
    uint64_t opened_before = 0;
    int turn = 0;
    std::vector<Copy> copies;    // started copies, the oldest first
    std::vector<size_t> groups;  // ends of the committed groups among them
    unsigned char slots[2][kSlot];
    bool may_run() const { return fiber.alive() && (at == nullptr || at->opened != opened_before); }
  };
  std::vector<Thread> threads;
  std::vector<Rendezvous> warps;
  Rendezvous block;
  std::vector<int> warp_order, lane_order;
  Schedule schedule;
  std::unique_ptr<unsigned char[]> memory;  // guard, shared memory, guard
  size_t shared_bytes = 0;
  int running = 0, live = 0;
  int64_t barriers = 0;
  std::string unaligned;  // names the access that is not at a multiple of 16 bytes
  uint32_t shuffle = 1;

  void meet(Rendezvous& at) {
    Thread& t = threads[size_t(running)];
    ++at.arrived;
    t.at = &at, t.opened_before = at.opened;
    t.fiber.pause();
  }
  // Returns false if the thread waits or has ended.
  bool run_thread(int thread) {
    Thread& t = threads[size_t(thread)];
    if (!t.may_run()) return false;
    running = thread;
    t.fiber.resume();
    if (!t.fiber.alive()) --live;
    return true;
  }
  // Runs a warp as far as it gets without the other warps, so that only a barrier of the block keeps warps together.
  // Returns false if no thread could run.
  bool run_warp(int warp) {
    bool ran = false;
    do {
      reorder(lane_order);
      for (const int lane : lane_order) ran = run_thread(warp * kWarp + lane) || ran;
    } while (warps[size_t(warp)].open(kWarp));
    return ran;
  }
  void run_threads(int64_t index) {
    live = int(threads.size());
    while (live > 0) {
      bool ran = false;
      reorder(warp_order);
      for (const int warp : warp_order) ran = run_warp(warp) || ran;
      if (block.open(int(threads.size()))) ++barriers;
      else if (!ran)
        throw std::logic_error("threads of block " + std::to_string(index) + " wait at different barriers");
    }
  }
  void reorder(std::vector<int>& order) {
    if (schedule != Schedule::shuffled) return;
    for (size_t i = order.size(); i > 1; --i) {
      shuffle = shuffle * 1664525u + 1013904223u;
      std::swap(order[i - 1], order[(shuffle >> 8) % i]);
    }
  }
};

Threads::Threads(const LaunchShape& shape, Schedule schedule) : shape_(shape), impl_(new Impl) {
  if (shape.threads <= 0 || shape.threads % kWarp != 0)
    throw std::logic_error("a block has whole warps, not " + std::to_string(shape.threads) + " threads");
  impl_->schedule = schedule;
  impl_->threads = std::vector<Impl::Thread>(size_t(shape.threads));
  impl_->warp_order.resize(size_t(shape.threads / kWarp)), impl_->lane_order.resize(kWarp);
  for (std::vector<int>* const order : {&impl_->warp_order, &impl_->lane_order}) {
    std::iota(order->begin(), order->end(), 0);
    if (schedule == Schedule::backward) std::reverse(order->begin(), order->end());
  }
  impl_->shared_bytes = shape.shared_bytes;
  impl_->memory.reset(new unsigned char[shape.shared_bytes + 2 * kGuard]);
}
Threads::~Threads() = default;

void Threads::run(int64_t index, const std::function<void(int)>& body) {
  Impl& s = *impl_;
  index_ = index;
  s.warps.assign(size_t(shape_.threads / kWarp), {});
  s.block = {};
  unsigned char* const begin = s.memory.get();
  unsigned char* const end = begin + kGuard + s.shared_bytes;
  std::fill(begin, begin + kGuard, kGuardByte);
  std::fill(begin + kGuard, end, kFreshByte);
  std::fill(end, end + kGuard, kGuardByte);
  for (int t = 0; t < shape_.threads; ++t) {
    Impl::Thread& thread = s.threads[size_t(t)];
    thread.turn = 0, thread.copies.clear(), thread.groups.clear();
    thread.at = nullptr;
    thread.fiber.start([&body, t] { body(t); });
  }
  try {
    s.run_threads(index);
  } catch (...) {
    for (Impl::Thread& thread : s.threads) thread.fiber.leave();  // the body's objects still exist
    throw;
  }
  if (!s.unaligned.empty()) throw std::logic_error(s.unaligned + " is not aligned to 16 bytes");
  const auto touched = [](const unsigned char* guard) {
    return std::any_of(guard, guard + kGuard, [](unsigned char x) { return x != kGuardByte; });
  };
  if (touched(begin) || touched(end))
    throw std::logic_error("block " + std::to_string(index) + " wrote outside its shared memory");
}

void Threads::wait_for_warp(int thread) {
  impl_->threads[size_t(thread)].turn ^= 1;
  impl_->meet(impl_->warps[size_t(thread / kWarp)]);
}
void Threads::wait_for_block() { impl_->meet(impl_->block); }

int64_t Threads::barriers() const { return impl_->barriers; }

unsigned char* Threads::slot(int thread, int turn) { return impl_->threads[size_t(thread)].slots[turn]; }
int Threads::turn(int thread) const { return impl_->threads[size_t(thread)].turn; }
void Threads::report_misalignment(const char* what) { impl_->unaligned = what; }
void Threads::start_copy(int thread, void* to, const void* from) {
  std::memset(to, kFreshByte, 16);
  impl_->threads[size_t(thread)].copies.push_back({to, from});
}
void Threads::commit_copies(int thread) {
  Impl::Thread& t = impl_->threads[size_t(thread)];
  t.groups.push_back(t.copies.size());
}
void Threads::finish_copies(int thread, int but_last_groups) {
  Impl::Thread& t = impl_->threads[size_t(thread)];
  if (int(t.groups.size()) <= but_last_groups) return;
  const auto last = t.groups.end() - but_last_groups - 1;
  const size_t done = *last;
  for (size_t i = 0; i < done; ++i) {
    if (t.copies[i].from == nullptr) std::memset(t.copies[i].to, 0, 16);
    else std::memcpy(t.copies[i].to, t.copies[i].from, 16);
  }
  t.copies.erase(t.copies.begin(), t.copies.begin() + int64_t(done));
  t.groups.erase(t.groups.begin(), last + 1);
  for (size_t& end : t.groups) end -= done;
}
unsigned char* Threads::shared() { return impl_->memory.get() + kGuard; }

}  // namespace kvreplay::emulator
