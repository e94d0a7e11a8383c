#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "replay/read_ahead.hpp"

using namespace kvreplay;

TEST_CASE("items that are read ahead arrive in order, each once", "[read_ahead]") {
  ReadAhead<std::string> items(5, [](size_t i) { return std::to_string(i); });
  for (size_t i = 0; i < 5; ++i) {
    const auto next = items.next();
    REQUIRE(next);
    CHECK(next->first == i);
    CHECK(next->second == std::to_string(i));
  }
  CHECK_FALSE(items.next());
  CHECK_FALSE(items.next());
}

TEST_CASE("no more than one item is read ahead", "[read_ahead]") {
  std::atomic<int> loaded{0};
  ReadAhead<int> items(20, [&](size_t i) { return ++loaded, int(i); });
  for (int taken = 1; taken <= 10; ++taken) {
    REQUIRE(items.next());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(loaded <= taken + 1);
  }
}

TEST_CASE("many threads take every item once", "[read_ahead]") {
  ReadAhead<int> items(200, [](size_t i) { return int(i); });
  std::mutex mutex;
  std::multiset<int> taken;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      while (auto next = items.next()) {
        const std::lock_guard lock(mutex);
        taken.insert(next->second);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(taken.size() == 200);
  CHECK(std::set<int>(taken.begin(), taken.end()).size() == 200);
}

TEST_CASE("an unreadable item is reported after all earlier items, and then all threads stop", "[read_ahead]") {
  ReadAhead<int> items(10, [](size_t i) {
    if (i == 2) throw std::runtime_error("the third is broken");
    return int(i);
  });
  int taken = 0;
  std::string message;
  try {
    while (items.next()) ++taken;
  } catch (const std::runtime_error& e) {
    message = e.what();
  }
  CHECK(message == "the third is broken");
  CHECK(taken <= 2);
  CHECK_FALSE(items.next());
}

TEST_CASE("items read ahead but not taken are dropped", "[read_ahead]") {
  ReadAhead<int> items(10, [](size_t i) { return int(i); });
  CHECK(items.next());
}
