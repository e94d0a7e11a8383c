#pragma once
#include <bit>
#include <cmath>

#include "backend/score_strip.hpp"
#include "core/select.hpp"

// Caches that follow a ScoreRule (core/policy.hpp), on tensor cores: who leaves at each step. What a cache
// answers is found later, from the tokens' lifetimes (attend_kernel.hpp). The same rule on the CPU:
// replay/score_slots.
//
// A block replays one chain: one cache, whose every step waits for the step before. So little is left to a
// step. Time is cut into tiles of 16 tokens. What is held stands in slots, in no order, and the tile's own
// tokens in 16 columns behind them. Before a tile's first step all its logits are found by tensor cores,
//   strip[head, step, column] = e = 2^(log2(e) l - top),
// with the row's maximum `top` over what it may see, and the sums z of all rows. Then a step takes the e of
// the tokens that left inside the tile off its z, adds e / z to the scores, and looks for the lowest: one
// barrier a step, and four a tile.
//
// Sums hold 2^-23 of themselves as rounding, so a row whose z falls below an eighth of what it was has lost
// digits (or everything, when what left was the maximum): its tile is prepared again from that step on, with
// what is held then.
//
// Scores, weights 1 / z and sums over a row are doubles; logits and e are float32, so a probability below
// 2^-126 of the largest is 0. Every sum has an order of its own, so a run repeats bit for bit.

namespace kvreplay {

// Any number of heads, any budget whose slots and scores (12 bytes each) fit into shared memory; a strip that
// does not goes to `scratch`. A launch takes the shared memory of its largest chain for every block, so
// chains of unlike budgets are better launched apart, and with fewer threads where there are few columns.
template <int kWidth, int kProducts, int kBlockThreads = 256>
struct ScoreChainKernel {
  using Strip = ScoreStrip<kWidth, kProducts, kBlockThreads>;
  using Room = typename Strip::Room;
  static constexpr int kThreads = kBlockThreads, kWarps = Strip::kWarps, kTile = Strip::kTile;
  // Of 64 numbers a row, so that chains fill each other's waits; wider rows need the registers.
  static constexpr int kResidentBlocks = kWidth <= 64 ? 512 / kThreads : 256 / kThreads;
  static constexpr int kOwn = 5;  // columns of a thread at once: 1024 + 32 in 256 threads

  const ScoreChain* chains;
  int64_t count;
  size_t shared;  // shared_bytes() of the chain that needs most

  LaunchShape shape() const { return {count, kThreads, shared}; }
  static size_t shared_bytes(int32_t heads, int32_t budget, bool strip_in_scratch) {
    return Room(heads, budget, !strip_in_scratch).bytes;
  }
  static size_t scratch_floats(int32_t heads, int32_t budget) {
    const Room room(heads, budget, false);
    return size_t(room.rows) * size_t(room.pitch);
  }

  KVR_DEVICE void operator()(const Block auto& block) const {
    Run run(chains[block.index()], block.shared());
    run.replay(block);
  }

 private:
  // The lowest score that somebody found: a number that grows with the score, in two halves; then the token,
  // the largest first (convention C8). Nobody: token -1, behind all others.
  struct Lowest {
    uint32_t high, low, rank, column;
    KVR_DEVICE static Lowest of(double score, int32_t token, int32_t column) {
      const uint64_t key = token < 0 ? ~uint64_t{0} : order_key(score);
      return {uint32_t(key >> 32), uint32_t(key), 0x7fffffffu - uint32_t(token), uint32_t(column)};
    }
    KVR_DEVICE int32_t token() const { return int32_t(0x7fffffffu - rank); }
  };
  static_assert(sizeof(Lowest) == Strip::kLowestBytes);

  // Of a step's denominators, the worst of the heads first; or of a step where nobody may leave.
  enum Verdict : uint32_t { stale, nothing, fine, nobody };

  // A chain under way. Every thread holds the same numbers.
  class Run : Strip {
   public:
    KVR_DEVICE Run(const ScoreChain& of, unsigned char* memory) : Strip(of, memory) {
      score = reinterpret_cast<double*>(memory + room.score);
      weight = reinterpret_cast<double*>(memory + room.weight);
      lowest = reinterpret_cast<Lowest*>(memory + room.lowest);
      vacated = reinterpret_cast<int32_t*>(memory + room.vacated);
      size = fresh = chain.count, left = 0;
    }

    KVR_DEVICE void replay(const Block auto& block) {
      this->fetch_queries(block, chain.first);
      const ScoreChainEnd end = advance(block);
      if (end.why == ScoreChainEnd::done) close(block);
      else stop(block, end.token);
      block.template wait_copies<0>();
      if (block.thread() == 0) *chain.end = end;
    }

   private:
    using Strip::chain, Strip::room, Strip::sum, Strip::strip, Strip::least, Strip::token, Strip::begin,
        Strip::steps;

    // False if a score is not finite.
    KVR_DEVICE bool load(const Block auto& block) {
      uint32_t finite = 1;
      KVR_ROLLED for (int32_t i = block.thread(); i < room.columns; i += kThreads) {
        const bool taken = i < chain.count;
        token[i] = taken ? chain.held[i] : -1;
        score[i] = taken ? chain.scores[i] : 0;
        if (!std::isfinite(score[i])) finite = 0;
      }
      finite = block.minimum(finite);
      if (block.thread() % kWarp == 0) lowest[block.thread() / kWarp].high = finite;
      block.sync();
      for (int w = 0; w < kWarps; ++w) finite = finite != 0 && lowest[w].high != 0 ? 1 : 0;
      return finite != 0;
    }
    KVR_DEVICE void stop(const Block auto& block, int32_t at) const {
      KVR_ROLLED for (int32_t t = at + block.thread(); t < chain.last; t += kThreads) {
        chain.victims[t - chain.first] = -1;
      }
    }
    KVR_DEVICE void close(const Block auto& block) {
      steps = 0;
      seat(block);
      block.sync();
      KVR_ROLLED for (int32_t i = block.thread(); i < size; i += kThreads) {
        chain.held[i] = token[i];
        chain.scores[i] = score[i];
      }
    }

    KVR_DEVICE ScoreChainEnd advance(const Block auto& block) {
      if (!load(block)) return {ScoreChainEnd::score, chain.first};
      for (begin = chain.first; begin < chain.last; begin += kTile) {
        steps = chain.last - begin < kTile ? chain.last - begin : kTile;
        seat(block);
        for (int32_t s = 0; s < steps;) {
          this->prepare(block, s);
          const Verdict verdict = take_steps(block, s);
          if (verdict == nothing) return {ScoreChainEnd::denominator, begin + s};
          if (verdict == nobody) return {ScoreChainEnd::protection, begin + s};
        }
      }
      return {ScoreChainEnd::done, -1};
    }

    // Those of the last tile that are still held move to slots; those of this one take their columns. As a
    // tile never ends with fewer residents than it began with, every slot that was left is taken.
    KVR_DEVICE void seat(const Block auto& block) {
      block.sync();  // everybody is done with the last step
      const int32_t j = block.thread(), from = room.slots + j;
      if (j < kTile) {
        if ((arrived >> j & 1u) != 0) {
          const int32_t before = std::popcount(arrived & ((1u << j) - 1u));
          const int32_t slot = before < left ? vacated[before] : fresh + before - left;
          token[slot] = token[from], score[slot] = score[from];
        }
        token[from] = j < steps ? begin + j : -1, score[from] = 0;
      }
      fresh += std::popcount(arrived) - left;
      left = 0, arrived = (1u << steps) - 1u;
    }

    // Steps from s on, up to the first whose sums are stale or where the chain stops: then that is s.
    KVR_DEVICE Verdict take_steps(const Block auto& block, int32_t& s) {
      const ScoreChain c = chain;
      int32_t gone = -1;  // column of whoever left at the step before
      for (; s < steps; ++s) {
        const Verdict verdict = weigh(block, c, s, gone);
        if (verdict != fine) return verdict;
        const Lowest mine = add(block, c, s);
        int32_t victim = -1;
        gone = -1;
        if (++size > c.budget) {
          const Lowest lost = lowest_of_block(block, mine, s);
          victim = lost.token(), gone = int32_t(lost.column);
          if (victim < 0) return nobody;
          remove(block, gone, s);
        }
        if (block.thread() == 0) c.victims[begin + s - c.first] = victim;
      }
      return fine;
    }

    // Every warp finds the weights of the heads for itself: a lane a head. gone: who left at the step before,
    // and is part of `sum` still.
    KVR_DEVICE Verdict weigh(const Block auto& block, const ScoreChain& c, int32_t s, int32_t gone) const {
      const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
      uint32_t verdict = fine;
      block.sync_warp();  // the last step's weights have been read
      KVR_ROLLED for (int32_t h = lane; h < c.heads; h += kWarp) {
        const int32_t row = h * kTile + s;
        double z = sum[row];
        if (gone >= 0) z -= double(strip[row * room.pitch + gone]);
        const uint32_t mine = z < double(least[row]) ? stale : z > 0 && z < INFINITY ? fine : nothing;
        if (mine < verdict) verdict = mine;
        weight[warp * c.heads + h] = c.share / z;
      }
      block.sync_warp();
      return Verdict(block.minimum(verdict));
    }

    // The best candidate of a thread so far.
    struct Candidate {
      double score = INFINITY;
      int32_t token = -1, column = -1;
    };
    // Scores of this thread's columns take the step's probabilities; returns the lowest that may leave.
    // Columns that nobody holds go along, at e = 0 or until they are seated anew.
    KVR_DEVICE Lowest add(const Block auto& block, const ScoreChain& c, int32_t s) const {
      const int32_t newest = begin + s - c.recent;  // that may leave
      const uint32_t span = newest < c.sinks ? 0 : uint32_t(newest - c.sinks + 1);
      Candidate best;
      int32_t i = block.thread();
      for (; i + (kOwn - 1) * kThreads < room.columns; i += kOwn * kThreads)
        add_to<kOwn>(block, c, s, i, span, best);
      const int32_t rest = (room.columns - i + kThreads - 1) / kThreads;
      if (rest == 4) add_to<4>(block, c, s, i, span, best);
      else if (rest == 3) add_to<3>(block, c, s, i, span, best);
      else if (rest == 2) add_to<2>(block, c, s, i, span, best);
      else if (rest == 1) add_to<1>(block, c, s, i, span, best);
      return Lowest::of(best.score, best.token, best.column);
    }
    // Columns i, i + threads, ...: `kCount` of them, whose numbers are under way together.
    template <int kCount>
    KVR_DEVICE void add_to(const Block auto& block, const ScoreChain& c, int32_t s, int32_t i, uint32_t span,
                           Candidate& best) const {
      const double* const w = weight + block.thread() / kWarp * c.heads;
      double a[kCount];
      int32_t of[kCount];
      KVR_UNROLL for (int j = 0; j < kCount; ++j) {
        a[j] = c.carry * score[i + j * kThreads];
        of[j] = token[i + j * kThreads];
      }
      const float* e = strip + s * room.pitch + i;
      for (int32_t h = 0; h < c.heads; ++h, e += kTile * room.pitch) {
        const double of_head = w[h];
        KVR_UNROLL for (int j = 0; j < kCount; ++j) a[j] += of_head * double(e[j * kThreads]);
      }
      KVR_UNROLL for (int j = 0; j < kCount; ++j) {
        score[i + j * kThreads] = a[j];
        const bool may_leave = uint32_t(of[j] - c.sinks) < span;
        const bool lower = a[j] < best.score || (a[j] == best.score && of[j] > best.token);
        if (may_leave && lower) best = {a[j], of[j], i + j * kThreads};
      }
    }

    // The step's barrier.
    KVR_DEVICE Lowest lowest_of_block(const Block auto& block, const Lowest& mine, int32_t s) const {
      Lowest* const of_warps = lowest + s % 2 * kWarps;
      Lowest best = mine;
      if (lowest_of_warp(block, best)) of_warps[block.thread() / kWarp] = mine;
      block.sync();
      best = of_warps[block.thread() % kWarps];
      const bool won = lowest_of_warp(block, best);
      best.column = block.minimum(won ? best.column : ~0u);
      return best;
    }
    // Replaces all but the column by the warp's lowest; true: it was this thread's.
    KVR_DEVICE static bool lowest_of_warp(const Block auto& block, Lowest& x) {
      bool in = take_minimum(block, true, x.high);
      in = take_minimum(block, in, x.low);
      return take_minimum(block, in, x.rank);
    }
    KVR_DEVICE static bool take_minimum(const Block auto& block, bool in, uint32_t& x) {
      const uint32_t mine = in ? x : ~0u;
      x = block.minimum(mine);
      return in && mine == x;
    }

    KVR_DEVICE void remove(const Block auto& block, int32_t column, int32_t s) {
      --size;
      if (block.thread() == column % kThreads) token[column] = -1;
      if (column >= room.slots) {
        arrived &= ~(1u << (column - room.slots));
      } else {
        if (block.thread() == 0) vacated[left] = column;
        ++left;
      }
      // Of the next step weigh() knows. The last warps, which hold the fewest columns, do this.
      KVR_ROLLED for (int32_t row = kThreads - 1 - block.thread(); row < room.rows; row += kThreads) {
        if (row % kTile < s + 2 || row % kTile >= steps) continue;
        sum[row] -= double(strip[row * room.pitch + column]);
      }
    }

    double *score, *weight;     // [columns]; [warps, heads] share / z of the step
    Lowest* lowest;             // [2, warps]; steps take turns
    int32_t* vacated;           // [tile] slots that somebody left
    int32_t size, fresh, left;  // residents; the slots from `fresh` on were never taken; length of vacated
    uint32_t arrived = 0;       // bit j: the tile's token j is held
  };
};

}  // namespace kvreplay
