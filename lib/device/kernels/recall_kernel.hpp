#pragma once
#include "core/layer_window.hpp"
#include "device/kernels/attend_kernel.hpp"
#include "measures/row_result.hpp"

// Recalls: how many of the m tokens that a row of a cache attends to are among the row's m best tokens, and how much
// probability the m best hold (measures.md, section 2; on the CPU measures/set_measures.hpp).
//
// The probabilities of some rows are in memory (ProbabilityKernel). A block takes one row, and sorts nothing. Tokens
// are counted by the leading digits of their probabilities, once for all caches. For every set size, the last token of
// the best set is then searched among the tokens whose leading digit leaves that open. The order is that of convention
// C8, larger probability first, then smaller token; each token has one number, its place. Counts are integers and sums
// run in a fixed order, so results do not depend on the order of threads.

namespace kvreplay {

// A cache: a list of tokens, where rows of its part are those of the whole launch (row r looks at spans[r / 64]).
constexpr int32_t kNoRun = 1 << 30;  // no token is that far
struct RecallCache {
  AttendPart part;
  int32_t later_from;  // and every token from this one up to a row's own; or kNoRun
  int32_t by_head;     // 0: its heads rank by the mean over all heads of the stream; 1: each by its own
  int64_t first_row;   // first row of its results, [part.heads, rows]
};

struct RecallArgs {
  const float* p;             // [planes, count, pitch], output of ProbabilityKernel
  const int32_t* row_token;   // [rows]
  const RecallCache* caches;  // planes 1..heads must be there if one of them has by_head
  // For each cache, [heads, rows]: top_mass (sum of the m largest probabilities, for a row that attends to m tokens)
  // and index_recall (share of the m tokens that are among the m best) of rows first..first + count - 1. Rows that
  // attend to nothing are left unchanged.
  RowResult* results;
  int32_t rows, caches_count;
  int32_t first, count, planes, pitch;
  LayerWindow window;
};

struct RecallKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kRowTile = 64;
  static constexpr int kDigits = 2048, kDigitsEach = kDigits / kThreads;
  static constexpr int kCaches = kThreads, kCandidates = kThreads;  // at a time: each thread has one
  // The first digit: the exponent from 2^-63 on and 5 bits of the mantissa. Smaller numbers have digit 0. The last
  // digit includes NaN, which is thus larger than any number.
  static constexpr int kDigitShift = 18;
  static constexpr int32_t kDigitFloor = 64 << 5;

  struct Found {  // a digit: number of tokens with larger ones, and with this one
    int32_t digit, above, count;
  };
  struct Shared {
    uint64_t candidates[kCandidates];
    uint64_t last_place;
    uint64_t last[kCaches];  // place of the last token of the best set, for models
    double sums[kWarps];
    double mass[kCaches];    // mass of the best set, for models
    int32_t size[kCaches];   // m; -1: the cache uses another ranking
    int32_t model[kCaches];  // the first cache of the same size
    int32_t above[kDigits];  // by slot(): tokens with larger first digits in this ranking
    int32_t counts[kDigits];
    int32_t totals[kWarps];
    Found found;
    int32_t candidates_count;
  };
  // Tokens of one row in their order: a larger place comes first.
  struct Ranking {
    const float* p;
    int32_t tokens, head;  // head: -1: the mean of all
    int token_bits;
    KVR_DEVICE uint64_t place(int32_t token) const {
      return uint64_t(float_bits(p[token])) << token_bits | ((uint64_t(1) << token_bits) - 1 - uint64_t(token));
    }
  };
  struct Range {  // range of places
    uint64_t begin, size;
    int shift;  // from a distance to `begin` to its digit
  };

  RecallArgs a;

  LaunchShape shape() const { return {a.count, kThreads, sizeof(Shared)}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int32_t row = int32_t(block.index());
    Ranking ranking{nullptr, a.row_token[a.first + row] + 1, 0, 1};
    while (ranking.tokens > int64_t(1) << ranking.token_bits) ++ranking.token_bits;
    for (int32_t plane = 0; plane < a.planes; ++plane) {
      ranking.p = a.p + (int64_t(plane) * a.count + row) * a.pitch, ranking.head = plane - 1;
      count_first_digits(block, ranking);
      for (int32_t first = 0; first < a.caches_count; first += kCaches)
        take_caches(block, ranking, a.first + row, first);
    }
  }

 private:
  KVR_DEVICE Shared& shared(const Block auto& block) const { return *reinterpret_cast<Shared*>(block.shared()); }

  // A thread's neighbouring digits lie on its own bank.
  KVR_DEVICE static int slot(int32_t digit) { return digit % kDigitsEach * kThreads + digit / kDigitsEach; }

  KVR_DEVICE void take_caches(const Block auto& block, const Ranking& ranking, int32_t row, int32_t first) const {
    Shared& s = shared(block);
    const int32_t left = a.caches_count - first, count = left < kCaches ? left : kCaches;
    const int warp = block.thread() / kWarp;
    for (int32_t i = warp; i < count; i += kWarps) {
      const RecallCache& cache = a.caches[first + i];
      const int32_t size = goes_by(cache, ranking) ? count_places(block, ranking, cache, row, 0) : -1;
      if (block.thread() % kWarp == 0) s.size[i] = size;
    }
    block.sync();
    find_models(block, count);
    block.sync();
    for (int32_t i = 0; i < count; ++i)
      if (s.size[i] > 0 && s.model[i] == i) find_best(block, ranking, i);
    for (int32_t i = warp; i < count; i += kWarps)
      if (s.size[i] >= 0) write(block, ranking, a.caches[first + i], row, i);
    block.sync();  // before the sizes change
  }
  KVR_DEVICE static bool goes_by(const RecallCache& cache, const Ranking& ranking) {
    if (cache.by_head == 0) return ranking.head < 0;
    return ranking.head >= cache.part.first_head && ranking.head < cache.part.first_head + cache.part.heads;
  }
  // Run by a warp: counts the tokens that a row attends to at this place or before it.
  KVR_DEVICE int32_t count_places(const Block auto& block, const Ranking& ranking, const RecallCache& cache,
                                  int32_t row, uint64_t last) const {
    const AttendPart& part = cache.part;
    const KeySpan span = part.spans[row / kRowTile];
    const int32_t t = ranking.tokens - 1, oldest = a.window.first(t);
    int32_t count = 0;
    const auto look = [&](int32_t token) {
      if (token >= oldest && (last == 0 || ranking.place(token) >= last)) ++count;
    };
    for (int32_t i = span.first + block.thread() % kWarp; i < span.first + span.count; i += kWarp) {
      const int32_t token = part.tokens == nullptr ? i : part.tokens[i];
      if (token <= t && (part.until == nullptr || t < part.until[i])) look(token);
    }
    for (int32_t token = cache.later_from + block.thread() % kWarp; token <= t; token += kWarp) look(token);
    for (int mask = 1; mask < kWarp; mask *= 2) count += block.shuffle_xor(count, mask);
    return count;
  }
  KVR_DEVICE void find_models(const Block auto& block, int32_t count) const {
    Shared& s = shared(block);
    if (block.thread() >= count) return;
    int32_t model = 0;
    while (s.size[model] != s.size[block.thread()]) ++model;
    s.model[block.thread()] = model;
  }
  KVR_DEVICE void write(const Block auto& block, const Ranking& ranking, const RecallCache& cache, int32_t row,
                        int32_t i) const {
    const Shared& s = shared(block);
    const int32_t size = s.size[i], model = s.model[i];
    const int32_t hits = size == 0 ? 0 : count_places(block, ranking, cache, row, s.last[model]);
    if (block.thread() % kWarp != 0 || size == 0) return;
    const int32_t first = cache.by_head == 0 ? 0 : ranking.head - cache.part.first_head,
                  end = cache.by_head == 0 ? cache.part.heads : first + 1;
    for (int32_t h = first; h < end; ++h) {
      RowResult& result = a.results[cache.first_row + int64_t(h) * a.rows + row];
      result.top_mass = s.mass[model], result.index_recall = double(hits) / double(size);
    }
  }

  // Finds the best tokens, as many as cache i has.
  KVR_DEVICE void find_best(const Block auto& block, const Ranking& ranking, int32_t i) const {
    Shared& s = shared(block);
    const uint64_t last = last_of(block, ranking, s.size[i]);
    double mass = 0;
    for (int32_t token = block.thread(); token < ranking.tokens; token += kThreads)
      if (ranking.place(token) >= last) mass += double(ranking.p[token]);
    for (int mask = 1; mask < kWarp; mask *= 2) mass += block.shuffle_xor(mass, mask);
    if (block.thread() % kWarp == 0) s.sums[block.thread() / kWarp] = mass;
    block.sync();
    if (block.thread() == 0) {
      double sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum += s.sums[warp];
      s.last[i] = last, s.mass[i] = sum;
    }
    block.sync();
  }

  // The place of the last of the first `wanted` tokens, or one that separates them from the others.
  KVR_DEVICE uint64_t last_of(const Block auto& block, const Ranking& ranking, int32_t wanted) const {
    if (wanted >= ranking.tokens) return 0;
    Found at = find(block, shared(block).above, ranking.tokens, wanted);
    Range range = places_of(at.digit, ranking.token_bits);
    wanted -= at.above;
    while (at.count > wanted && at.count > kCandidates) {
      count_digits(block, ranking, range);
      at = find(block, shared(block).counts, at.count, wanted);
      range = part_of(range, at.digit);
      wanted -= at.above;
    }
    return at.count == wanted ? range.begin : candidate(block, ranking, range, wanted);
  }
  // Places with this first digit.
  KVR_DEVICE static Range places_of(int32_t digit, int token_bits) {
    const uint64_t begin = digit == 0 ? 0 : uint64_t(digit + kDigitFloor) << kDigitShift;
    const uint64_t end = digit == kDigits - 1 ? uint64_t(1) << 32 : uint64_t(digit + 1 + kDigitFloor) << kDigitShift;
    return with_digits({begin << token_bits, (end - begin) << token_bits, 0});
  }
  KVR_DEVICE static Range part_of(const Range& range, int32_t digit) {
    const uint64_t from = uint64_t(digit) << range.shift, whole = uint64_t(1) << range.shift;
    return with_digits({range.begin + from, range.size - from < whole ? range.size - from : whole, 0});
  }
  KVR_DEVICE static Range with_digits(Range range) {
    while ((range.size - 1) >> range.shift >= uint64_t(kDigits)) ++range.shift;
    return range;
  }

  KVR_DEVICE void count_first_digits(const Block auto& block, const Ranking& ranking) const {
    Shared& s = shared(block);
    clear(block, s.above);
    for (int32_t token = block.thread(); token < ranking.tokens; token += kThreads) {
      const int32_t digit = int32_t(float_bits(ranking.p[token]) >> kDigitShift) - kDigitFloor;
      // The count of digit 0 is never needed, and in a window's rows almost all tokens are 0.
      if (digit > 0) block.atomic_add(&s.above[slot(digit < kDigits ? digit : kDigits - 1)], 1);
    }
    sum_up(block, s.above);
  }
  KVR_DEVICE void count_digits(const Block auto& block, const Ranking& ranking, const Range& range) const {
    Shared& s = shared(block);
    clear(block, s.counts);
    for (int32_t token = block.thread(); token < ranking.tokens; token += kThreads) {
      const uint64_t distance = ranking.place(token) - range.begin;
      if (distance < range.size) block.atomic_add(&s.counts[slot(int32_t(distance >> range.shift))], 1);
    }
    sum_up(block, s.counts);
  }
  KVR_DEVICE void clear(const Block auto& block, int32_t* counts) const {
    block.sync();
    for (int i = block.thread(); i < kDigits; i += kThreads) counts[i] = 0;
    block.sync();
  }
  // Turns the count of each digit into the number of tokens with larger digits.
  KVR_DEVICE void sum_up(const Block auto& block, int32_t* counts) const {
    Shared& s = shared(block);
    block.sync();
    int32_t total = 0;
    for (int i = 0; i < kDigitsEach; ++i) total += counts[slot(block.thread() * kDigitsEach + i)];
    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    int32_t above = 0;  // total of later threads; at first within this warp
    for (int mask = 1; mask < kWarp; mask *= 2) {
      const int32_t others = block.shuffle_xor(total, mask);
      if ((lane & mask) == 0) above += others;
      total += others;
    }
    if (lane == 0) s.totals[warp] = total;
    block.sync();
    for (int w = warp + 1; w < kWarps; ++w) above += s.totals[w];
    for (int i = kDigitsEach - 1; i >= 0; --i) {
      int32_t& of_digit = counts[slot(block.thread() * kDigitsEach + i)];
      const int32_t own = of_digit;
      of_digit = above;
      above += own;
    }
    block.sync();
  }
  // The digit of the token that has wanted - 1 before it. total: sum over all digits.
  KVR_DEVICE Found find(const Block auto& block, const int32_t* above, int32_t total, int32_t wanted) const {
    Shared& s = shared(block);
    for (int i = 0; i < kDigitsEach; ++i) {
      const int32_t digit = block.thread() * kDigitsEach + i;
      const int32_t larger = above[slot(digit)], with = digit == 0 ? total : above[slot(digit - 1)];
      if (larger < wanted && wanted <= with) s.found = {digit, larger, with - larger};
    }
    block.sync();
    return s.found;
  }
  // The place of the token that has wanted - 1 before it in the range, which holds at most kCandidates.
  KVR_DEVICE uint64_t candidate(const Block auto& block, const Ranking& ranking, const Range& range,
                                int32_t wanted) const {
    Shared& s = shared(block);
    if (block.thread() == 0) s.candidates_count = 0;
    block.sync();
    for (int32_t token = block.thread(); token < ranking.tokens; token += kThreads) {
      const uint64_t place = ranking.place(token);
      if (place - range.begin < range.size) s.candidates[block.atomic_add(&s.candidates_count, 1)] = place;
    }
    block.sync();
    if (block.thread() < s.candidates_count) {
      const uint64_t mine = s.candidates[block.thread()];
      int32_t before = 0;
      for (int32_t i = 0; i < s.candidates_count; ++i) before += s.candidates[i] > mine ? 1 : 0;
      if (before == wanted - 1) s.last_place = mine;
    }
    block.sync();
    return s.last_place;
  }
};

}  // namespace kvreplay
