#include "replay/read_back.hpp"

#include <algorithm>
#include <memory>

#include "caches/cache_state.hpp"
#include "core/replay_error.hpp"
#include "formats/formatter.hpp"
#include "replay/runner.hpp"

namespace kvreplay {
namespace {

constexpr SerialTeam kOneThread;

class ListedCache {
 public:
  ListedCache(const HeadStream<float>& stream, const RowFormat& format, const RowUniforms& uniforms)
      : stream_(stream), held_until_(size_t(stream.tokens), 0) {
    const auto coding = std::make_shared<const RowCoding>(format, coding_stream(stream), uniforms);
    if (codes_by_token(format))
      known_ = std::make_unique<CodedTokens<float>>(coding, stream.shape, stream.tokens, stream.keys.data(),
                                                    stream.values.data());
    Layout layout;
    layout.coded = true, layout.own_rows = known_ == nullptr ? stream.tokens : 0;
    memory_.allocate(stream, stream.shape, layout, stream.tokens, false, known_.get());
    cache_ = BasicCache<float>(memory_.storage());
    cache_.clear(kOneThread);
    formatter_ = Formatter<float>(coding, stream.stored_bytes, false, known_.get());
    const size_t n = size_t(stream.tokens);
    read_ = {std::vector(n, ReadBack::kNever), std::vector(n, ReadBack::kNever), stream.keys, stream.values};
  }

  ReadBack replay(const HeldLists& held) {
    cache_.push_run(kOneThread, 0, stream_.prompt);
    keep(held.list(0));
    code(0, [&] { formatter_.code_new(cache_, stream_.prompt); });
    for (int32_t t = stream_.prompt; t < stream_.tokens; ++t) {
      const int32_t row = t - stream_.prompt;
      cache_.push_run(kOneThread, t, 1);
      code(row, [&] { formatter_.code_own(cache_, t); });
      if (held.size() > 1) keep(held.list(size_t(row) + 1));
      code(row + 1, [&] { formatter_.code_new(cache_, t + 1); });
    }
    return std::move(read_);
  }

 private:
  void keep(std::span<const int32_t> tokens) {
    ++lists_;
    for (const int32_t token : tokens) held_until_[size_t(token)] = lists_;
    cache_.retain(kOneThread, [&](int32_t row) { return held_until_[size_t(cache_.token(row))] == lists_; });
  }
  // Rows that codes_rows() codes are read coded from `row` on.
  template <class F>
  void code(int32_t row, F codes_rows) {
    const auto coded = [&] { return cache_.coded_keys() + cache_.coded_values(); };
    const int32_t before = coded();
    codes_rows();
    if (!formatter_.failure().empty()) throw ReplayError(formatter_.failure());
    if (coded() != before) note(row);
  }
  void note(int32_t row) {
    for (int32_t i = 0; i < cache_.size(); ++i) {
      const Coding coding = cache_.coding(i);
      const size_t token = size_t(cache_.token(i));
      if (!coding.key_exact() && read_.key_from[token] == ReadBack::kNever)
        read_.key_from[token] = row, put(cache_.key(i), token, read_.keys);
      if (!coding.value_exact() && read_.value_from[token] == ReadBack::kNever)
        read_.value_from[token] = row, put(cache_.value(i), token, read_.values);
    }
  }
  static void put(std::span<const float> numbers, size_t token, std::vector<float>& rows) {
    std::copy(numbers.begin(), numbers.end(), rows.begin() + int64_t(token * numbers.size()));
  }

  const HeadStream<float>& stream_;
  std::unique_ptr<CodedTokens<float>> known_;
  CacheMemory<float> memory_;
  BasicCache<float> cache_;
  Formatter<float> formatter_;
  ReadBack read_;
  std::vector<int32_t> held_until_;  // [tokens] the last list that holds the token, counted from 1
  int32_t lists_ = 0;
};

}  // namespace

ReadBack read_back(const HeadStream<float>& stream, const RowFormat& format, const RowUniforms& uniforms,
                   const HeldLists& held) {
  return ListedCache(stream, format, uniforms).replay(held);
}

}  // namespace kvreplay
