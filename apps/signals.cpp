#include "apps/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "apps/exit_codes.hpp"

namespace kvreplay::app {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler touches nothing else");

int code_of(int signal) { return signal == SIGINT ? kInterrupted : kStoppedEarly; }

void handle(int signal) {
  int none = 0;
  if (!received.compare_exchange_strong(none, signal)) ::_exit(code_of(signal));
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
  received = 0;
  install(handle);
}
StopSignals::~StopSignals() { install(SIG_DFL); }
bool StopSignals::stop() { return received == SIGINT; }
bool StopSignals::drain() { return received != 0; }
int StopSignals::exit_code() { return code_of(received); }

}  // namespace kvreplay::app
