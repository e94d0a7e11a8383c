#pragma once
#include "device/kernels/policy_run.hpp"

namespace kvreplay {

// Results of one query head in one scored row: sums of the parts, which tokens attend, and the weights of the values,
// which are summed after the last head (weigh_values()). Created after the head has attended: scratch holds its
// probabilities and coefficients.
template <Block B>
class PolicyRows {
 public:
  // view: the cache as the head saw it. row: index in the results.
  KVR_DEVICE PolicyRows(PolicyRun<B>& run, const QueryView<float>& view, int32_t head, int32_t row, Normaliser tau)
      : run_(run),
        team_(run.team),
        cache_(run.cache),
        out_(run.task.output),
        view_(view),
        head_(head),
        row_(row),
        tau_(tau),
        recorded_(run.task.scratch.recorded != nullptr
                      ? run.task.scratch.recorded + int64_t(head) * run.task.scratch.rows
                      : run.products_of(head)) {}

  KVR_DEVICE void take(double spread) {
    take_parts();
    clear_bits();
    RowResult about = run_.task.split ? result_by_tokens() : result_by_rows();
    about.spread = spread;
    if (team_.rank() == 0) out_.results[int64_t(head_) * out_.rows + row_] = about;
  }

  // Computes the outputs after all heads of the row have been taken.
  KVR_DEVICE static void weigh_values(PolicyRun<B>& run, int32_t row, int32_t token) {
    const PolicyOutput& out = run.task.output;
    run.team.sync();
    for (int32_t part = 0; part < out.parts(); ++part) {
      const bool set = out.set && part + 1 == out.parts();
      const CacheStorage<float>& s = run.task.storage;
      const auto recorded = [&](int32_t of, int32_t b) {
        return s.values + b * s.value_block + int64_t(of) * s.shape.v_dim;
      };
      if (set && run.task.split) weigh_part(run, part, row, token + 1, recorded);
      else if (set)
        weigh_part(run, part, row, run.cache.size(),
                   [&](int32_t i, int32_t b) { return recorded(run.cache.token(i), b); });
      else
        weigh_part(run, part, row, run.cache.size(),
                   [&](int32_t i, int32_t b) { return run.cache.value(i, b).data(); });
    }
  }

 private:
  static constexpr float kLog2e = 1.44269504088896341f, kFar = 1e30f, kNotAttended = PolicyRun<B>::kNotAttended;

  template <class V>
  KVR_DEVICE static void weigh_part(PolicyRun<B>& run, int32_t part, int32_t row, int32_t n, V value) {
    const HeadShape s = run.shape();
    const PolicyOutput& output = run.task.output;
    const int32_t group = s.heads / s.blocks, width = output.width;
    const auto out = [&](int32_t head) {
      return output.sums.out + (part * output.part_cells + int64_t(head) * output.rows + row) * width;
    };
    for (int32_t b = 0; b < s.blocks; ++b)
      RowSums::weigh(
          run.block, n, [&](int32_t i) { return value(i, b); },
          ProductTable{run.weights_of(part, b * group), run.task.scratch.weights_pitch}, group, s.v_dim, run.partial(),
          [&](int32_t h, int32_t c, float sum) { out(b * group + h)[c] = sum; });
    const int32_t rest = width - s.v_dim;
    run.team.each(s.heads * rest, [&](int32_t i) { out(i / rest)[s.v_dim + i % rest] = 0; });
  }

  KVR_DEVICE bool of_prompt(int32_t i) const { return cache_.token(i) < run_.task.input.prompt; }
  // Takes the cache, or its two halves. Shares and coefficients are relative to tau.
  KVR_DEVICE void take_parts() {
    const StepScratch<float>& step = run_.task.scratch.step;
    const int32_t rows = cache_.size(), parts = out_.prefix ? 2 : 1;
    for (int32_t part = 0; part < parts; ++part) {
      const auto is_in = [&](int32_t i) { return !out_.prefix || of_prompt(i) == (part == 0); };
      const double share = team_.sum(rows, [&](int32_t i) { return is_in(i) ? double(step.e[i]) : 0.0; });
      float* const weights = run_.weights_of(part, head_);
      team_.each(rows,
                 [&](int32_t i) { weights[i] = is_in(i) ? float(double(step.coefficients[i]) * tau_.sum) : 0.0f; });
      put(part, tau_.shift, share * tau_.sum, 0);
    }
  }
  KVR_DEVICE int64_t cell(int32_t part) const { return part * out_.part_cells + int64_t(head_) * out_.rows + row_; }
  KVR_DEVICE void put(int32_t part, double shift, double z, double tokens) {
    if (team_.rank() != 0) return;
    const int64_t at = cell(part);
    out_.sums.top[at] = kLog2e * float(shift), out_.sums.z[at] = float(z);
    out_.sums.tokens[at] = float(tokens), out_.sums.squares[at] = 0;
  }

  // Logit of a row's token with the recorded key; a token outside the layer's window has none.
  KVR_DEVICE float logit(int32_t i) const {
    const bool left = cache_.token(i) >= 0 && cache_.token(i) < run_.oldest(view_.token);
    return left ? -kFar : run_.task.input.rule(recorded_[i]);
  }
  KVR_DEVICE bool counts(int32_t i) const { return cache_.num(i) != 0 || cache_.den(i) != 0; }
  KVR_DEVICE bool is_read(int32_t i) const { return view_.chosen == nullptr || view_.chosen[i] == kRead; }
  // A row that is not part of the softmax over the attended tokens.
  KVR_DEVICE bool is_outside_softmax(int32_t i) const {
    if (!counts(i) || (view_.chosen != nullptr && view_.chosen[i] == kUnread)) return false;
    return !is_read(i) || cache_.num(i) != 1 || cache_.den(i) != 1 || !cache_.verbatim(i) ||
           run_.offset(view_.token, i) != 0;
  }

  KVR_DEVICE static RowResult about(int32_t attended, bool plain) {
    RowResult result;
    result.attended = attended, result.plain = plain;
    return result;
  }
  // Finds what Stepwise finds on a CPU (evaluate/stepwise.cpp), if no token is in two rows.
  KVR_DEVICE RowResult result_by_rows() {
    const int32_t rows = cache_.size();
    const auto attends = [&](int32_t i) {
      return cache_.token(i) >= 0 && (view_.chosen == nullptr || (is_read(i) && counts(i)));
    };
    take_tokens(rows, attends, [&](int32_t i) { return logit(i); });
    mark_tokens(rows, attends, [&](int32_t i) { return cache_.token(i); });
    const int32_t attended = team_.count(rows, attends);
    const bool plain = view_.rule.factor == 1 && team_.count(rows, [&](int32_t i) {
      return is_outside_softmax(i) || (view_.chosen == nullptr && !counts(i));
    }) == 0;
    take_set(plain, rows, attends, [&](int32_t i) { return logit(i); });
    return about(attended, plain);
  }
  // For caches where a token may be in several rows, which all write the same number.
  KVR_DEVICE RowResult result_by_tokens() {
    const int32_t rows = cache_.size(), present = view_.token + 1;
    float* const of_token = run_.task.scratch.of_token;
    const auto attending = [&](int32_t i) { return cache_.token(i) >= 0 && is_read(i) && counts(i); };
    team_.each(rows, [&](int32_t i) {
      if (attending(i)) of_token[cache_.token(i)] = logit(i);
    });
    const auto attends = [&](int32_t j) { return of_token[j] != kNotAttended; };
    const auto logit_of = [&](int32_t j) { return of_token[j]; };
    take_tokens(present, attends, logit_of);
    mark_tokens(present, attends, [](int32_t j) { return j; });
    const int32_t attended = team_.count(present, attends);
    const int32_t reading = team_.count(rows, [&](int32_t i) { return is_read(i) && counts(i); });
    const int32_t odd = team_.count(rows, [&](int32_t i) { return is_outside_softmax(i); });
    const bool plain = view_.rule.factor == 1 && odd == 0 && reading == attended;
    take_set(plain, present, attends, logit_of);
    team_.each(present, [&](int32_t j) { of_token[j] = kNotAttended; });
    return about(attended, plain);
  }

  // Probability that the attended tokens have in the exact row, against the cache's own maximum.
  template <class A, class L>
  KVR_DEVICE void take_tokens(int32_t n, A attends, L logit_of) {
    const double sum =
        team_.sum(n, [&](int32_t i) { return attends(i) ? double(std::exp(logit_of(i) - float(tau_.shift))) : 0.0; });
    if (team_.rank() == 0) out_.sums.tokens[cell(0)] = float(sum);
  }
  // Takes the last part.
  template <class A, class L>
  KVR_DEVICE void take_set(bool plain, int32_t n, A attends, L logit_of) {
    if (!out_.set) return;
    const int32_t part = out_.parts() - 1;
    float* const weights = run_.weights_of(part, head_);
    const Scored top =
        team_.largest(n, [&](int32_t i) { return !plain && attends(i) ? double(logit_of(i)) : -double(INFINITY); });
    const bool any = top.score > -double(INFINITY);
    team_.each(n, [&](int32_t i) { weights[i] = any && attends(i) ? std::exp(logit_of(i) - float(top.score)) : 0.0f; });
    const double z = team_.sum(n, [&](int32_t i) { return double(weights[i]); });
    put(part, top.score, z, 0);
  }

  KVR_DEVICE uint32_t* bits() const {
    if (out_.attended == nullptr || (!out_.bits_by_head && head_ > 0)) return nullptr;
    return out_.attended + (int64_t(head_) * out_.rows + row_) * out_.words;
  }
  KVR_DEVICE void clear_bits() {
    uint32_t* const words = bits();
    if (words != nullptr) team_.each(out_.words, [&](int32_t w) { words[w] = 0; });
  }
  template <class A, class T>
  KVR_DEVICE void mark_tokens(int32_t n, A attends, T token) {
    uint32_t* const words = bits();
    if (words == nullptr) return;
    team_.each(n, [&](int32_t i) {
      if (attends(i)) run_.block.atomic_or(&words[token(i) / 32], uint32_t{1} << token(i) % 32);
    });
  }

  PolicyRun<B>& run_;
  const BlockTeam<B>& team_;
  const BasicCache<float>& cache_;
  const PolicyOutput& out_;
  const QueryView<float>& view_;
  int32_t head_, row_;
  Normaliser tau_;
  const float* recorded_;
};

}  // namespace kvreplay
