#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/row_coder.hpp"

namespace kvreplay {

// Keys of a prompt that lack channels (option `think`): a row holds 0 in their place, and a format codes the channels
// that are left.
struct LackingKeys {
  int32_t prompt = 0;                 // keys of tokens 0 .. prompt - 1 lack channels; 0: none does
  int32_t count = 0;                  // channels that a key lacks
  std::vector<uint8_t> dropped = {};  // [kv heads, dim] 1: the channel is lacking

  bool has(int32_t token) const { return token >= 0 && token < prompt; }
  HeadShape left(HeadShape shape) const {
    shape.dim -= count;
    return shape;
  }
  // Codes a row that lacks channels; returns false if it lacks none. scratch: as code_new() of `coder` needs it.
  template <class Real>
  bool code(const RowCoder& coder, BasicCache<Real>& cache, int32_t row, double* scratch, RowCoder::Coded& all) const {
    const int32_t token = cache.token(row);
    if (!has(token)) return false;
    const HeadShape shape = cache.shape(), less = left(shape);
    const std::vector<Real> keys = gathered(cache, row);
    const auto key = [&](int32_t b) {
      return std::span<const Real>(keys).subspan(size_t(b) * size_t(less.dim), size_t(less.dim));
    };
    const RowCoder::RowOutcome coded = coder.code_numbers(
        SerialTeam{}, less, token, key, [&](int32_t b) { return cache.value(row, b); }, scratch);
    const Coding before = cache.coding(row);
    const double* const values = scratch + int64_t(less.blocks) * less.dim;
    if (coded.changes) {
      const std::vector<double> whole = scattered(scratch, shape);
      cache.recode(
          SerialTeam{}, row, [&](int32_t b, int32_t c) { return Real(whole[size_t(b * shape.dim + c)]); },
          [&](int32_t b, int32_t c) { return Real(values[b * shape.v_dim + c]); });
    }
    cache.set_coding(row, coder.coding_of(coded, before));
    all.add(coded, token);
    return true;
  }

 private:
  template <class Real>
  std::vector<Real> gathered(const BasicCache<Real>& cache, int32_t row) const {
    std::vector<Real> keys;
    const HeadShape shape = cache.shape();
    for (int32_t b = 0; b < shape.blocks; ++b)
      for (int32_t c = 0; c < shape.dim; ++c)
        if (dropped[size_t(b * shape.dim + c)] == 0) keys.push_back(cache.key(row, b)[size_t(c)]);
    return keys;
  }
  std::vector<double> scattered(const double* left_numbers, const HeadShape& shape) const {
    std::vector<double> keys;
    for (const uint8_t lacks : dropped) keys.push_back(lacks != 0 ? 0 : *left_numbers++);
    keys.resize(size_t(shape.blocks) * size_t(shape.dim));
    return keys;
  }
};

}  // namespace kvreplay
