#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/cache.hpp"
#include "formats/row_coding.hpp"

namespace kvreplay {

// The rows of a cache whose format changes with their age (RowFormat::ages). A row that crosses a limit is coded from
// what its old format reads back. Coding::key and Coding::value of a row hold its entry.
template <class Real>
class AgedRows {
 public:
  AgedRows() = default;
  explicit AgedRows(std::shared_ptr<const RowCoding> coding) : coding_(std::move(coding)) {}

  bool any() const { return coding_ != nullptr; }
  // Brings every row to the entry of its age when token `now` attends.
  RowCoder::Coded bring(BasicCache<Real>& cache, int32_t now) {
    RowCoder::Coded all;
    const RowFormat& format = coding_->format();
    scratch_.resize(size_t(RowCoder::scratch_doubles(cache.shape())));
    for (int32_t row = 0; row < cache.size(); ++row) {
      const int32_t token = cache.token(row);
      if (coding_->coder().is_sink(token)) continue;
      const int32_t entry = int32_t(format.entry_at(now - token)), before = cache.coding(row).key;
      if (before == entry) continue;
      recoded_ += before == Coding::kExact ? 0 : 1;
      const RowCoder& coder = coding_->at_age(size_t(entry)).coder();
      if (coder.by_row()) all.add(code(coder, cache, row), token);
      cache.set_coding(row, {entry, entry});
    }
    return all;
  }
  // Rows that had another entry before.
  int64_t recoded() const { return recoded_; }

  // Calls f(format, counts) for the rows of each entry, and for those that no entry has coded. split: rows with num = 0
  // store no value. read: the rows that count (BasicCache flags); empty: all.
  template <class F>
  void each(const BasicCache<Real>& cache, bool split, std::span<const uint8_t> read, F f) const {
    const std::vector<RowFormat>& entries = coding_->format().ages;
    std::vector<RowCounts> counts(entries.size() + 1);  // the last: of rows that no entry has coded
    for (int32_t row = 0; row < cache.size(); ++row) {
      const uint8_t used = read.empty() ? kRead : read[size_t(row)];
      if (used != kRead && used != kWeighed) continue;
      const Coding coding = cache.coding(row);
      RowCounts& own = counts[coding.key_exact() ? entries.size() : size_t(coding.key)];
      own.rows += 1, own.values += used == kRead && (!split || cache.num(row) != 0) ? 1 : 0;
    }
    const auto report = [&](const RowFormat& format, RowCounts own) {
      own.exact_keys = format.key.is_source() ? own.rows : 0;
      own.exact_values = format.value.is_source() ? own.values : 0;
      f(format, own);
    };
    for (size_t i = 0; i < entries.size(); ++i) report(entries[i], counts[i]);
    report(RowFormat{}, counts.back());
  }

 private:
  RowCoder::RowOutcome code(const RowCoder& coder, BasicCache<Real>& cache, int32_t row) {
    const HeadShape s = cache.shape();
    const RowCoder::RowOutcome coded = coder.code_numbers(
        SerialTeam{}, s, cache.token(row), [&](int32_t b) { return cache.key(row, b); },
        [&](int32_t b) { return cache.value(row, b); }, scratch_.data());
    const double *const keys = scratch_.data(), *const values = keys + s.blocks * s.dim;
    if (coded.changes)
      cache.recode(
          SerialTeam{}, row, [&](int32_t b, int32_t c) { return Real(keys[b * s.dim + c]); },
          [&](int32_t b, int32_t c) { return Real(values[b * s.v_dim + c]); });
    return coded;
  }

  std::shared_ptr<const RowCoding> coding_;
  int64_t recoded_ = 0;
  std::vector<double> scratch_;
};

}  // namespace kvreplay
