#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "device/under_test.hpp"
#include "emulator/emulated_runtime.hpp"

// The emulator itself: it computes what a device computes, and finds mistakes that a device would not report.

using namespace kvreplay;
using namespace kvreplay::test;
using emulator::Schedule;

namespace {

using Catch::Matchers::Contains;

constexpr int kThreads = 64;  // two warps

// Runs kernel `body` in one block and returns the result of every thread.
template <class T, class Body>
std::vector<T> of_threads(Body body, Schedule schedule, size_t shared_bytes = 4096, int threads = kThreads) {
  std::vector<T> out(static_cast<size_t>(threads));
  T* const to = out.data();
  const auto kernel = [=](const Block auto& block) { to[block.thread()] = body(block); };
  emulator::launch(kernel, {1, threads, shared_bytes}, schedule);
  return out;
}
// As above, for a kernel that returns nothing.
template <class Body>
void launch(Body body, int threads = kThreads, size_t shared_bytes = 4096) {
  emulator::launch(body, {1, threads, shared_bytes}, Schedule::forward);
}

template <class T>
T* shared(const Block auto& block) {
  return reinterpret_cast<T*>(block.shared());
}

// True if the kernel returns equal results in all three orders of its threads.
template <class Body>
bool agrees(Body body) {
  const auto first = of_threads<int32_t>(body, Schedule::forward);
  return first == of_threads<int32_t>(body, Schedule::backward) &&
         first == of_threads<int32_t>(body, Schedule::shuffled);
}

std::vector<uint32_t> random_bits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> all(count);
  for (uint32_t& x : all) x = uint32_t(random());
  return all;
}
// Whole numbers from -8 to 8: sums of their products are exact, in any order.
std::vector<float> whole_numbers(size_t count, uint32_t seed) {
  std::vector<float> all;
  for (const uint32_t x : random_bits(count, seed)) all.push_back(float(int32_t(x % 17) - 8));
  return all;
}

enum class Wait { none, warp, block };

uint32_t pair_of(float low, float high) { return uint32_t(to_bf16(low)) | uint32_t(to_bf16(high)) << 16; }

}  // namespace

TEST_CASE("every thread of every block runs once, in any order", "[emulator]") {
  for (const Schedule schedule : kSchedules) {
    constexpr int kBlocks = 3, kWide = 96;
    std::vector<int32_t> runs(kBlocks * kWide);
    int32_t* const to = runs.data();
    const auto kernel = [=](const Block auto& block) {
      if (block.threads() == kWide) ++to[block.index() * kWide + block.thread()];
    };
    emulator::launch(kernel, {kBlocks, kWide, 0}, schedule);
    CHECK(std::count(runs.begin(), runs.end(), 1) == kBlocks * kWide);
  }
}

TEST_CASE("the three orders of threads are three", "[emulator]") {
  std::vector<int32_t> order;
  std::vector<int32_t>* const to = &order;
  const auto kernel = [=](const Block auto& block) { to->push_back(block.thread()); };
  std::vector<int32_t> ascending(kThreads);
  std::iota(ascending.begin(), ascending.end(), 0);
  const std::vector<int32_t> descending(ascending.rbegin(), ascending.rend());
  const auto order_of = [&](Schedule schedule) {
    order.clear();
    emulator::launch(kernel, {1, kThreads, 0}, schedule);
    return order;
  };
  CHECK(order_of(Schedule::forward) == ascending);
  CHECK(order_of(Schedule::backward) == descending);
  const std::vector<int32_t> shuffled = order_of(Schedule::shuffled);
  CHECK(std::is_permutation(shuffled.begin(), shuffled.end(), ascending.begin()));
  CHECK(shuffled != ascending);
  CHECK(shuffled != descending);
}

TEST_CASE("a block has whole warps", "[emulator]") {
  const auto nothing = [](const Block auto&) {};
  for (const int threads : {0, -32, 1, 31, 33, 48})
    CHECK_THROWS_WITH(launch(nothing, threads), Contains("whole warps"));
  CHECK_NOTHROW(launch(nothing, 32));
  CHECK_NOTHROW(launch(nothing, 1024));
}

TEST_CASE("a missing barrier gives results that depend on the order of threads", "[emulator]") {
  const auto swapped_with = [](int mask, Wait wait) {
    return [=](const Block auto& block) {
      int32_t* const numbers = shared<int32_t>(block);
      numbers[block.thread()] = 100 + block.thread();
      if (wait == Wait::warp) block.sync_warp();
      if (wait == Wait::block) block.sync();
      return numbers[block.thread() ^ mask];
    };
  };
  CHECK(agrees(swapped_with(5, Wait::warp)));
  CHECK(agrees(swapped_with(5, Wait::block)));
  CHECK_FALSE(agrees(swapped_with(5, Wait::none)));
  CHECK(agrees(swapped_with(37, Wait::block)));  // exchanged between warps
  CHECK_FALSE(agrees(swapped_with(37, Wait::warp)));
  const auto right = [](int32_t thread) { return 100 + (thread ^ 37); };
  const auto mine = of_threads<int32_t>(swapped_with(37, Wait::block), Schedule::shuffled);
  for (int32_t thread = 0; thread < kThreads; ++thread) CHECK(mine[size_t(thread)] == right(thread));
}

TEST_CASE("overwriting a number too early gives results that depend on the order of threads", "[emulator]") {
  const auto broadcast = [](Wait wait) {
    return [=](const Block auto& block) {
      int32_t* const number = shared<int32_t>(block);
      int32_t sum = 0;
      for (int32_t round = 1; round <= 2; ++round) {
        if (block.thread() == 0) *number = round;
        block.sync();
        sum = 10 * sum + *number;
        if (wait == Wait::block) block.sync();
        // A warp that synchronises only itself may still be ahead of another one.
        for (int i = 0; wait == Wait::warp && i < 3; ++i) block.sync_warp();
      }
      return sum;
    };
  };
  CHECK(of_threads<int32_t>(broadcast(Wait::block), Schedule::forward) == std::vector<int32_t>(kThreads, 12));
  CHECK(agrees(broadcast(Wait::block)));
  CHECK_FALSE(agrees(broadcast(Wait::warp)));
  CHECK_FALSE(agrees(broadcast(Wait::none)));
}

TEST_CASE("threads that wait at different barriers are an error", "[emulator]") {
  const auto complaint = Contains("different barriers");
  CHECK_THROWS_WITH(launch([](const Block auto& block) {
                      if (block.thread() != 7) block.sync();
                    }),
                    complaint);
  CHECK_THROWS_WITH(launch([](const Block auto& block) {
                      if (block.thread() % kWarp < 16) block.sync_warp();
                    }),
                    complaint);
  CHECK_THROWS_WITH(launch([](const Block auto& block) {
                      if (block.thread() < 32) block.sync_warp();
                      else block.sync();
                    }),
                    complaint);
  CHECK_THROWS_WITH(launch([](const Block auto& block) {
                      if (block.thread() != 40) block.shuffle_xor(1.0f, 1);
                    }),
                    complaint);
  CHECK_NOTHROW(launch([](const Block auto& block) {
    if (block.thread() < 32) block.sync_warp();
    block.sync();
  }));
}

TEST_CASE("an exception of a thread ends the launch and unwinds all threads", "[emulator]") {
  int alive = 0;
  struct Frame {
    int* alive;
    explicit Frame(int* count) : alive(count) { ++*alive; }
    ~Frame() { --*alive; }
  };
  const auto kernel = [&alive](const Block auto& block) {
    const Frame frame(&alive);
    if (block.thread() == 40) throw std::runtime_error("thread 40");
    block.sync();
  };
  for (int again = 0; again < 3; ++again) {
    CHECK_THROWS_WITH(launch(kernel), "thread 40");
    CHECK(alive == 0);
  }
}

TEST_CASE("unwritten memory is NaN", "[emulator]") {
  // A block does not see the shared memory of the block before it.
  std::vector<float> seen(2 * kThreads);
  float* const to = seen.data();
  const auto kernel = [=](const Block auto& block) {
    float* const numbers = shared<float>(block);
    to[block.index() * kThreads + block.thread()] = numbers[block.thread()];
    numbers[block.thread()] = 1;
  };
  emulator::launch(kernel, {2, kThreads, kThreads * sizeof(float)}, Schedule::forward);
  CHECK(std::all_of(seen.begin(), seen.end(), [](float x) { return std::isnan(x); }));

  const auto runtime = emulator::open_runtime(Schedule::forward);
  const DeviceArray<double> fresh(*runtime, 300);
  const std::vector<double> numbers = downloaded(*runtime, fresh);
  CHECK(std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isnan(x); }));
}

namespace {

// Each thread copies two groups of four numbers, waits until at most kUnderWay copy groups are pending, and returns the
// sum of one of the fours.
struct Copies {
  bool inside = true, commits_last = true, waits = true, syncs = false;
  bool reused = false;  // the target held numbers before
  int looks_at = 0;     // 0: the first four; 1: the second
  int mask = 0;         // the thread reads the copy of thread ^ mask
};
template <int kUnderWay>
std::vector<float> copied(const float* from, Copies how, Schedule schedule = Schedule::forward) {
  const auto body = [=](const Block auto& block) {
    float* const to = shared<float>(block);
    for (int i = 0; how.reused && i < 8; ++i) to[kThreads * i + block.thread()] = 1;
    block.sync();
    for (int i = 0; i < 2; ++i) {
      const int first = 4 * (i * kThreads + block.thread());
      block.copy_async(to + first, from + first, how.inside);
      if (i == 0 || how.commits_last) block.commit_copies();
    }
    if (how.waits) block.template wait_copies<kUnderWay>();
    if (how.syncs) block.sync();
    const float* const four = to + 4 * (how.looks_at * kThreads + (block.thread() ^ how.mask));
    return four[0] + four[1] + four[2] + four[3];
  };
  return of_threads<float>(body, schedule);
}

bool all_nan(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float number) { return std::isnan(number); });
}

// Numbers in device memory, and the sums that the copies must give.
struct Source {
  std::unique_ptr<Runtime> runtime = emulator::open_runtime(Schedule::forward);
  DeviceArray<float> memory = uploaded(*runtime, whole_numbers(8 * kThreads, 3));
  const float* data() const { return memory.data(); }
  std::vector<float> sums(Copies how) const {
    std::vector<float> all;
    for (int thread = 0; thread < kThreads; ++thread) {
      const float* const four = data() + 4 * (how.looks_at * kThreads + (thread ^ how.mask));
      all.push_back(std::accumulate(four, four + 4, 0.0f));
    }
    return all;
  }
};

}  // namespace

TEST_CASE("an asynchronous copy is NaN until it has been waited for", "[emulator]") {
  const Source from;
  const Copies first, second{.looks_at = 1};
  CHECK(copied<0>(from.data(), first) == from.sums(first));
  CHECK(copied<0>(from.data(), second) == from.sums(second));
  CHECK(copied<1>(from.data(), first) == from.sums(first));
  CHECK(all_nan(copied<1>(from.data(), second)));
  CHECK(all_nan(copied<2>(from.data(), first)));
  CHECK(all_nan(copied<0>(from.data(), {.waits = false})));
  CHECK(all_nan(copied<0>(from.data(), {.waits = false, .reused = true})));
  CHECK(copied<0>(from.data(), {.inside = false}) == std::vector<float>(kThreads, 0.0f));
}

TEST_CASE("waiting does not cover an asynchronous copy that was not committed", "[emulator]") {
  const Source from;
  CHECK(all_nan(copied<0>(from.data(), {.commits_last = false, .looks_at = 1})));
  CHECK(copied<0>(from.data(), {.commits_last = false}) == from.sums({}));
}

TEST_CASE("a copy of another thread is visible after a barrier", "[emulator]") {
  const Source from;
  for (const int mask : {1, 32}) {
    const Copies waits_for_all{.syncs = true, .mask = mask}, waits_for_itself{.mask = mask};
    bool all_there = true;
    for (const Schedule schedule : kSchedules) {
      CHECK(copied<0>(from.data(), waits_for_all, schedule) == from.sums(waits_for_all));
      all_there = all_there && copied<0>(from.data(), waits_for_itself, schedule) == from.sums(waits_for_itself);
    }
    CHECK_FALSE(all_there);
  }
}

TEST_CASE("writes outside the shared memory are an error", "[emulator]") {
  constexpr int kBytes = 48;
  const auto write = [](int at) {
    launch(
        [=](const Block auto& block) {
          if (block.thread() == 9) block.shared()[at] = 1;
        },
        kThreads, kBytes);
  };
  for (const int at : {-64, -1, kBytes, kBytes + 63})
    CHECK_THROWS_WITH(write(at), Contains("outside its shared memory"));
  for (const int at : {0, kBytes - 1}) CHECK_NOTHROW(write(at));
}

TEST_CASE("writes outside the memory of a device are an error", "[emulator]") {
  const auto complaint = Contains("outside the memory of the device");
  const auto runtime = emulator::open_runtime(Schedule::forward);
  const auto write = [&](size_t there, int offset) {  // 64 numbers
    const DeviceArray<float> from = filled(*runtime, 64, 1.0f);
    const DeviceArray<uint16_t> to(*runtime, there);
    runtime->run(PackKernel{from.data(), to.data() + offset, nullptr, 1, 64, 64});
    runtime->wait();
  };
  CHECK_NOTHROW(write(64, 0));
  CHECK_NOTHROW(write(66, 1));
  SECTION("after the end") CHECK_THROWS_WITH(write(63, 0), complaint);
  SECTION("before the beginning") CHECK_THROWS_WITH(write(64, -1), complaint);
  SECTION("in memory that is released before the device is waited for") {
    {
      const DeviceArray<float> from = filled(*runtime, 64, 1.0f);
      const DeviceArray<uint16_t> to(*runtime, 63);
      runtime->run(PackKernel{from.data(), to.data(), nullptr, 1, 64, 64});
    }
    CHECK_THROWS_WITH(runtime->wait(), complaint);
  }
}

TEST_CASE("a block cannot have more shared memory than a device has", "[emulator]") {
  const auto ask = [](size_t bytes) { launch([](const Block auto&) {}, kThreads, bytes); };
  CHECK_NOTHROW(ask(emulator::kMostSharedBytes));
  CHECK_THROWS_WITH(ask(emulator::kMostSharedBytes + 1), Contains("more shared memory"));
}

TEST_CASE("addresses that are not aligned to 16 bytes are an error", "[emulator]") {
  const Source from;
  const float* const data = from.data();
  const auto copy = [=](int from_bytes, int to_bytes) {
    launch([=](const Block auto& block) {
      const bool odd = block.thread() == 50;
      block.copy_async(block.shared() + 16 * block.thread() + (odd ? to_bytes : 0),
                       reinterpret_cast<const unsigned char*>(data + 4 * block.thread()) + (odd ? from_bytes : 0),
                       true);
      block.commit_copies();
      block.template wait_copies<0>();
    });
  };
  const auto load = [](int bytes, bool transposed) {
    launch([=](const Block auto& block) {
      const unsigned char* const row = block.shared() + 16 * block.thread() + (block.thread() == 50 ? bytes : 0);
      uint32_t m[4];
      if (transposed) block.load_matrices_transposed(m, row);
      else block.load_matrices(m, row);
    });
  };
  CHECK_NOTHROW(copy(0, 0));
  CHECK_NOTHROW(copy(16, 16));
  CHECK_NOTHROW(load(16, false));
  for (const int bytes : {2, 4, 8}) {
    CHECK_THROWS_WITH(copy(bytes, 0), Contains("source") && Contains("not aligned"));
    CHECK_THROWS_WITH(copy(0, bytes), Contains("target") && Contains("not aligned"));
    CHECK_THROWS_WITH(load(bytes, false), Contains("row of a matrix") && Contains("not aligned"));
    CHECK_THROWS_WITH(load(bytes, true), Contains("row of a matrix") && Contains("not aligned"));
  }
}

namespace {

// The places of numbers in the PTX manual (ISA 8, "Matrix Fragments for mma.m16n8k16" of .bf16 and "ldmatrix").
// Number i of a thread is half i % 2 of its register i / 2.
struct Place {
  int row, column;
};
Place place_in_a(int lane, int i) {  // i: 0..7
  const int group = lane >> 2, in_group = lane & 3;
  const bool first_rows = (0 <= i && i < 2) || (4 <= i && i < 6);
  return {first_rows ? group : group + 8, in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Place place_in_b(int lane, int i) {  // i: 0..3
  return {(lane & 3) * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2};
}
Place place_in_d(int lane, int i) {  // i: 0..3
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, (lane & 3) * 2 + (i & 1)};
}

template <int kRows, int kColumns>
using Matrix = std::array<std::array<float, kColumns>, kRows>;

template <int kRows, int kColumns>
Matrix<kRows, kColumns> drawn(uint32_t seed) {
  const std::vector<float> numbers = whole_numbers(kRows * kColumns, seed);
  Matrix<kRows, kColumns> m;
  for (int i = 0; i < kRows * kColumns; ++i) m[size_t(i / kColumns)][size_t(i % kColumns)] = numbers[size_t(i)];
  return m;
}
float at(const auto& matrix, Place p) { return matrix[size_t(p.row)][size_t(p.column)]; }

struct Fragments {  // one thread's part of the matrices
  uint32_t a[4], b[2];
  float d[4];
};
struct Product {  // one warp's matrices
  Matrix<16, 16> a;
  Matrix<16, 8> b, d;
  explicit Product(uint32_t seed) : a(drawn<16, 16>(seed)), b(drawn<16, 8>(seed + 1)), d(drawn<16, 8>(seed + 2)) {}
  Fragments fragments(int lane) const {
    Fragments f;
    for (int r = 0; r < 4; ++r) f.a[r] = pair_of(at(a, place_in_a(lane, 2 * r)), at(a, place_in_a(lane, 2 * r + 1)));
    for (int r = 0; r < 2; ++r) f.b[r] = pair_of(at(b, place_in_b(lane, 2 * r)), at(b, place_in_b(lane, 2 * r + 1)));
    for (int i = 0; i < 4; ++i) f.d[i] = at(d, place_in_d(lane, i));
    return f;
  }
  float sum(Place p) const {
    float s = at(d, p);
    for (int k = 0; k < 16; ++k) s += at(a, {p.row, k}) * at(b, {k, p.column});
    return s;
  }
};

using Four = std::array<float, 4>;

std::vector<Four> multiplied(const std::vector<Fragments>& fragments, Schedule schedule) {
  const Fragments* const of = fragments.data();
  return of_threads<Four>(
      [=](const Block auto& block) {
        Fragments f = of[block.thread()];
        block.multiply_add(f.d, f.a, f.b);
        return Four{f.d[0], f.d[1], f.d[2], f.d[3]};
      },
      schedule);
}

}  // namespace

TEST_CASE("a product of matrices equals plain loops, in every lane", "[emulator]") {
  const Product products[] = {Product(10), Product(20)};  // one per warp
  std::vector<Fragments> fragments;
  for (int thread = 0; thread < kThreads; ++thread)
    fragments.push_back(products[thread / kWarp].fragments(thread % kWarp));
  for (const Schedule schedule : kSchedules) {
    const std::vector<Four> d = multiplied(fragments, schedule);
    for (int thread = 0; thread < kThreads; ++thread)
      for (int i = 0; i < 4; ++i) {
        CAPTURE(thread, i);
        CHECK(d[size_t(thread)][size_t(i)] == products[thread / kWarp].sum(place_in_d(thread % kWarp, i)));
      }
  }
}

TEST_CASE("a NaN reaches its row or column of a product, and no other", "[emulator]") {
  Product in_a(30), in_b(40);
  in_a.a[11][6] = NAN, in_b.b[13][5] = NAN;
  std::vector<Fragments> fragments;
  for (int thread = 0; thread < kThreads; ++thread)
    fragments.push_back((thread < kWarp ? in_a : in_b).fragments(thread % kWarp));
  const std::vector<Four> d = multiplied(fragments, Schedule::forward);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int i = 0; i < 4; ++i) {
      const Place p = place_in_d(thread % kWarp, i);
      CAPTURE(thread, i);
      CHECK(std::isnan(d[size_t(thread)][size_t(i)]) == (thread < kWarp ? p.row == 11 : p.column == 5));
    }
}

TEST_CASE("four matrices are loaded into the places of the manual", "[emulator]") {
  // Rows of 8 numbers; each warp's rows are anywhere in shared memory.
  const std::vector<uint32_t> numbers = random_bits(4 * kThreads, 50);
  std::vector<int32_t> row_of(kThreads);
  std::iota(row_of.begin(), row_of.end(), 0);
  std::shuffle(row_of.begin(), row_of.end(), std::mt19937(51));
  const uint32_t* const from = numbers.data();
  const int32_t* const rows = row_of.data();
  const auto number = [&](int warp, int matrix, int row, int column) {  // a 16-bit number
    const uint32_t pair = from[4 * rows[warp * kWarp + 8 * matrix + row] + column / 2];
    return column % 2 == 0 ? pair & 0xffffu : pair >> 16;
  };
  for (const Schedule schedule : kSchedules)
    for (const bool transposed : {false, true}) {
      const auto loaded = of_threads<std::array<uint32_t, 4>>(
          [=](const Block auto& block) {
            uint32_t* const to = shared<uint32_t>(block);
            for (int i = 0; i < 4; ++i) to[4 * block.thread() + i] = from[4 * block.thread() + i];
            block.sync();
            uint32_t m[4];
            if (transposed) block.load_matrices_transposed(m, to + 4 * rows[block.thread()]);
            else block.load_matrices(m, to + 4 * rows[block.thread()]);
            return std::array<uint32_t, 4>{m[0], m[1], m[2], m[3]};
          },
          schedule);
      for (int thread = 0; thread < kThreads; ++thread)
        for (int i = 0; i < 4; ++i) {
          const int warp = thread / kWarp, across = thread % kWarp >> 2, along = (thread & 3) * 2;
          const uint32_t low = transposed ? number(warp, i, along, across) : number(warp, i, across, along),
                         high = transposed ? number(warp, i, along + 1, across) : number(warp, i, across, along + 1);
          CAPTURE(transposed, thread, i);
          CHECK(loaded[size_t(thread)][size_t(i)] == (low | high << 16));
        }
    }
}

namespace {

template <class T>
void check_shuffles(const std::vector<T>& numbers, Schedule schedule) {
  const T* const of = numbers.data();
  // All shuffles follow each other without a barrier.
  using All = std::array<T, kWarp>;
  const auto got = of_threads<All>(
      [=](const Block auto& block) {
        All all;
        for (int mask = 0; mask < kWarp; ++mask)
          all[size_t(mask)] = block.shuffle_xor(of[kThreads * mask + block.thread()], mask);
        return all;
      },
      schedule);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int mask = 0; mask < kWarp; ++mask)
      CHECK(got[size_t(thread)][size_t(mask)] == numbers[size_t(kThreads * mask + (thread ^ mask))]);
}

}  // namespace

TEST_CASE("a shuffle gives every lane the other lane's number", "[emulator]") {
  const std::vector<uint32_t> bits = random_bits(kThreads * kWarp, 60);
  for (const Schedule schedule : kSchedules) {
    check_shuffles(std::vector<int32_t>(bits.begin(), bits.end()), schedule);
    check_shuffles(std::vector<float>(bits.begin(), bits.end()), schedule);
    check_shuffles(std::vector<double>(bits.begin(), bits.end()), schedule);
  }
}

TEST_CASE("an atomic addition returns the value before it to each thread", "[emulator]") {
  constexpr int kCounters = 5, kRounds = 8;
  const std::vector<uint32_t> drawn = random_bits(kThreads * kRounds, 80);
  std::vector<int32_t> amounts;
  for (const uint32_t x : drawn) amounts.push_back(int32_t(x % 2001) - 1000);
  const int32_t* const of = amounts.data();
  struct Seen {
    std::array<int32_t, kRounds> before;
    std::array<int32_t, kCounters> end;
  };
  for (const Schedule schedule : kSchedules) {
    const auto seen = of_threads<Seen>(
        [=](const Block auto& block) {
          int32_t* const counters = shared<int32_t>(block);
          if (block.thread() < kCounters) counters[block.thread()] = 7;
          block.sync();
          Seen mine;
          for (int i = 0; i < kRounds; ++i) {
            const int at = kThreads * i + block.thread();
            mine.before[size_t(i)] = block.atomic_add(counters + at % kCounters, of[at]);
            if (i == kRounds / 2) block.sync();
          }
          block.sync();
          for (int c = 0; c < kCounters; ++c) mine.end[size_t(c)] = counters[c];
          return mine;
        },
        schedule);
    for (int c = 0; c < kCounters; ++c) {
      // In any order, the value after each addition is the value before another one, or the final sum.
      std::vector<int32_t> begins{}, ends{7};
      int32_t sum = 7;
      for (int at = c; at < kThreads * kRounds; at += kCounters) {
        const int32_t before = seen[size_t(at % kThreads)].before[size_t(at / kThreads)];
        begins.push_back(before), ends.push_back(before + amounts[size_t(at)]);
        sum += amounts[size_t(at)];
      }
      begins.push_back(sum);
      std::sort(begins.begin(), begins.end()), std::sort(ends.begin(), ends.end());
      CHECK(begins == ends);
      for (const Seen& s : seen) CHECK(s.end[size_t(c)] == sum);
    }
  }
}

TEST_CASE("a power of two is within 2^-21 of itself", "[emulator]") {
  for (const float x : {-140.5f, -30.25f, -1.0f, -0.3f, 0.0f, 0.7f, 3.0f, 100.1f}) {
    const float mine =
        of_threads<float>([=](const Block auto& block) { return block.exp2(x); }, Schedule::forward, 0, kWarp)[0];
    const double right = std::exp2(double(x));
    CAPTURE(x);
    CHECK(std::abs(double(mine) - right) <= std::max(0x1p-21 * right, 0x1p-126));
  }
}
