#pragma once
#include <bit>
#include <cmath>

#include "backend/block.hpp"
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

// How a chain ended. One that stopped early leaves `held` and `scores` as they were, and names nobody from
// that step on.
struct ScoreChainEnd {
  enum Why : int32_t {
    done,
    denominator,  // zero or not finite: nothing left to attend to, or NaN
    score,        // one that the chain began with is not finite
    protection,   // more than the budget is protected
  };
  Why why;
  int32_t token;  // at whose step; -1: done
};

// One cache, in device memory.
struct ScoreChain {
  // Numbers of 16 bits, padded with zeros to the kernel's width, 16-byte aligned; low: null with 1 product.
  const uint16_t *q_high, *q_low;  // [heads, rows, width], from the chain's first head on
  const uint16_t *k_high, *k_low;  // [heads / group, tokens, width], from its first kv head on
  const float* sink_logits;        // [heads] or null: they join the denominator only
  // What is held before token `first`, in any order, and its scores, which are finite: [budget], of which
  // `count` count. Afterwards what is held before `last`: min(budget, count + last - first), in another
  // order.
  int32_t* held;
  double* scores;
  float* scratch;    // scratch_floats(), or null: the strip is in shared memory
  int32_t* victims;  // [last - first]: who left at the end of a token's step; -1: nobody
  ScoreChainEnd* end;
  double carry, share;      // score = carry score + share (sum over heads of p); a mean: 1 / heads
  int32_t sinks, recent;    // protected: tokens below `sinks`, and the last `recent`, the newest included
  int32_t budget, count;    // count <= budget, sinks + recent < budget
  int32_t first, last;      // tokens first .. last - 1 arrive
  int32_t first_row, rows;  // row r: the query of token first_row + r
  int32_t tokens, heads, group;  // group: query heads that share a kv head; divides heads
  float scale, softcap;          // 0: no cap
};

// kProducts: 1 (high high) or 3 (and high low, low high). kWidth: 64, 128, 256. Any number of heads, any
// budget whose slots and scores (12 bytes each) fit into shared memory; a strip that does not goes to
// `scratch`. A launch takes the shared memory of its largest chain for every block, so chains of unlike
// budgets are better launched apart, and with fewer threads where there are few columns.
template <int kWidth, int kProducts, int kBlockThreads = 256>
struct ScoreChainKernel {
  static constexpr int kThreads = kBlockThreads, kWarps = kThreads / kWarp;
  // Of 64 numbers a row, so that chains fill each other's waits; wider rows need the registers.
  static constexpr int kResidentBlocks = kWidth <= 64 ? 512 / kThreads : 256 / kThreads;
  static constexpr int kTile = 16;  // steps: the rows of a tensor core's product
  static constexpr int kPlanes = kProducts == 3 ? 2 : 1;
  static constexpr int kChunk = 32;  // numbers of a key that 4 threads load at once
  static constexpr int kChunks = kWidth / kChunk, kKeyWords = kChunks * kPlanes;
  // Keys that a warp holds in registers, by 8, and the most query heads that meet them there.
  static constexpr int kKeyBlocks = kKeyWords <= 2 ? 4 : kKeyWords <= 8 ? 2 : 1, kColumns = 8 * kKeyBlocks;
  static constexpr int kHeads = 4;
  static constexpr int kOwn = 5;  // columns of a thread at once: 1024 + 32 in 256 threads
  static constexpr float kLog2e = 1.44269504088896341f;
  static_assert(kWidth % kChunk == 0 && (kProducts == 1 || kProducts == 3));
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);

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

  // Extents, and where things are in shared memory, in bytes.
  struct Room {
    int32_t slots, columns, pitch, rows;
    size_t score, sum, weight, lowest, queries, strip, token, vacated, least, top, bytes;

    KVR_FN Room(int32_t heads, int32_t budget, bool with_strip) {
      constexpr int32_t kRound = 32;
      columns = (budget + kTile + kRound - 1) / kRound * kRound;
      slots = columns - kTile, rows = heads * kTile;
      pitch = columns + 8;  // 8 rows of 8 columns lie in different banks
      bytes = 0;
      lowest = take(2 * kWarps * sizeof(Lowest));
      queries = take(size_t(kPlanes) * size_t(rows) * kWidth * sizeof(uint16_t));
      strip = take(with_strip ? size_t(rows) * size_t(pitch) * sizeof(float) : 0);
      score = take(size_t(columns) * sizeof(double));
      sum = take(size_t(rows) * sizeof(double));
      weight = take(size_t(kWarps) * size_t(heads) * sizeof(double));
      token = take(size_t(columns) * sizeof(int32_t));
      vacated = take(kTile * sizeof(int32_t));
      least = take(size_t(rows) * sizeof(float));
      top = take(size_t(rows) * kWarps * sizeof(float));
    }
    KVR_FN size_t take(size_t n) {
      const size_t at = bytes;
      bytes += (n + 15) / 16 * 16;
      return at;
    }
  };

  // 16 bytes: 8 numbers of a query or a key.
  struct Words {
    uint32_t w[4];
    KVR_DEVICE static Words at(const uint16_t* from) {
      Words x;
      __builtin_memcpy(&x, __builtin_assume_aligned(from, 16), sizeof x);
      return x;
    }
  };
  struct alignas(8) Two {
    float x[2];
  };
  struct alignas(16) Four {
    float x[4];
  };

  // Of a step's denominators, the worst of the heads first; or of a step where nobody may leave.
  enum Verdict : uint32_t { stale, nothing, fine, nobody };

  // A chain under way. Every thread holds the same numbers.
  struct Run {
    const ScoreChain& chain;  // in device memory: loops copy what they need of it
    const Room room;
    double *score, *sum, *weight;  // [columns]; [rows]; [warps, heads] share / z of the step
    Lowest* lowest;                // [2, warps]; steps take turns
    uint16_t* queries;             // [planes, width / 32, rows, 32]
    float *strip, *least, *top;    // [rows, pitch]; [rows] what z may fall to; [rows, warps]
    int32_t *token, *vacated;      // [columns], -1: empty or gone; [tile] slots that somebody left
    int32_t size, fresh, left;     // residents; the slots from `fresh` on were never taken; length of vacated
    uint32_t arrived = 0;          // bit j: the tile's token j is held
    int32_t begin = 0, steps = 0;  // of the tile

    KVR_DEVICE Run(const ScoreChain& of, unsigned char* memory)
        : chain(of), room(chain.heads, chain.budget, chain.scratch == nullptr) {
      score = reinterpret_cast<double*>(memory + room.score);
      sum = reinterpret_cast<double*>(memory + room.sum);
      weight = reinterpret_cast<double*>(memory + room.weight);
      lowest = reinterpret_cast<Lowest*>(memory + room.lowest);
      queries = reinterpret_cast<uint16_t*>(memory + room.queries);
      strip = chain.scratch != nullptr ? chain.scratch : reinterpret_cast<float*>(memory + room.strip);
      least = reinterpret_cast<float*>(memory + room.least);
      top = reinterpret_cast<float*>(memory + room.top);
      token = reinterpret_cast<int32_t*>(memory + room.token);
      vacated = reinterpret_cast<int32_t*>(memory + room.vacated);
      size = fresh = chain.count, left = 0;
    }

    KVR_DEVICE void replay(const Block auto& block) {
      fetch_queries(block, chain.first);
      const ScoreChainEnd end = advance(block);
      if (end.why == ScoreChainEnd::done) close(block);
      else stop(block, end.token);
      block.template wait_copies<0>();
      if (block.thread() == 0) *chain.end = end;
    }

   private:
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
          prepare(block, s);
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

    // Queries of a tile, to be waited for.
    KVR_DEVICE void fetch_queries(const Block auto& block, int32_t from) const {
      constexpr int32_t kPieces = kWidth / 8;
      const int32_t plane = room.rows * kWidth;
      KVR_ROLLED for (int32_t i = block.thread(); i < room.rows * kPieces; i += kThreads) {
        const int32_t row = i / kPieces, x = i % kPieces * 8, t = from + row % kTile;
        const bool inside = t < chain.last;
        const int64_t at =
            (int64_t(row / kTile) * chain.rows + (inside ? t - chain.first_row : 0)) * kWidth + x;
        uint16_t* const to = queries + (x / kChunk * room.rows + row) * kChunk + x % kChunk;
        block.copy_async(to, chain.q_high + at, inside);
        if constexpr (kPlanes == 2) block.copy_async(to + plane, chain.q_low + at, inside);
      }
      block.commit_copies();
    }

    // The strip and the sums of steps `from` and later, over what is held now.
    KVR_DEVICE void prepare(const Block auto& block, int32_t from) const {
      block.template wait_copies<0>();
      if (from > 0) {  // what was waited for are the next tile's
        fetch_queries(block, begin);
        block.template wait_copies<0>();
      }
      block.sync();
      find_products(block);
      block.sync();
      exponentiate(block, from);
      block.sync();
      fetch_queries(block, begin + kTile);
    }

    // A warp takes some columns at a time, for up to 4 query heads of one kv head.
    KVR_DEVICE void find_products(const Block auto& block) const {
      const int warp = block.thread() / kWarp;
      const ScoreChain c = chain;
      for (int32_t kv = 0; kv * c.group < c.heads; ++kv) {
        for (int32_t in_group = 0; in_group < c.group; in_group += kHeads) {
          const int32_t head = kv * c.group + in_group;
          const int32_t heads = c.group - in_group < kHeads ? c.group - in_group : kHeads;
          float most[kHeads][2];
          KVR_UNROLL for (auto& m : most) m[0] = m[1] = -INFINITY;
          for (int32_t column = warp * kColumns; column < room.columns; column += kWarps * kColumns) {
            Words high[kKeyBlocks][kChunks], low[kKeyBlocks][kChunks];
            load_keys(block, c, kv, column, high, low);
            KVR_ROLLED for (int32_t h = 0; h < heads; ++h) {
              float s[kKeyBlocks][4], m[2];
              multiply(block, (head + h) * kTile, high, low, s);
              put(block, c.scale, (head + h) * kTile, column, s, m);
              KVR_UNROLL for (int32_t i = 0; i < kHeads; ++i) {
                KVR_UNROLL for (int j = 0; j < 2; ++j) {
                  if (i == h && m[j] > most[i][j]) most[i][j] = m[j];
                }
              }
            }
          }
          put_tops(block, head, heads, most);
        }
      }
    }

    // Sums may take the numbers of a row in any order, so a thread's fragments of two steps of 16 are the 8
    // neighbours that it loads at once.
    KVR_DEVICE void load_keys(const Block auto& block, const ScoreChain& c, int32_t kv, int32_t column,
                              Words (&high)[kKeyBlocks][kChunks], Words (&low)[kKeyBlocks][kChunks]) const {
      const int lane = block.thread() % kWarp;
      KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
        const int32_t t = token[column + 8 * n + lane / 4];
        const int64_t from = (int64_t(kv) * c.tokens + (t < 0 ? 0 : t)) * kWidth + lane % 4 * 8;
        KVR_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
          high[n][chunk] = Words::at(c.k_high + from + chunk * kChunk);
          if constexpr (kPlanes == 2) low[n][chunk] = Words::at(c.k_low + from + chunk * kChunk);
        }
      }
    }
    // s: products of 16 rows with the columns.
    KVR_DEVICE void multiply(const Block auto& block, int32_t row, const Words (&high)[kKeyBlocks][kChunks],
                             const Words (&low)[kKeyBlocks][kChunks], float (&s)[kKeyBlocks][4]) const {
      const int lane = block.thread() % kWarp;
      KVR_UNROLL for (auto& d : s) d[0] = d[1] = d[2] = d[3] = 0;
      KVR_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint16_t* const q = queries + (chunk * room.rows + row + lane / 4) * kChunk + lane % 4 * 8;
        const Words q_high[2] = {Words::at(q), Words::at(q + 8 * kChunk)};
        if constexpr (kPlanes == 2) {
          const uint16_t* const l = q + room.rows * kWidth;
          const Words q_low[2] = {Words::at(l), Words::at(l + 8 * kChunk)};
          KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
            multiply_add(block, s[n], q_low, high[n][chunk]);
            multiply_add(block, s[n], q_high, low[n][chunk]);
          }
        }
        KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) multiply_add(block, s[n], q_high, high[n][chunk]);
      }
    }
    // 32 terms of each sum. a: of rows g and g + 8.
    KVR_DEVICE static void multiply_add(const Block auto& block, float (&d)[4], const Words (&a)[2],
                                        const Words& b) {
      KVR_UNROLL for (int i = 0; i < 4; i += 2) {
        const uint32_t rows[4] = {a[0].w[i], a[1].w[i], a[0].w[i + 1], a[1].w[i + 1]};
        const uint32_t columns[2] = {b.w[i], b.w[i + 1]};
        block.multiply_add(d, rows, columns);
      }
    }
    // Scaled; -infinity where a row does not see the column. m: the rows' maxima.
    KVR_DEVICE void put(const Block auto& block, float scale, int32_t row, int32_t column,
                        const float (&s)[kKeyBlocks][4], float (&m)[2]) const {
      const int lane = block.thread() % kWarp, g = lane / 4, x = lane % 4 * 2;
      m[0] = m[1] = -INFINITY;
      KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
        const int32_t at = column + 8 * n + x, of[2] = {token[at], token[at + 1]};
        KVR_UNROLL for (int i = 0; i < 2; ++i) {
          Two pair;
          KVR_UNROLL for (int j = 0; j < 2; ++j) {
            pair.x[j] = of[j] >= 0 && of[j] <= begin + g + 8 * i ? s[n][2 * i + j] * scale : -INFINITY;
            if (pair.x[j] > m[i]) m[i] = pair.x[j];
          }
          *reinterpret_cast<Two*>(strip + (row + g + 8 * i) * room.pitch + at) = pair;
        }
      }
    }
    KVR_DEVICE void put_tops(const Block auto& block, int32_t head, int32_t heads,
                             float (&most)[kHeads][2]) const {
      const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
      KVR_UNROLL for (int h = 0; h < kHeads; ++h) KVR_UNROLL for (int i = 0; i < 2; ++i) {
        float m = most[h][i];
        KVR_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {  // the four threads of a row agree
          const float other = block.shuffle_xor(m, mask);
          if (other > m) m = other;
        }
        if (h < heads && lane % 4 == 0) top[((head + h) * kTile + lane / 4 + 8 * i) * kWarps + warp] = m;
      }
    }

    // A warp takes a row at a time.
    KVR_DEVICE void exponentiate(const Block auto& block, int32_t from) const {
      const ScoreChain c = chain;
      for (int32_t row = block.thread() / kWarp; row < room.rows; row += kWarps) {
        const int32_t s = row % kTile;
        if (s < from || s >= steps) continue;
        float most = -INFINITY;
        for (int w = 0; w < kWarps; ++w)
          if (const float x = top[row * kWarps + w]; x > most) most = x;
        most = logit(c.softcap, most);  // which grows with the product
        const float sink = c.sink_logits == nullptr ? -INFINITY : c.sink_logits[row / kTile] * kLog2e;
        if (sink > most) most = sink;
        double z = exponentiate_row(block, c.softcap, strip + row * room.pitch, most);
        KVR_UNROLL for (int mask = kWarp / 2; mask > 0; mask /= 2) z += block.shuffle_xor(z, mask);
        if (block.thread() % kWarp != 0) continue;
        if (c.sink_logits != nullptr) z += double(block.exp2(sink - most));
        sum[row] = z, least[row] = float(z) / 8;
      }
    }
    // Returns the sum of this thread's numbers.
    KVR_DEVICE double exponentiate_row(const Block auto& block, float softcap, float* row, float most) const {
      constexpr int kAtOnce = 2, kApart = 4 * kWarp;
      double z = 0;
      for (int32_t i = block.thread() % kWarp * 4; i < room.columns; i += kAtOnce * kApart) {
        Four f[kAtOnce];
        KVR_UNROLL for (int j = 0; j < kAtOnce; ++j) {
          if (i + j * kApart >= room.columns) continue;
          f[j] = *reinterpret_cast<const Four*>(row + i + j * kApart);
        }
        KVR_UNROLL for (int j = 0; j < kAtOnce; ++j) {
          if (i + j * kApart >= room.columns) continue;
          KVR_UNROLL for (float& x : f[j].x) x = x == -INFINITY ? 0 : block.exp2(logit(softcap, x) - most);
          *reinterpret_cast<Four*>(row + i + j * kApart) = f[j];
          z += double((f[j].x[0] + f[j].x[1]) + (f[j].x[2] + f[j].x[3]));
        }
      }
      return z;
    }
    // In base 2, of a product times the scale.
    KVR_DEVICE static float logit(float softcap, float x) {
      if (softcap > 0) x = softcap * std::tanh(x / softcap);
      return x * kLog2e;
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
  };
};

}  // namespace kvreplay
