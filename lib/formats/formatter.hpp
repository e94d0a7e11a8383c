#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/cache.hpp"
#include "core/method_info.hpp"
#include "core/row_coder.hpp"
#include "core/row_counts.hpp"
#include "formats/low_rank.hpp"

// Row formats (methods.md, "row formats"): how the entries of any cache are stored. A row is exact in the
// step in which it was written, by the engine or by a policy, and coded at that step's end, after the
// eviction; policies then see what is read back. Rows that are due are found through the cache's counts, so a
// step costs what it changes (kivi and gear: one look at the residual besides, and one at the cache when a
// coded row has left it).

namespace kvreplay {

// Of one kv head: keys and values, coded or exact, and what corrects them.
struct Payload {
  int64_t keys = 0, values = 0;  // numbers
  int64_t bytes = 0;
};

// Why a row (of a token, or with a negative one merged from several) cannot be coded.
std::string row_format_refusal(int32_t token);

template <class Real>
class Formatter {
 public:
  Formatter() = default;
  // stored_bytes: of one number in the trace. split: rows with num = 0 store no value.
  Formatter(const RowFormat& format, int32_t stored_bytes, bool split)
      : format_(format), stored_bytes_(stored_bytes), split_(split) {}

  bool writes() const { return format_.kind != RowFormat::Kind::source; }
  // The cache stands: codes what is due.
  void code_new(BasicCache<Real>& cache);

  Payload payload(const BasicCache<Real>& cache);
  // The payload by counts alone, where nothing corrects groups of rows (kivi, gear).
  Payload payload_of(const HeadShape& shape, const RowCounts& counts) const;
  // Of the rows for which read[row] is not 0; where it is kWeighed, of the key alone.
  int64_t read_bytes(const BasicCache<Real>& cache, std::span<const uint8_t> read);
  // Offsets, steps and the indices of outliers.
  int64_t sketch_bytes(const BasicCache<Real>& cache);
  int64_t sketch_bytes_of(const HeadShape& shape, const RowCounts& counts) const;
  int64_t exact_bytes(int64_t numbers) const { return numbers * stored_bytes_; }
  // Rows that were changed so far; rows whose groups hold a single number do not count.
  int64_t quantised() const { return quantised_; }
  const std::string& failure() const { return failure_; }  // or ""

 private:
  enum class Part { key, value };
  struct Block {  // rows that kivi or gear coded at one time
    Part part;
    Correction correction;
  };
  // What stays stored as long as one row of it is held.
  struct Held {
    int64_t key_groups = 0, factor_numbers = 0, outliers = 0;
  };

  void code_rows(BasicCache<Real>& cache);
  void code_keys(BasicCache<Real>& cache);
  void code_values(BasicCache<Real>& cache);
  void code_block(BasicCache<Real>& cache, Part part, const std::vector<int32_t>& rows);
  bool code_matrix(Part part, int32_t width, std::vector<double>& numbers);
  void write_part(BasicCache<Real>& cache, Part part, int32_t row, int32_t at, int32_t group);
  void count_row(const Coding& before, int32_t group, int32_t width);
  void refuse(int32_t token);

  bool stores_value(const BasicCache<Real>& cache, int32_t row) const { return !split_ || cache.num(row) != 0; }
  RowCounts counts_of(const BasicCache<Real>& cache) const;
  int64_t bits() const;  // of one coded number
  const Held& held(const BasicCache<Real>& cache);
  void hold(const Block& block, int64_t rows, int32_t width);

  RowFormat format_;
  int32_t stored_bytes_ = 4;
  bool split_ = false;
  int64_t quantised_ = 0;
  std::string failure_;
  std::vector<Block> blocks_;
  std::vector<int32_t> block_of_group_;  // of the key groups
  Held held_;
  int32_t held_keys_ = 0, held_values_ = 0;    // coded rows when held_ was counted
  std::vector<std::vector<double>> restored_;  // of each kv head, [rows, width]: scratch of code_block
  std::vector<Real> row_;                      // scratch of code_rows
};

}  // namespace kvreplay
