#pragma once
#include "core/team.hpp"
#include "device/kernels/block.hpp"

namespace kvreplay {

constexpr size_t kTeamSlotBytes = 16;
// Shared memory that only the team uses.
KVR_FN constexpr size_t team_exchange_bytes(int threads) { return size_t(2 * threads / kWarp) * kTeamSlotBytes; }

// The threads of one block as a team. Threads take elements in turn. Their results are combined by shuffles inside a
// warp, then once in shared memory, where two buffers alternate: a reduction costs one barrier. The order does not
// depend on timing, so a run repeats bit for bit. Ties and NaN are treated as in SerialTeam; a sum differs only in the
// order of its terms.
template <Block B>
class BlockTeam {
 public:
  static constexpr bool kAlone = false;
  // exchange: offset of the exchange in the block's shared memory, a multiple of 16.
  KVR_DEVICE BlockTeam(const B& block, size_t exchange) : block_(block), exchange_(uint32_t(exchange)) {}
  BlockTeam(const BlockTeam&) = delete;  // copies would lose count of the buffers' turns
  BlockTeam& operator=(const BlockTeam&) = delete;

  KVR_DEVICE int rank() const { return block_.thread(); }
  KVR_DEVICE void sync() const { block_.sync(); }

  template <class F>
  KVR_DEVICE void each(int32_t n, F f) const {
    KVR_ROLLED for (int32_t i = rank(); i < n; i += block_.threads()) f(i);
    sync();
  }
  template <class F>
  KVR_DEVICE double sum(int32_t n, F f) const {
    double mine = 0;
    KVR_ROLLED for (int32_t i = rank(); i < n; i += block_.threads()) mine += f(i);
    return total(mine);
  }
  template <class F>
  KVR_DEVICE int32_t count(int32_t n, F is) const {
    int32_t mine = 0;
    KVR_ROLLED for (int32_t i = rank(); i < n; i += block_.threads()) mine += is(i) ? 1 : 0;
    return total(mine);
  }
  template <class F>
  KVR_DEVICE Scored largest(int32_t n, F score) const {
    return best(n, score, Larger{});
  }
  template <class F>
  KVR_DEVICE Scored smallest(int32_t n, F score) const {
    return best(n, score, Smaller{});
  }
  template <class F, class G, class P>
  KVR_DEVICE int32_t compact(int32_t n, F stays, G take, P put) const {
    int32_t kept = 0;
    KVR_ROLLED for (int32_t first = 0; first < n; first += block_.threads()) {
      const int32_t i = first + rank();
      const bool mine = i < n && stays(i);
      std::remove_cvref_t<decltype(take(i))> element{};
      if (mine) element = take(i);
      // After its barrier all of these are taken, and no later ones have been asked for.
      const Place place = place_among(mine);
      if (mine) put(kept + place.before, element);
      kept += place.all;
    }
    sync();
    return kept;
  }
  template <class T>
  KVR_DEVICE void close_gap(T* array, int32_t gap, int32_t n) const {
    constexpr int32_t kAtOnce = 8;
    const int32_t step = block_.threads();
    KVR_ROLLED for (int32_t first = gap + rank(); first - rank() + 1 < n; first += kAtOnce * step) {
      T next[kAtOnce];
      KVR_UNROLL for (int32_t k = 0; k < kAtOnce; ++k) {
        const int32_t i = first + k * step;
        next[k] = i + 1 < n ? array[i + 1] : T{};
      }
      sync();
      KVR_UNROLL for (int32_t k = 0; k < kAtOnce; ++k) {
        const int32_t i = first + k * step;
        if (i + 1 < n) array[i] = next[k];
      }
    }
    sync();
  }

 private:
  struct Larger {
    KVR_FN bool operator()(Scored a, Scored b) const {
      return a.score > b.score || (a.score == b.score && a.index < b.index);
    }
  };
  struct Smaller {
    KVR_FN bool operator()(Scored a, Scored b) const {
      return a.score < b.score || (a.score == b.score && a.index > b.index);
    }
  };
  struct Place {
    int32_t before, all;  // counted threads of the block
  };

  // The bytes that a warp shows the others. A compiler that sees shared() knows the memory space.
  template <class X>
  KVR_DEVICE static X& slot(const B& block, uint32_t exchange, int warp) {
    static_assert(sizeof(X) <= kTeamSlotBytes);
    return *reinterpret_cast<X*>(block.shared() + exchange + size_t(warp) * kTeamSlotBytes);
  }
  // Offset of the next buffer; it is valid until the reduction after the next.
  KVR_DEVICE uint32_t next_exchange() const {
    turn_ ^= 1;
    return exchange_ + uint32_t(turn_ * block_.threads() / kWarp) * uint32_t(kTeamSlotBytes);
  }
  template <class X>
  KVR_DEVICE X total(X mine) const {
    return total_of(block_, next_exchange(), mine);
  }
  template <class X>
  KVR_DEVICE KVR_CALLED static X total_of(const B block, uint32_t exchange, X mine) {
    const int lane = block.thread() % kWarp, warps = block.threads() / kWarp;
    for (int mask = kWarp / 2; mask > 0; mask /= 2) mine += block.shuffle_xor(mine, mask);
    if (lane == 0) slot<X>(block, exchange, block.thread() / kWarp) = mine;
    block.sync();
    X all = 0;
    for (int w = 0; w < warps; ++w) all += slot<X>(block, exchange, w);
    return all;
  }
  KVR_DEVICE Place place_among(bool counts) const { return place_of(block_, next_exchange(), counts); }
  KVR_DEVICE KVR_CALLED static Place place_of(const B block, uint32_t exchange, bool counts) {
    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp, warps = block.threads() / kWarp;
    int32_t before = 0, all = counts ? 1 : 0;
    for (int mask = 1; mask < kWarp; mask *= 2) {
      const int32_t other = block.shuffle_xor(all, mask);
      if ((lane & mask) != 0) before += other;
      all += other;
    }
    if (lane == 0) slot<int32_t>(block, exchange, warp) = all;
    block.sync();
    all = 0;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) before += all;
      all += slot<int32_t>(block, exchange, w);
    }
    return {before, all};
  }
  template <class F, class W>
  KVR_DEVICE Scored best(int32_t n, F score, W wins) const {
    Scored mine{0, -1};
    KVR_ROLLED for (int32_t i = rank(); i < n; i += block_.threads()) mine = better(mine, {score(i), i}, wins);
    return best_of(block_, next_exchange(), mine, wins);
  }
  template <class W>
  KVR_DEVICE KVR_CALLED static Scored best_of(const B block, uint32_t exchange, Scored mine, W wins) {
    const int lane = block.thread() % kWarp, warps = block.threads() / kWarp;
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const double other = block.shuffle_xor(mine.score, mask);
      mine = better(mine, {other, block.shuffle_xor(mine.index, mask)}, wins);
    }
    if (lane == 0) slot<Scored>(block, exchange, block.thread() / kWarp) = mine;
    block.sync();
    Scored all{0, -1};
    for (int w = 0; w < warps; ++w) all = better(all, slot<Scored>(block, exchange, w), wins);
    return all;
  }
  // The better of two, where index -1 is no element. NaN that comes first is never beaten, since no comparison with it
  // holds; other NaN are ignored.
  template <class W>
  KVR_DEVICE static Scored better(Scored a, Scored b, W wins) {
    const bool number = b.score == b.score;
    if (b.index < 0 || (b.index > 0 && !number)) return a;
    return a.index < 0 || !number || wins(b, a) ? b : a;
  }

  const B block_;
  uint32_t exchange_;
  mutable int turn_ = 0;
};

}  // namespace kvreplay
