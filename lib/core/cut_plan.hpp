#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/platform.hpp"
#include "core/serving.hpp"

namespace kvreplay {

// When the cache of a selecting method is cut, and to how many tokens. T: tokens seen, the newest one's index + 1.
struct CutPlan {
  Serving options;
  Growth growth;
  int32_t budget = 0;  // B, if it does not grow
  int32_t prompt = 0;  // P
  int32_t every = 1;   // decode steps between two cuts
  int32_t handed = 0;  // most tokens that another method leaves at the end of the prompt (option `then`)
  // With turns: [tokens] outputs up to each token since the last input, see Turns::step. Steps are counted from there.
  const int32_t* turn_step = nullptr;
  int32_t longest_input = 0;  // tokens behind the prompt that arrive together

  static constexpr int32_t kNever = 1 << 30;         // steps that no text has
  static constexpr int32_t kTokenByToken = 1 << 22;  // numbers of cuts in a prompt that arrives token by token

  // Every step cuts to B, and any unprotected token competes.
  KVR_FN bool is_plain() const {
    return every == 1 && !options.cut_in_budget && turn_step == nullptr && !growth.any() && !options.keep_prompt &&
           options.prefill_chunk == 0 && !options.pages.whole();
  }
  // Whether a cut is due once token t, the newest, has been attended to.
  KVR_FN bool is_due(int32_t t) const {
    if (t + 1 == prompt) return true;
    if (t < prompt) return options.prefill_chunk == 0 || (t + 1) % options.prefill_chunk == 0;
    if (turn_step != nullptr) return turn_step[t] >= 0 && turn_step[t] % every == 0;
    return (t + 1 - prompt) % every == 0;
  }
  // Rows that have arrived in one call when token t, the newest, has: those of a chunk or an input so far, else one.
  KVR_FN int32_t rows_of_call(int32_t t) const {
    const int32_t chunk = options.prefill_chunk;
    if (t < prompt) return chunk > 0 ? t % chunk + 1 : 1;
    int32_t rows = 1;
    if (turn_step == nullptr || turn_step[t] > 0) return rows;
    while (t - rows >= prompt && turn_step[t - rows] < 0) ++rows;
    return rows;
  }
  // Whether more rows of this call follow token t.
  KVR_FN bool is_inside_call(int32_t t) const {
    if (t + 1 < prompt) return options.prefill_chunk > 0 && (t + 1) % options.prefill_chunk != 0;
    return t >= prompt && turn_step != nullptr && turn_step[t] < 0;
  }
  // Which cut the one after token t is, from 0 at the end of the prompt, or of its first chunk.
  KVR_FN int32_t number(int32_t t) const {
    const int32_t chunk = options.prefill_chunk;
    const int32_t chunks = chunk > 0 ? (prompt + chunk - 1) / chunk : 1;
    if (t < prompt) return chunk > 0 ? t / chunk : t + 1 == prompt ? 0 : kTokenByToken + t;
    if (turn_step == nullptr) return chunks + (t + 1 - prompt) / every - 1;
    int32_t number = chunks - 1;
    for (int32_t i = prompt; i <= t; ++i) number += is_due(i) ? 1 : 0;
    return number;
  }
  // Most cuts of a text.
  KVR_FN int32_t count(int32_t tokens) const { return tokens >= prompt ? number(tokens - 1) + 1 : 1; }
  // m(T)
  KVR_FN int32_t target(int32_t seen) const {
    const int32_t all = growth.any() ? at_least(growth.floor, int32_t(std::ceil(growth.ratio * seen - 1e-9))) : budget;
    return all - (options.cut_in_budget ? every : 0);
  }
  // Full pages that a cut leaves.
  KVR_FN int32_t pages(int32_t target) const { return target / options.pages.size - (options.pages.in_budget ? 1 : 0); }
  // Most tokens after a step, of `tokens` in all.
  int64_t most_rows(int32_t tokens) const {
    const int64_t last = std::max(target(tokens), handed);
    const int64_t waiting = options.recut ? tokens : every > 1 ? every : 0;
    const int64_t arriving = (options.prefill_chunk > waiting ? options.prefill_chunk : waiting) + longest_input;
    const int64_t filling = options.pages.whole() ? options.pages.size : 0;
    return last + arriving + filling + (options.keep_prompt ? prompt + filling : 0);
  }

 private:
  KVR_FN static int32_t at_least(int32_t low, int32_t x) { return x > low ? x : low; }
};

}  // namespace kvreplay
