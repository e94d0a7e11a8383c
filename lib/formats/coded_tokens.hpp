#pragma once
#include <memory>
#include <vector>

#include "formats/row_coding.hpp"

namespace kvreplay {

// The decoded rows of a head stream's tokens, for a format that codes row by row. Every cache that stores an unmodified
// token in this format reads these numbers. A token is coded on first request. Not thread-safe.
template <class Real>
class CodedTokens {
 public:
  // keys [blocks, tokens, dim] and values [blocks, tokens, v_dim] must live as long as this object.
  CodedTokens(std::shared_ptr<const RowCoding> coding, const HeadShape& shape, int32_t tokens, const Real* keys,
              const Real* values)
      : coding_(std::move(coding)),
        shape_(shape),
        tokens_(tokens),
        recorded_keys_(keys),
        recorded_values_(values),
        keys_(size_t(shape.blocks) * size_t(tokens) * size_t(shape.dim)),
        values_(size_t(shape.blocks) * size_t(tokens) * size_t(shape.v_dim)),
        scratch_(size_t(RowCoder::scratch_doubles(shape))),
        coded_(size_t(tokens)),
        done_(size_t(tokens), 0) {}

  const Real* keys() const { return keys_.data(); }
  const Real* values() const { return values_.data(); }
  const RowCoder::RowOutcome& of(int32_t token) {
    if (done_[size_t(token)] == 0) code(token);
    return coded_[size_t(token)];
  }
  void code_until(int32_t end) {
    for (; coded_until_ < end; ++coded_until_) (void)of(coded_until_);
  }

 private:
  void code(int32_t token) {
    const auto row = [&](const Real* all, int32_t block, int32_t width) {
      return std::span(all + (int64_t(block) * tokens_ + token) * width, size_t(width));
    };
    coded_[size_t(token)] = coding_->coder().code_numbers(
        SerialTeam{}, shape_, token, [&](int32_t b) { return row(recorded_keys_, b, shape_.dim); },
        [&](int32_t b) { return row(recorded_values_, b, shape_.v_dim); }, scratch_.data());
    const double* const keys = scratch_.data();
    const double* const values = keys + int64_t(shape_.blocks) * shape_.dim;
    for (int32_t b = 0; b < shape_.blocks; ++b) {
      put(keys + int64_t(b) * shape_.dim, b, token, shape_.dim, keys_);
      put(values + int64_t(b) * shape_.v_dim, b, token, shape_.v_dim, values_);
    }
    done_[size_t(token)] = 1;
  }
  void put(const double* from, int32_t block, int32_t token, int32_t width, std::vector<Real>& to) const {
    for (int32_t c = 0; c < width; ++c) to[size_t((int64_t(block) * tokens_ + token) * width + c)] = Real(from[c]);
  }

  std::shared_ptr<const RowCoding> coding_;
  HeadShape shape_;
  int32_t tokens_, coded_until_ = 0;
  const Real *recorded_keys_, *recorded_values_;
  std::vector<Real> keys_, values_;
  std::vector<double> scratch_;
  std::vector<RowCoder::RowOutcome> coded_;
  std::vector<uint8_t> done_;
};

}  // namespace kvreplay
