#include <algorithm>
#include <numeric>

#include "device/head.hpp"

// Decisions of score rules on a device.

namespace kvreplay {
namespace {

constexpr size_t kLogitBytes = size_t{1} << 29;  // logits of a portion of rows

// Caches that decide together, as arrays of all of them.
class Decisions {
 public:
  Decisions(Runtime& runtime, const std::vector<DeviceDecision>& caches, int32_t tokens)
      : runtime_(runtime), caches_(caches), tokens_(size_t(tokens)) {
    size_t slots = 0, words = 0;
    for (const DeviceDecision& cache : caches) {
      first_slot_.push_back(slots), first_word_.push_back(words);
      slots += slots_of(cache), words += slots_of(cache) * size_t(cache.rule.marks.words);
    }
    fill(slots, words);
  }

  // The tasks on the device; valid as long as this object.
  const DecideTask* tasks() const { return tasks_.data(); }
  std::vector<Decided> results() const {
    std::vector<int32_t> until(until_.size()), failed(failed_.size());
    until_.download(until);
    failed_.download(failed);
    runtime_.wait();
    std::vector<Decided> each;
    for (size_t i = 0; i < caches_.size(); ++i) {
      const auto first = until.begin() + int64_t(i * tokens_);
      each.push_back({{first, first + int64_t(tokens_)}, failed[i]});
    }
    return each;
  }

 private:
  // Room for the held tokens and the newest, in whole warps. A cache may hold more than its budget only before its
  // first row.
  static size_t slots_of(const DeviceDecision& cache) {
    const size_t most = std::max(size_t(cache.rule.budget), cache.tokens.size()) + 1;
    return (most + kWarp - 1) / kWarp * kWarp;
  }
  void fill(size_t slots, size_t words) {
    std::vector<int32_t> token(slots, -1), marked(slots, 0);
    std::vector<double> score(slots, 0), marks(words, 0);
    for (size_t i = 0; i < caches_.size(); ++i) {
      const DeviceDecision& cache = caches_[i];
      std::copy(cache.tokens.begin(), cache.tokens.end(), token.begin() + int64_t(first_slot_[i]));
      std::copy(cache.scores.begin(), cache.scores.end(), score.begin() + int64_t(first_slot_[i]));
      if (cache.rule.counts())
        std::transform(cache.scores.begin(), cache.scores.end(), marked.begin() + int64_t(first_slot_[i]),
                       [](double count) { return int32_t(count); });
      const MarkRings &from = cache.rule.marks, to = rings_of(i, marks.data());
      for (size_t s = 0; s < cache.tokens.size(); ++s)
        for (int32_t w = 0; w < from.words; ++w) to.word(int64_t(s), w) = from.word(cache.tokens[s], w);
    }
    token_ = uploaded(token), marked_ = uploaded(marked), score_ = uploaded(score), marks_ = uploaded(marks);
    until_ = uploaded(std::vector<int32_t>(caches_.size() * tokens_, Residency::kStays));
    failed_ = uploaded(std::vector<int32_t>(caches_.size(), -1));
    scratch_ = DeviceArray<float>(runtime_, 2 * slots);
    std::vector<DecideTask> tasks;
    for (size_t i = 0; i < caches_.size(); ++i) tasks.push_back(task_of(i, slots));
    tasks_ = uploaded(tasks);
  }
  // Words of neighbouring slots lie side by side.
  MarkRings rings_of(size_t i, double* all) const {
    MarkRings rings = caches_[i].rule.marks;
    rings.bits = all + first_word_[i];
    rings.token_stride = 1, rings.word_stride = int64_t(slots_of(caches_[i]));
    return rings;
  }
  DecideTask task_of(size_t i, size_t slots) {
    const DeviceDecision& cache = caches_[i];
    const size_t at = first_slot_[i];
    DecideTask task{};
    task.rule = cache.rule, task.rule.marks = rings_of(i, marks_.data());
    task.first_head = cache.first_head, task.heads = cache.heads, task.begin = cache.begin;
    task.slots = int32_t(slots_of(cache));
    task.token = token_.data() + at, task.score = score_.data() + at, task.marked = marked_.data() + at;
    task.x = scratch_.data() + at, task.ahead = scratch_.data() + slots + at;
    task.until = until_.data() + i * tokens_, task.failed = failed_.data() + i;
    return task;
  }
  template <class T>
  DeviceArray<T> uploaded(const std::vector<T>& from) {
    return {runtime_, std::span(from)};
  }

  Runtime& runtime_;
  const std::vector<DeviceDecision>& caches_;
  size_t tokens_;
  std::vector<size_t> first_slot_, first_word_;
  DeviceArray<int32_t> token_, marked_, until_, failed_;
  DeviceArray<double> score_, marks_;
  DeviceArray<float> scratch_;
  DeviceArray<DecideTask> tasks_;
};

}  // namespace

// Logits of the rows over all tokens that they see: [heads, rows, pitch].
void DeviceHead::find_logits(const Rows& rows, float* logits, int64_t pitch) {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), rows.tokens.size(), false);
  AttendArgs args = attend_args(rows, keys.parts, sums);
  args.logits = logits, args.logit_pitch = pitch;
  runtime_.attend(args, width_, grade_, false);
}

std::vector<Decided> DeviceHead::decide(const std::vector<DeviceDecision>& caches) {
  const Decisions decisions(runtime_, caches, stream_.tokens);
  int32_t first = stream_.tokens;
  for (const DeviceDecision& cache : caches) first = std::min(first, cache.begin);
  while (first < stream_.tokens) {
    const int32_t left = stream_.tokens - first;
    const size_t row_bytes = size_t(heads()) * size_t(stream_.tokens) * sizeof(float);
    const int32_t count = int32_t(std::min(size_t(left), portion_rows(kLogitBytes, row_bytes, most_.rows)));
    std::vector<int32_t> tokens(size_t(count), 0);
    std::iota(tokens.begin(), tokens.end(), first);
    const Rows& rows = load_rows(std::move(tokens));
    const int32_t pitch = first + count;
    const DeviceArray<float> logits(runtime_, size_t(heads()) * size_t(count) * size_t(pitch));
    find_logits(rows, logits.data(), pitch);
    runtime_.run(DecideKernel{
        {decisions.tasks(), logits.data(), sink_logits_.data(), int32_t(caches.size()), first, count, pitch}});
    first += count;
  }
  return decisions.results();
}

}  // namespace kvreplay
