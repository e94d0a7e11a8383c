#include "apps/signals.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "apps/exit_codes.hpp"

namespace kvreplay::app {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};

// Some programs ask twice: `timeout` signals a process and then its group, which includes the process.
constexpr int64_t kOneRequestNs = 500'000'000;

std::atomic<int> received{0};
std::atomic<int64_t> asked_at_ns{0};  // 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "the handler touches nothing else");

int code_of(int signal) { return signal == SIGINT ? kInterrupted : kStoppedEarly; }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void handle(int signal) {
  const int64_t now = now_ns();
  int64_t first = 0;
  if (asked_at_ns.compare_exchange_strong(first, now)) received = signal;
  else if (now - first > kOneRequestNs) ::_exit(code_of(signal));
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  received = 0, asked_at_ns = 0;
  install(handle);
}
StopSignals::~StopSignals() { install(SIG_DFL); }
bool StopSignals::stop() { return received == SIGINT; }
bool StopSignals::drain() { return received != 0; }
int StopSignals::exit_code() { return code_of(received); }

}  // namespace kvreplay::app
