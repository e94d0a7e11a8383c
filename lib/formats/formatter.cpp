#include "formats/formatter.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/quantise.hpp"

namespace kvreplay {
namespace {

constexpr SerialTeam kOneThread;
constexpr int64_t kScaleBytes = 4;         // offset and step of one group
constexpr int64_t kOutlierIndexBytes = 4;  // index of an outlier in its block

// Rows that refer to a recorded token reuse its coding from CodedTokens.
template <class Real>
struct KnownRows {
  const RowCoder& coder;
  CodedTokens<Real>* tokens;
  const LackingKeys& lacking;
  double* scratch;
  bool code(BasicCache<Real>& cache, int32_t row, RowCoder::Coded& all) const {
    if (lacking.code(coder, cache, row, scratch, all)) return true;
    if (tokens == nullptr || !cache.refers(row)) return false;
    const RowCoder::RowOutcome& known = tokens->of(cache.token(row));
    cache.set_coding(row, coder.coding_of(known, cache.coding(row)));
    all.add(known, cache.token(row));
    return true;
  }
};

// The counts of the other rows; outliers are not divided.
RowCounts without(RowCounts all, const RowCounts& some) {
  all.rows -= some.rows, all.values -= some.values;
  all.exact_keys -= some.exact_keys, all.exact_values -= some.exact_values;
  return all;
}

// The message for a row that cannot be coded. token: the row's token; negative for a row merged from several.
std::string row_format_refusal(RowCoder::Refusal why, int32_t token) {
  const std::string where = token < 0 ? "in a merged row" : "at token " + std::to_string(token);
  if (why == RowCoder::Refusal::position)
    return "keys: pre_rope removes the position from a key, but a merged row has no position: use keys: post_rope";
  return "the row format cannot store numbers that are not finite or beyond 65504, the range of float16, " + where +
         ": use row_format f32 or bf16";
}

}  // namespace

template <class Real>
Formatter<Real>::Formatter(std::shared_ptr<const RowCoding> coding, int32_t stored_bytes, bool split,
                           CodedTokens<Real>* known)
    : coding_(std::move(coding)), known_(known), stored_bytes_(stored_bytes), split_(split) {
  if (coding_ != nullptr && coding_->format().is_source()) coding_ = nullptr;
  if (coding_ != nullptr && !coding_->format().ages.empty()) aged_ = AgedRows<Real>(coding_);
}

template <class Real>
void Formatter<Real>::code_own(BasicCache<Real>& cache, int32_t t) {
  if (!writes() || !format().own_row_coded) return;
  if (aged_.any()) code_by_age(cache, t);
  else code_rows(cache, 0);
}

template <class Real>
void Formatter<Real>::code_new(BasicCache<Real>& cache, int32_t next) {
  if (!writes()) return;
  if (aged_.any()) return code_by_age(cache, next);
  if (has_blocks(format())) held(cache);
  if (by_block(Part::key)) code_keys(cache);
  if (by_block(Part::value)) code_values(cache);
  code_rows(cache, format().full_precision.recent - 1);
}

template <class Real>
void Formatter<Real>::code_rows(BasicCache<Real>& cache, int32_t exempt) {
  const RowCoder& coder = coding_->coder();
  if (!coder.by_row()) return;
  const HeadShape shape = cache.shape();
  row_.resize(size_t(RowCoder::scratch_doubles(shape)));
  const auto coded =
      coder.code_new(kOneThread, cache, exempt, row_.data(), KnownRows<Real>{coder, known_, lacking_, row_.data()});
  take(coded);
}

template <class Real>
void Formatter<Real>::code_by_age(BasicCache<Real>& cache, int32_t now) {
  take(aged_.bring(cache, now));
}

template <class Real>
void Formatter<Real>::take(const RowCoder::Coded& coded) {
  quantised_ += coded.changed;
  coded_.add(coded.numbers);
  if (coded.refused != RowCoder::Refusal::none) refuse(coded.refused, coded.token);
}

// kivi and gear: keys per channel in groups of g rows, values per row in groups of g channels. Once R keys are waiting,
// they are coded together, oldest first.
template <class Real>
void Formatter<Real>::code_keys(BasicCache<Real>& cache) {
  const int32_t R = kivi(Part::key).R;
  if (cache.size() - cache.coded_keys() < R) return;
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < cache.size(); ++row)
    if (cache.coding(row).key_exact() && !coding_->coder().is_sink(cache.token(row))) rows.push_back(row);
  rows.resize(rows.size() - rows.size() % size_t(R));
  if (!rows.empty()) code_block(cache, Part::key, rows);
}

// Codes every value except the newest R.
template <class Real>
void Formatter<Real>::code_values(BasicCache<Real>& cache) {
  std::vector<int32_t> rows;
  int32_t newest = kivi(Part::value).R, exact = counts_of(cache).exact_values;
  for (int32_t row = cache.size() - 1; row >= 0 && exact > 0; --row) {
    if (!stores_value(cache, row)) continue;
    const bool is_exact = cache.coding(row).value_exact();
    exact -= is_exact ? 1 : 0;
    if (newest > 0) --newest;
    else if (is_exact && !coding_->coder().is_sink(cache.token(row))) rows.push_back(row);
  }
  std::reverse(rows.begin(), rows.end());
  if (!rows.empty()) code_block(cache, Part::value, rows);
}

template <class Real>
void Formatter<Real>::code_block(BasicCache<Real>& cache, Part part, const std::vector<int32_t>& rows) {
  const HeadShape shape = cache.shape();
  const int32_t width = part == Part::key ? shape.dim : shape.v_dim, block = int32_t(blocks_.size());
  blocks_.push_back({part, {}});
  restored_.assign(size_t(shape.blocks), {});
  const size_t w = size_t(width);
  std::vector<double> work(w);
  for (int32_t b = 0; b < shape.blocks; ++b) {
    std::vector<double>& numbers = restored_[size_t(b)];
    const auto each_row = [&](auto f) {
      for (size_t i = 0; i < rows.size(); ++i) f(cache.token(rows[i]), std::span(numbers).subspan(i * w, w));
    };
    for (const int32_t row : rows) {
      const auto of_row = part == Part::key ? cache.key(row, b) : cache.value(row, b);
      numbers.insert(numbers.end(), of_row.begin(), of_row.end());
    }
    each_row([&](int32_t token, std::span<double> x) {
      if (!coding_->coder().prepare(kOneThread, part, token, x, work.data()))
        refuse(RowCoder::Refusal::position, token);
    });
    if (!failure_.empty()) return;
    if (!code_matrix(part, width, numbers)) refuse(RowCoder::Refusal::range, cache.token(rows.back()));
    each_row(
        [&](int32_t token, std::span<double> x) { coding_->coder().restore(kOneThread, part, token, x, work.data()); });
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool new_group = part == Part::key && int32_t(i) % kivi(part).g == 0;
    if (new_group) block_of_group_.push_back(block);
    const int32_t group = part == Part::key ? int32_t(block_of_group_.size()) - 1 : block;
    write_part(cache, part, rows[i], int32_t(i), group);
  }
  if (part == Part::key) held_.key_groups += groups_of(int32_t(rows.size()), kivi(part).g);
  hold(blocks_.back(), int64_t(rows.size()), width);
  held_keys_ = cache.coded_keys(), held_values_ = cache.coded_values();
}

// Codes one kv head's part of the newest block in blocks_. Returns false if a number is beyond the range of float16.
template <class Real>
bool Formatter<Real>::code_matrix(Part part, int32_t width, std::vector<double>& numbers) {
  const PartFormat& own = format().part(part);
  const int32_t rows = int32_t(numbers.size()) / width, g = kivi(part).g, levels = levels_of(kivi(part).bits);
  bool fits = true;
  const auto by_channel = [&](std::vector<double>& to) {
    for (int32_t first = 0; first < rows; first += g)
      for (int32_t c = 0; c < width; ++c) {
        double* top = to.data() + int64_t(first) * width + c;
        const bool ok = quantise_group(
            std::min(g, rows - first), levels, [&](int32_t i) { return top[int64_t(i) * width]; },
            [&](int32_t i, double x) { top[int64_t(i) * width] = x; });
        fits = fits && ok;
      }
  };
  const auto by_row = [&](std::vector<double>& to) {
    for (int32_t row = 0; row < rows; ++row)
      fits = quantise_row(std::span(to).subspan(size_t(row) * size_t(width), size_t(width)), g, levels) && fits;
  };
  const auto code = [&](std::vector<double>& to) { part == Part::key ? by_channel(to) : by_row(to); };
  if (entry_of(own).info.name == std::string(Gear::info.name))
    blocks_.back().correction = code_gear(own.as<Gear>(), part, width, numbers, code);
  else code(numbers);
  return fits;
}

// Writes row `at` of the block into the cache; the row's other part stays unchanged.
template <class Real>
void Formatter<Real>::write_part(BasicCache<Real>& cache, Part part, int32_t row, int32_t at, int32_t group) {
  const HeadShape shape = cache.shape();
  const Coding before = cache.coding(row);
  const auto restored = [&](int32_t b, int32_t c, int32_t width) {
    return Real(restored_[size_t(b)][size_t(at) * size_t(width) + size_t(c)]);
  };
  if (part == Part::key)
    cache.recode(
        kOneThread, row, [&](int32_t b, int32_t c) { return restored(b, c, shape.dim); },
        [&](int32_t b, int32_t c) { return cache.value(row, b)[size_t(c)]; });
  else
    cache.recode(
        kOneThread, row, [&](int32_t b, int32_t c) { return cache.key(row, b)[size_t(c)]; },
        [&](int32_t b, int32_t c) { return restored(b, c, shape.v_dim); });
  quantised_ += before.key_exact() && before.value_exact() ? 1 : 0;
  cache.set_coding(row, part == Part::key ? Coding{group, before.value} : Coding{before.key, group});
}

template <class Real>
void Formatter<Real>::refuse(RowCoder::Refusal why, int32_t token) {
  if (failure_.empty()) failure_ = row_format_refusal(why, token);
}

template <class Real>
CodedBytes Formatter<Real>::coded_bytes(const RowFormat& format, Part part, const HeadShape& shape) const {
  if (part == Part::value && shape.value_in_key) return {};
  const PartFormat& f = format.part(part);
  return entry_of(f).bytes(f, part, part == Part::key ? shape.dim : shape.v_dim);
}

template <class Real>
RowCounts Formatter<Real>::counts_of(const BasicCache<Real>& cache) const {
  const int32_t rows = cache.size(), exact_keys = rows - cache.coded_keys();
  RowCounts counts{rows, rows, exact_keys, rows - cache.coded_values()};
  if (split_) {
    counts.values = counts.exact_values = 0;
    for (int32_t row = 0; row < rows; ++row) {
      if (!stores_value(cache, row)) continue;
      ++counts.values;
      counts.exact_values += cache.coding(row).value_exact() ? 1 : 0;
    }
  }
  return counts;
}

template <class Real>
RowCounts Formatter<Real>::lacking_of(const BasicCache<Real>& cache) const {
  RowCounts counts;
  for (int32_t row = 0; row < cache.size() && lacking_.count > 0; ++row) {
    if (!lacking_.has(cache.token(row))) continue;
    const Coding coding = cache.coding(row);
    ++counts.rows, ++counts.values;
    counts.exact_keys += coding.key_exact() ? 1 : 0, counts.exact_values += coding.value_exact() ? 1 : 0;
  }
  return counts;
}

template <class Real>
Payload Formatter<Real>::payload_of(const HeadShape& shape, const RowCounts& counts) const {
  return payload_of(writes() ? format() : RowFormat{}, shape, counts);
}

template <class Real>
Payload Formatter<Real>::payload_of(const RowFormat& format, const HeadShape& shape, const RowCounts& counts) const {
  const int64_t dim = shape.dim, v_dim = shape.stored_v_dim();
  const int64_t exact = counts.exact_keys * dim + counts.exact_values * v_dim;
  const int64_t coded = (counts.rows - counts.exact_keys) * coded_bytes(format, Part::key, shape).codes +
                        (counts.values - counts.exact_values) * coded_bytes(format, Part::value, shape).codes;
  return {counts.rows * dim, counts.values * v_dim, exact_bytes(exact) + coded};
}

template <class Real>
Payload Formatter<Real>::payload(const BasicCache<Real>& cache) {
  if (aged_.any()) return aged_payload(cache, {});
  const Held& shared = held(cache);
  const RowCounts lacking = lacking_of(cache);
  Payload all = payload_of(cache.shape(), without(counts_of(cache), lacking));
  if (lacking.rows > 0) {
    const Payload less = payload_of(lacking_.left(cache.shape()), lacking);
    all.keys += less.keys, all.values += less.values, all.bytes += less.bytes;
  }
  all.bytes += exact_bytes(shared.factor_numbers + shared.outliers);
  return all;
}

template <class Real>
Payload Formatter<Real>::aged_payload(const BasicCache<Real>& cache, std::span<const uint8_t> read) const {
  Payload all;
  aged_.each(cache, split_, read, [&](const RowFormat& format, const RowCounts& counts) {
    const Payload own = payload_of(format, cache.shape(), counts);
    all.keys += own.keys, all.values += own.values, all.bytes += own.bytes;
  });
  return all;
}

template <class Real>
int64_t Formatter<Real>::read_bytes(const BasicCache<Real>& cache, std::span<const uint8_t> read) {
  if (!writes() && !split_)
    return exact_bytes((std::count(read.begin(), read.end(), kRead) + std::count(read.begin(), read.end(), kWeighed)) *
                           cache.shape().dim +
                       std::count(read.begin(), read.end(), kRead) * cache.shape().stored_v_dim());
  if (aged_.any()) return aged_payload(cache, read).bytes;
  RowCounts counts;
  for (int32_t row = 0; row < cache.size(); ++row) {
    if (read[size_t(row)] != kRead && read[size_t(row)] != kWeighed) continue;
    const Coding coding = cache.coding(row);
    ++counts.rows;
    counts.exact_keys += coding.key_exact() ? 1 : 0;
    if (read[size_t(row)] != kRead || !stores_value(cache, row)) continue;
    ++counts.values;
    counts.exact_values += coding.value_exact() ? 1 : 0;
  }
  const Held& shared = held(cache);
  return payload_of(cache.shape(), counts).bytes + exact_bytes(shared.factor_numbers + shared.outliers);
}

template <class Real>
int64_t Formatter<Real>::sketch_bytes(const BasicCache<Real>& cache) {
  if (!writes()) return 0;
  if (aged_.any()) {
    int64_t all = 0;
    aged_.each(cache, split_, {}, [&](const RowFormat& format, const RowCounts& counts) {
      all += sketch_bytes_of(format, cache.shape(), counts);
    });
    return all;
  }
  RowCounts counts = counts_of(cache);
  counts.outliers = coding_->coder().outliers_of(kOneThread, cache);
  const RowCounts lacking = lacking_of(cache);
  int64_t of_rows = sketch_bytes_of(format(), cache.shape(), without(counts, lacking));
  if (lacking.rows > 0)
    of_rows += sketch_bytes_of(format(), lacking_.left(cache.shape()), lacking) - coding_->static_bytes();
  if (!has_blocks(format())) return of_rows;
  const Held& shared = held(cache);
  return of_rows + kScaleBytes * shared.key_groups * cache.shape().dim + kOutlierIndexBytes * shared.outliers;
}

// Bytes of rows with scales of their own, and the bytes stored once for a kv head.
template <class Real>
int64_t Formatter<Real>::sketch_bytes_of(const RowFormat& format, const HeadShape& shape,
                                         const RowCounts& counts) const {
  const CodedBytes key = coded_bytes(format, Part::key, shape), value = coded_bytes(format, Part::value, shape);
  const int64_t keys = counts.rows - counts.exact_keys, values = counts.values - counts.exact_values;
  const CodedBytes both = row_bytes_of(format, shape.dim, shape.stored_v_dim());
  const int64_t padding = both.codes + both.scales - key.codes - key.scales - value.codes - value.scales;
  const int64_t outlier_bytes = std::max(entry_of(format.key).outlier_bytes, entry_of(format.value).outlier_bytes);
  return keys * key.scales + values * value.scales + std::min(keys, values) * padding +
         counts.outliers * outlier_bytes / shape.blocks + coding_->static_bytes();
}

template <class Real>
void Formatter<Real>::hold(const Block& block, int64_t rows, int32_t width) {
  held_.factor_numbers += block.correction.rank * (rows + width);
  held_.outliers += block.correction.outliers;
}

// code_block adds to held_; it is recounted when coded rows have been evicted.
template <class Real>
const typename Formatter<Real>::Held& Formatter<Real>::held(const BasicCache<Real>& cache) {
  const bool current = cache.coded_keys() == held_keys_ && cache.coded_values() == held_values_;
  if (current || !writes() || !has_blocks(format())) return held_;
  held_keys_ = cache.coded_keys(), held_values_ = cache.coded_values();
  held_ = {};
  std::vector<int32_t> rows_of(blocks_.size(), 0);
  std::vector<uint8_t> seen(block_of_group_.size(), 0);
  for (int32_t row = 0; row < cache.size(); ++row) {
    const Coding coding = cache.coding(row);
    if (by_block(Part::value) && !coding.value_exact() && stores_value(cache, row)) ++rows_of[size_t(coding.value)];
    if (!by_block(Part::key) || coding.key_exact()) continue;
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
