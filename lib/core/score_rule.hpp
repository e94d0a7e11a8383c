#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/cut_plan.hpp"
#include "core/philox.hpp"
#include "core/select.hpp"

// Score rules: how a row of attention changes the scores of the tokens that a cache holds, and which tokens are then
// evicted. They cover methods that decide by attention probabilities alone. Such a method hands its rule to the engine
// (hook score_rule), which applies it to logits, without the policy: on CPU cores in evaluate/score_slots.hpp, on a
// device in device/kernels/decide_kernel.hpp. The policy's code remains the definition.

namespace kvreplay {

// For each token a ring of marks, one for each of the last `hist` rows; 64 marks to a word, the words in doubles.
struct MarkRings {
  double* bits = nullptr;  // [tokens, words]
  int32_t hist = 0, words = 0;
  int64_t token_stride = 0, word_stride = 1;  // in words

  static constexpr int32_t words_for(int32_t hist) { return (hist + 63) / 64; }
  KVR_FN double& word(int64_t i, int32_t w) const { return bits[i * token_stride + w * word_stride]; }
  // The marks of row t, which replace those of row t - hist.
  struct Row {
    double* bits;
    int64_t stride;
    uint64_t bit;
    // Sets token i's mark; returns the change of its count.
    KVR_FN int32_t set(int64_t i, bool mark) const {
      const uint64_t held = std::bit_cast<uint64_t>(bits[i * stride]);
      bits[i * stride] = std::bit_cast<double>(mark ? held | bit : held & ~bit);
      return int32_t(mark) - int32_t((held & bit) != 0);
    }
  };
  KVR_FN Row row(int32_t t) const {
    const int32_t at = t % hist;
    return {bits + at / 64 * word_stride, token_stride, uint64_t{1} << (at % 64)};
  }
  KVR_FN void clear(int64_t i) const {
    for (int32_t w = 0; w < words; ++w) word(i, w) = 0;
  }
};

// Gumbel noise and temperature of Keyformer: a probability p becomes (p e^g)^(1/tau), normalised.
struct NoisyVote {
  double tau_first = 1, tau_last = 1;  // at the end of the prompt, and `rows` rows later
  int32_t prompt = 0, rows = 1;
  bool noise = true;
  Rng rng;

  KVR_FN double temperature(int32_t t) const {
    return t < prompt ? tau_first : tau_first + (t - prompt) * (tau_last - tau_first) / rows;
  }
  // e^-g = -ln U of a token in row t, for a query head of the cache.
  static constexpr double kLeastUniform = 0x1p-53;
  KVR_FN double inverse_noise(int32_t t, int32_t token, int32_t head) const {
    const double u = rng.uniform(RngStream::keyformer_noise, token, head, t);
    return -std::log(u > kLeastUniform ? u : kLeastUniform);
  }
};

struct ScoreRule {
  // What a row adds. p: the probability of a token, summed (or averaged) over the query heads of the cache.
  enum class Vote : int32_t {
    attention,  // score = carry * score + p
    mean,       // the mean of p over the rows that saw the token, from row first_voter on
    low_marks,  // minus the number of the last `hist` rows whose p was below an equal share
    noisy       // score = score + p with noise and a temperature (NoisyVote)
  };
  Vote vote = Vote::attention;
  double carry = 1;  // attention: 1: accumulated; 0: only the present row
  double share = 1;  // factor of a query head's probability; the engine sets it from gqa.agg
  Protect protect = {};
  int32_t budget = 0;
  CutPlan plan = {};  // when to cut; if it is not plain, `protect` and `budget` are those of a fixed budget
  int32_t drop = 1;   // tokens evicted at a time, once more than `budget` are held: those of lowest score
  int32_t first_voter = 0;
  MarkRings marks = {};  // by token
  NoisyVote noisy = {};

  // Number of voting rows, from first_voter on, that saw a token, up to row t.
  KVR_FN static int32_t seen_by(int32_t token, int32_t first_voter, int32_t t) {
    return t + 1 - (token > first_voter ? token : first_voter);
  }
  // mean: the weight of row t in a token's mean.
  KVR_FN double weight_of_row(int32_t token, int32_t t) const { return 1.0 / seen_by(token, first_voter, t); }
  // Whether a score is minus a count; the policy keeps the count.
  KVR_FN bool counts() const { return vote == Vote::low_marks; }
  // Whether a token may be evicted after row t.
  KVR_FN bool is_open(int32_t token, int32_t t) const { return token >= protect.sinks && token <= t - protect.recent; }
};

}  // namespace kvreplay
