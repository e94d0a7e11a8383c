#pragma once
#include <cmath>

#include "core/score_rule.hpp"
#include "device/kernels/block.hpp"

// Decides which tokens a cache holds when, by its score rule (core/score_rule.hpp), from logits alone. A warp takes one
// cache through the rows in order: it gathers the logits of the held tokens, turns them into probabilities, updates the
// scores, and evicts the lowest. Nothing waits for another warp, so a step costs a few reductions by shuffles.
//
// A held token has a slot, and lane l has slots l, l + 32, ... in its registers; larger caches use device memory. The
// logits of the next head or row are loaded before the present ones are used, except that of the token that arrives
// next, which takes the place of an evicted one.

namespace kvreplay {

struct DecideTask {
  ScoreRule rule;             // marks: by slot
  int32_t first_head, heads;  // query heads, in the stream
  int32_t begin;              // its first row's token
  int32_t slots;              // a multiple of 32, at least one more than the budget
  // By slot. They keep the cache from one launch to the next.
  int32_t* token;    // -1: empty
  double* score;     // low_marks: not used from one row to the next
  int32_t* marked;   // low_marks: marks of the token
  float *x, *ahead;  // scratch, for slots that are not in registers
  int32_t* until;    // [tokens] first row that does not see the token
  int32_t* failed;   // token of the first row whose denominator is not a positive number; such a cache stops
};

struct DecideArgs {
  const DecideTask* tasks;
  const float* logits;       // [heads, rows, pitch], in base 2: column j of row i is token j, up to the row's own
  const float* sink_logits;  // [heads] or null
  int32_t count;             // number of tasks
  int32_t first, rows;       // rows of tokens first, first + 1, ...
  int32_t pitch;
};

struct DecideKernel {
  static constexpr int kThreads = kWarp;
  static constexpr int kEach[] = {5, 9, 17, 33};  // slots of a lane, in registers
  static constexpr float kLog2e = 1.44269504088896341f;

  DecideArgs a;

  LaunchShape shape() const { return {a.count, kThreads, 0}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const DecideTask task = a.tasks[block.index()];
    if (task.slots <= kEach[0] * kWarp) decide<InRegisters<kEach[0]>>(block, task);
    else if (task.slots <= kEach[1] * kWarp) decide<InRegisters<kEach[1]>>(block, task);
    else if (task.slots <= kEach[2] * kWarp) decide<InRegisters<kEach[2]>>(block, task);
    else if (task.slots <= kEach[3] * kWarp) decide<InRegisters<kEach[3]>>(block, task);
    else decide<InMemory>(block, task);
  }

 private:
  // The slots of one lane.
  template <int n>
  struct InRegisters {
    int32_t tokens[n];
    double scores[n];
    float logits[n], loaded[n];

    KVR_DEVICE InRegisters(const DecideTask& task, int lane) {
      KVR_UNROLL for (int i = 0; i < n; ++i) {
        const bool there = i * kWarp + lane < task.slots;
        tokens[i] = there ? task.token[i * kWarp + lane] : -1;
        scores[i] = there ? task.score[i * kWarp + lane] : 0;
        logits[i] = loaded[i] = -INFINITY;
      }
    }
    KVR_DEVICE void close(const DecideTask& task, int lane) const {
      KVR_UNROLL for (int i = 0; i < n; ++i) if (i * kWarp + lane < task.slots)
          task.token[i * kWarp + lane] = tokens[i],
                                 task.score[i * kWarp + lane] = scores[i];
    }
    KVR_DEVICE void each(auto f) { KVR_UNROLL for (int i = 0; i < n; ++i) f(i); }
    KVR_DEVICE int32_t& token(int i) { return tokens[i]; }
    KVR_DEVICE double& score(int i) { return scores[i]; }
    KVR_DEVICE float& x(int i) { return logits[i]; }
    KVR_DEVICE float& ahead(int i) { return loaded[i]; }
  };
  struct InMemory {
    const DecideTask& task;
    int lane;

    KVR_DEVICE InMemory(const DecideTask& t, int l) : task(t), lane(l) {}
    KVR_DEVICE void close(const DecideTask&, int) const {}
    KVR_DEVICE void each(auto f) {
      for (int i = 0; i * kWarp < task.slots; ++i) f(i);
    }
    KVR_DEVICE int32_t& token(int i) { return task.token[i * kWarp + lane]; }
    KVR_DEVICE double& score(int i) { return task.score[i * kWarp + lane]; }
    KVR_DEVICE float& x(int i) { return task.x[i * kWarp + lane]; }
    KVR_DEVICE float& ahead(int i) { return task.ahead[i * kWarp + lane]; }
  };

  struct Lowest {
    uint64_t key;  // order_key() of the score
    int32_t token, slot;
    // Convention C8: among equal scores the later token is evicted.
    KVR_DEVICE bool before(const Lowest& other) const {
      return key != other.key ? key < other.key : token > other.token;
    }
  };

  template <class T, class F>
  KVR_DEVICE static T over_warp(const Block auto& block, T x, F both) {
    for (int mask = kWarp / 2; mask > 0; mask /= 2) x = both(x, block.shuffle_xor(x, mask));
    return x;
  }
  KVR_DEVICE static float largest(const Block auto& block, float x) {
    return over_warp(block, x, [](float p, float q) { return p > q ? p : q; });
  }
  KVR_DEVICE static float sum(const Block auto& block, float x) {
    return over_warp(block, x, [](float p, float q) { return p + q; });
  }

  KVR_DEVICE const float* row(const DecideTask& task, int32_t r, int32_t head) const {
    return a.logits + (int64_t(task.first_head + head) * a.rows + r) * a.pitch;
  }

  template <class Slots>
  KVR_DEVICE void decide(const Block auto& block, const DecideTask& task) const {
    const int lane = block.thread();
    if (*task.failed >= 0) return;
    Slots slots(task, lane);
    int32_t held = 0, free_slot = -1;
    slots.each([&](int i) { held += slots.token(i) >= 0 ? 1 : 0; });
    held = over_warp(block, held, [](int32_t p, int32_t q) { return p + q; });
    const int32_t first = task.begin > a.first ? task.begin - a.first : 0;
    float newest = first < a.rows ? load(slots, row(task, first, 0), a.first + first) : 0;
    for (int32_t r = first; r < a.rows; ++r) {
      const int32_t t = a.first + r;
      if (free_slot < 0) free_slot = find_free(block, slots);
      put(task, slots, lane, free_slot, t, newest);
      ++held, free_slot = -1;
      for (int32_t h = 0; h < task.heads; ++h) {
        slots.each([&](int i) { slots.x(i) = slots.token(i) >= 0 ? slots.ahead(i) : -INFINITY; });
        if (h + 1 < task.heads) load(slots, row(task, r, h + 1), t);
        else if (r + 1 < a.rows) newest = load(slots, row(task, r + 1, 0), t + 1);
        if (vote(block, task, slots, h, t)) continue;
        if (lane == 0) *task.failed = t;
        return;
      }
      if (task.rule.counts()) mark(task, slots, lane, t, held);
      if (held <= task.rule.budget) continue;
      for (int32_t i = 0; i < task.rule.drop; ++i) free_slot = evict(block, task, slots, lane, t);
      held -= task.rule.drop;
    }
    slots.close(task, lane);
  }

  // Starts to load a row's logits of the held tokens; returns that of token t.
  template <class Slots>
  KVR_DEVICE static float load(Slots& slots, const float* from, int32_t t) {
    slots.each([&](int i) { slots.ahead(i) = slots.token(i) >= 0 ? from[slots.token(i)] : -INFINITY; });
    return from[t];
  }
  template <class Slots>
  KVR_DEVICE static int32_t find_free(const Block auto& block, Slots& slots) {
    int32_t found = 1 << 30;
    slots.each([&](int i) {
      const int32_t slot = i * kWarp + block.thread();
      if (slots.token(i) < 0 && slot < found) found = slot;
    });
    return over_warp(block, found, [](int32_t p, int32_t q) { return p < q ? p : q; });
  }
  template <class Slots>
  KVR_DEVICE static void put(const DecideTask& task, Slots& slots, int lane, int32_t slot, int32_t t, float logit) {
    slots.each([&](int i) {
      if (i * kWarp + lane == slot) slots.token(i) = t, slots.score(i) = 0, slots.ahead(i) = logit;
    });
    if (task.rule.counts() && slot % kWarp == lane) task.marked[slot] = 0, task.rule.marks.clear(slot);
  }

  // Adds what head h of row t votes; false if there is no token to attend to. x: the logits; then the weights.
  template <class Slots>
  KVR_DEVICE bool vote(const Block auto& block, const DecideTask& task, Slots& slots, int32_t h, int32_t t) const {
    using Vote = ScoreRule::Vote;
    const ScoreRule& rule = task.rule;
    const bool noisy = rule.vote == Vote::noisy;
    if (noisy && rule.noisy.noise)
      slots.each([&](int i) {
        if (slots.token(i) >= 0) slots.x(i) -= float(std::log2(rule.noisy.inverse_noise(t, slots.token(i), h)));
      });
    const float sink = a.sink_logits == nullptr || noisy ? -INFINITY : a.sink_logits[task.first_head + h] * kLog2e;
    const float scale = noisy ? float(1 / rule.noisy.temperature(t)) : 1;
    float top = -INFINITY, z = 0;
    slots.each([&](int i) { top = slots.x(i) > top ? slots.x(i) : top; });
    top = largest(block, top);
    if (sink > top) top = sink;
    slots.each([&](int i) {
      slots.x(i) = slots.token(i) >= 0 ? block.exp2((slots.x(i) - top) * scale) : 0;
      z += slots.x(i);
    });
    z = sum(block, z);
    if (sink > -INFINITY) z += block.exp2(sink - top);
    if (!(z > 0 && z < INFINITY)) return false;
    const double inverse = 1 / double(z), weight = task.rule.share * inverse;
    if (rule.vote == Vote::low_marks) {  // as the probabilities of a step, which are rounded
      slots.each([&](int i) {
        slots.score(i) = (h == 0 ? 0 : slots.score(i)) + task.rule.share * double(float(double(slots.x(i)) * inverse));
      });
    } else if (rule.vote == Vote::mean) {
      slots.each([&](int i) {
        const int32_t token = slots.token(i) >= 0 ? slots.token(i) : 0;
        const double of_row = rule.weight_of_row(token, t);
        slots.score(i) = (h == 0 ? 1 - of_row : 1) * slots.score(i) + of_row * weight * double(slots.x(i));
      });
    } else {
      const double carry = h == 0 ? rule.carry : 1;
      slots.each([&](int i) { slots.score(i) = carry * slots.score(i) + weight * double(slots.x(i)); });
    }
    return true;
  }
  // After all heads of row t have voted: marks the tokens below an equal share.
  template <class Slots>
  KVR_DEVICE static void mark(const DecideTask& task, Slots& slots, int lane, int32_t t, int32_t held) {
    const double limit = task.rule.share * task.heads / held;
    const MarkRings::Row marks = task.rule.marks.row(t);
    slots.each([&](int i) {
      if (slots.token(i) < 0) return;
      const int32_t slot = i * kWarp + lane;
      const int32_t marked = task.marked[slot] + marks.set(slot, slots.score(i) < limit);
      task.marked[slot] = marked;
      slots.score(i) = -double(marked);
    });
  }
  // Evicts the token of lowest score among those that may leave; returns its slot.
  template <class Slots>
  KVR_DEVICE static int32_t evict(const Block auto& block, const DecideTask& task, Slots& slots, int lane, int32_t t) {
    Lowest lowest{~uint64_t{0}, -1, -1};
    slots.each([&](int i) {
      const int32_t token = slots.token(i);
      if (token < 0 || !task.rule.is_open(token, t)) return;
      const Lowest mine{order_key(slots.score(i)), token, i * kWarp + lane};
      if (mine.before(lowest)) lowest = mine;
    });
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const Lowest other{block.shuffle_xor(lowest.key, mask), block.shuffle_xor(lowest.token, mask),
                         block.shuffle_xor(lowest.slot, mask)};
      if (other.before(lowest)) lowest = other;
    }
    slots.each([&](int i) {
      if (i * kWarp + lane == lowest.slot) task.until[slots.token(i)] = t + 1, slots.token(i) = -1;
    });
    return lowest.slot;
  }
};

}  // namespace kvreplay
