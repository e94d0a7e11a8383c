#include "formats/formatter.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/quantise.hpp"

namespace kvreplay {
namespace {

using Kind = RowFormat::Kind;
constexpr SerialTeam kTeam;
constexpr int64_t kScaleBytes = 4;         // offset and step of a group
constexpr int64_t kOutlierIndexBytes = 4;  // of a number in its block

int32_t groups_of(int32_t width, int32_t group) { return (width + group - 1) / group; }

}  // namespace

std::string row_format_refusal(int32_t token) {
  return "the row format meets numbers beyond 65504, the range of float16, " +
         (token < 0 ? std::string("in a merged row") : "at token " + std::to_string(token)) +
         ": use row_format f32 or bf16";
}

template <class Real>
void Formatter<Real>::code_new(BasicCache<Real>& cache) {
  if (!writes()) return;
  if (format_.by_block()) {
    held(cache);
    code_keys(cache);
    code_values(cache);
  } else {
    code_rows(cache);
  }
}

template <class Real>
void Formatter<Real>::code_rows(BasicCache<Real>& cache) {
  const HeadShape shape = cache.shape();
  row_.resize(size_t(shape.blocks) * size_t(shape.dim + shape.v_dim));
  const auto coded = RowCoder{format_.kind, format_.group}.code_new(kTeam, cache, row_.data());
  quantised_ += coded.changed;
  if (coded.refused) refuse(coded.token);
}

// kivi and gear: keys per channel in groups of g rows, values per row in groups of g channels. Once R keys
// wait, they are coded together, oldest first.
template <class Real>
void Formatter<Real>::code_keys(BasicCache<Real>& cache) {
  const int32_t waiting = cache.size() - cache.coded_keys(), due = waiting - waiting % format_.residual;
  if (due == 0) return;
  std::vector<int32_t> rows;
  for (int32_t row = 0; int32_t(rows.size()) < due; ++row)
    if (cache.coding(row).key_exact()) rows.push_back(row);
  code_block(cache, Part::key, rows);
}

// Every value behind the newest R is coded.
template <class Real>
void Formatter<Real>::code_values(BasicCache<Real>& cache) {
  const auto exact = [&](int32_t row) { return stores_value(cache, row) && cache.coding(row).value_exact(); };
  int32_t due = counts_of(cache).exact_values, row = cache.size() - 1;
  for (int32_t newest = format_.residual; row >= 0 && newest > 0; --row) {
    newest -= stores_value(cache, row) ? 1 : 0;
    due -= exact(row) ? 1 : 0;
  }
  if (due == 0) return;
  std::vector<int32_t> rows;
  for (; int32_t(rows.size()) < due; --row)
    if (exact(row)) rows.push_back(row);
  std::reverse(rows.begin(), rows.end());
  code_block(cache, Part::value, rows);
}

template <class Real>
void Formatter<Real>::code_block(BasicCache<Real>& cache, Part part, const std::vector<int32_t>& rows) {
  const HeadShape shape = cache.shape();
  const int32_t width = part == Part::key ? shape.dim : shape.v_dim, block = int32_t(blocks_.size());
  blocks_.push_back({part, {}});
  restored_.assign(size_t(shape.blocks), {});
  for (int32_t b = 0; b < shape.blocks; ++b) {
    std::vector<double>& numbers = restored_[size_t(b)];
    for (const int32_t row : rows) {
      const auto of_row = part == Part::key ? cache.key(row, b) : cache.value(row, b);
      numbers.insert(numbers.end(), of_row.begin(), of_row.end());
    }
    if (!code_matrix(part, width, numbers)) refuse(cache.token(rows.back()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool new_group = part == Part::key && int32_t(i) % format_.group == 0;
    if (new_group) block_of_group_.push_back(block);
    const int32_t group = part == Part::key ? int32_t(block_of_group_.size()) - 1 : block;
    write_part(cache, part, rows[i], int32_t(i), group);
  }
  if (part == Part::key) held_.key_groups += groups_of(int32_t(rows.size()), format_.group);
  hold(blocks_.back(), int64_t(rows.size()), width);
  held_keys_ = cache.coded_keys(), held_values_ = cache.coded_values();
}

// One kv head's part of the block that was added last. False: out of the range of float16.
template <class Real>
bool Formatter<Real>::code_matrix(Part part, int32_t width, std::vector<double>& numbers) {
  const std::vector<double> exact = numbers;
  bool fits = true;
  const int32_t rows = int32_t(numbers.size()) / width, levels = levels_of(format_.bits);
  for (int32_t first = 0; part == Part::key && first < rows; first += format_.group)
    for (int32_t c = 0; c < width; ++c) {
      double* top = numbers.data() + int64_t(first) * width + c;
      const bool ok = quantise_group(
          std::min(format_.group, rows - first), levels, [&](int32_t i) { return top[int64_t(i) * width]; },
          [&](int32_t i, double x) { top[int64_t(i) * width] = x; });
      fits = fits && ok;
    }
  for (int32_t row = 0; part == Part::value && row < rows; ++row)
    fits =
        quantise_row(std::span(numbers).subspan(size_t(row) * size_t(width), size_t(width)), format_.group, levels) &&
        fits;
  if (format_.kind == Kind::gear && fits)
    blocks_.back().correction = correct(exact, width, format_.rank, format_.outliers, numbers);
  return fits;
}

// Row `at` of the block goes into the cache; the row's other part stays as it is.
template <class Real>
void Formatter<Real>::write_part(BasicCache<Real>& cache, Part part, int32_t row, int32_t at, int32_t group) {
  const HeadShape shape = cache.shape();
  const Coding before = cache.coding(row);
  const auto restored = [&](int32_t b, int32_t c, int32_t width) {
    return Real(restored_[size_t(b)][size_t(at) * size_t(width) + size_t(c)]);
  };
  if (part == Part::key)
    cache.recode(
        kTeam, row, [&](int32_t b, int32_t c) { return restored(b, c, shape.dim); },
        [&](int32_t b, int32_t c) { return cache.value(row, b)[size_t(c)]; });
  else
    cache.recode(
        kTeam, row, [&](int32_t b, int32_t c) { return cache.key(row, b)[size_t(c)]; },
        [&](int32_t b, int32_t c) { return restored(b, c, shape.v_dim); });
  count_row(before, format_.group, part == Part::key ? format_.group : shape.v_dim);
  cache.set_coding(kTeam, row, part == Part::key ? Coding{group, before.value} : Coding{before.key, group});
}

template <class Real>
void Formatter<Real>::count_row(const Coding& before, int32_t group, int32_t width) {
  const bool first = before.key_exact() && before.value_exact();
  quantised_ += first && std::min(group, width) > 1 ? 1 : 0;
}

template <class Real>
void Formatter<Real>::refuse(int32_t token) {
  if (failure_.empty()) failure_ = row_format_refusal(token);
}

template <class Real>
int64_t Formatter<Real>::bits() const {
  switch (format_.kind) {
    case Kind::source:
      return 8 * stored_bytes_;
    case Kind::f32:
      return 32;
    case Kind::f16:
    case Kind::bf16:
      return 16;
    case Kind::int8:
      return 8;
    case Kind::int4:
      return 4;
    case Kind::kivi:
    case Kind::gear:
      return format_.bits;
  }
  return 0;
}

template <class Real>
RowCounts Formatter<Real>::counts_of(const BasicCache<Real>& cache) const {
  const int32_t rows = cache.size(), exact_keys = rows - cache.coded_keys();
  if (!split_) return {rows, rows, exact_keys, rows - cache.coded_values()};
  RowCounts counts{rows, 0, exact_keys, 0};
  for (int32_t row = 0; row < rows; ++row) {
    if (!stores_value(cache, row)) continue;
    ++counts.values;
    counts.exact_values += cache.coding(row).value_exact() ? 1 : 0;
  }
  return counts;
}

template <class Real>
Payload Formatter<Real>::payload_of(const HeadShape& shape, const RowCounts& counts) const {
  const int64_t dim = shape.dim, v_dim = shape.v_dim;
  const int64_t exact = counts.exact_keys * dim + counts.exact_values * v_dim;
  const int64_t coded = (counts.rows - counts.exact_keys) * dim + (counts.values - counts.exact_values) * v_dim;
  return {counts.rows * dim, counts.values * v_dim, exact_bytes(exact) + (coded * bits() + 7) / 8};
}

template <class Real>
Payload Formatter<Real>::payload(const BasicCache<Real>& cache) {
  const Held& shared = held(cache);
  Payload all = payload_of(cache.shape(), counts_of(cache));
  all.bytes += exact_bytes(shared.factor_numbers + shared.outliers);
  return all;
}

template <class Real>
int64_t Formatter<Real>::read_bytes(const BasicCache<Real>& cache, std::span<const uint8_t> read) {
  if (!writes() && !split_)
    return exact_bytes((std::count(read.begin(), read.end(), kRead) + std::count(read.begin(), read.end(), kWeighed)) *
                           cache.shape().dim +
                       std::count(read.begin(), read.end(), kRead) * cache.shape().v_dim);
  int64_t exact = 0, coded = 0;
  for (int32_t row = 0; row < cache.size(); ++row) {
    if (read[size_t(row)] == kUnread) continue;
    const Coding coding = cache.coding(row);
    (coding.key_exact() ? exact : coded) += cache.shape().dim;
    if (read[size_t(row)] == kRead && stores_value(cache, row))
      (coding.value_exact() ? exact : coded) += cache.shape().v_dim;
  }
  const Held& shared = held(cache);
  return exact_bytes(exact + shared.factor_numbers + shared.outliers) + (coded * bits() + 7) / 8;
}

template <class Real>
int64_t Formatter<Real>::sketch_bytes(const BasicCache<Real>& cache) {
  if (!format_.by_block()) return sketch_bytes_of(cache.shape(), counts_of(cache));
  const HeadShape shape = cache.shape();
  const RowCounts counts = counts_of(cache);
  const int64_t of_values = int64_t(counts.values - counts.exact_values) * groups_of(shape.v_dim, format_.group);
  return kScaleBytes * (held(cache).key_groups * shape.dim + of_values) + kOutlierIndexBytes * held(cache).outliers;
}

template <class Real>
int64_t Formatter<Real>::sketch_bytes_of(const HeadShape& shape, const RowCounts& counts) const {
  if (!format_.quantises()) return 0;
  const int64_t of_keys = int64_t(counts.rows - counts.exact_keys) * groups_of(shape.dim, format_.group);
  const int64_t of_values = int64_t(counts.values - counts.exact_values) * groups_of(shape.v_dim, format_.group);
  return kScaleBytes * (of_keys + of_values);
}

template <class Real>
void Formatter<Real>::hold(const Block& block, int64_t rows, int32_t width) {
  held_.factor_numbers += block.correction.rank * (rows + width);
  held_.outliers += block.correction.outliers;
}

// Coding a block adds to it; it is counted anew when coded rows have left.
template <class Real>
const typename Formatter<Real>::Held& Formatter<Real>::held(const BasicCache<Real>& cache) {
  const bool current = cache.coded_keys() == held_keys_ && cache.coded_values() == held_values_;
  if (current || !format_.by_block()) return held_;
  held_keys_ = cache.coded_keys(), held_values_ = cache.coded_values();
  held_ = {};
  std::vector<int32_t> rows_of(blocks_.size(), 0);
  std::vector<uint8_t> seen(block_of_group_.size(), 0);
  for (int32_t row = 0; row < cache.size(); ++row) {
    const Coding coding = cache.coding(row);
    if (!coding.value_exact() && stores_value(cache, row)) ++rows_of[size_t(coding.value)];
    if (coding.key_exact()) continue;
    ++rows_of[size_t(block_of_group_[size_t(coding.key)])];
    held_.key_groups += seen[size_t(coding.key)] == 0 ? 1 : 0;
    seen[size_t(coding.key)] = 1;
  }
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (rows_of[i] > 0)
      hold(blocks_[i], rows_of[i], blocks_[i].part == Part::key ? cache.shape().dim : cache.shape().v_dim);
  return held_;
}

template class Formatter<float>;
template class Formatter<double>;

}  // namespace kvreplay
