#include "base/threads.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace kvreplay;

TEST_CASE("each item is worked on once, for any number of threads") {
  for (const int threads : {0, 1, 2, 7}) {
    std::vector<int> times(100);
    FirstError error;
    for_each_on_threads(threads, times.size(), error, [&](size_t i) { ++times[i]; });
    CHECK(times == std::vector<int>(100, 1));
  }
}

TEST_CASE("an exception on any thread is rethrown in the calling thread and ends the work") {
  std::atomic<int> begun{0};
  FirstError error;
  CHECK_THROWS_WITH(for_each_on_threads(3, 100000, error,
                                        [&](size_t i) {
                                          ++begun;
                                          if (i == 10) throw std::runtime_error("item 10");
                                          // However the threads are scheduled, no item overtakes the error.
                                          while (i > 10 && !error.stopped()) std::this_thread::yield();
                                        }),
                    "item 10");
  CHECK(begun < 100000);
}

TEST_CASE("work without items starts nothing") {
  FirstError error;
  for_each_on_threads(2, 0, error, [](size_t) { FAIL("there is no item"); });
}
