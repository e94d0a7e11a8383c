#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cache.hpp"
#include "core/row_counts.hpp"
#include "formats/coded_tokens.hpp"
#include "formats/gear_block.hpp"

// Row formats (docs/configuration.md, "Row formats"): how the entries of any cache are stored. A row is exact in the
// step in which it was written, by the engine or by a policy, unless the configuration wants it coded, and coded at
// that step's end, after the eviction; policies then see what is read back. Rows that are due are found through the
// cache's counts, so a step costs what it changes (kivi and gear: one look at the residual besides, and one at the
// cache when a coded row has left it).

namespace kvreplay {

// Of one kv head: keys and values, coded or exact, and what corrects them.
struct Payload {
  int64_t keys = 0, values = 0;  // numbers
  int64_t bytes = 0;
};

// Why a row (of a token, or with a negative one merged from several) cannot be coded.
std::string row_format_refusal(RowCoder::Refusal why, int32_t token);

template <class Real>
class Formatter {
 public:
  Formatter() = default;
  // coding: null for rows as the trace has them. stored_bytes: of one number in the trace. split: rows with num = 0
  // store no value. known: what is read back of every token, or null: rows are coded here.
  Formatter(std::shared_ptr<const RowCoding> coding, int32_t stored_bytes, bool split,
            CodedTokens<Real>* known = nullptr);

  bool writes() const { return coding_ != nullptr; }
  // C_t stands, before anybody attends: codes the row that has come, where it is not to be exact.
  void code_own(BasicCache<Real>& cache);
  // S_t stands: codes what is due.
  void code_new(BasicCache<Real>& cache);

  Payload payload(const BasicCache<Real>& cache);
  // The payload by counts alone, where nothing corrects groups of rows (kivi, gear).
  Payload payload_of(const HeadShape& shape, const RowCounts& counts) const;
  // Of the rows for which read[row] is not 0; where it is kWeighed, of the key alone.
  int64_t read_bytes(const BasicCache<Real>& cache, std::span<const uint8_t> read);
  // Scales, offsets, steps, norms, outliers and what is stored once.
  int64_t sketch_bytes(const BasicCache<Real>& cache);
  int64_t sketch_bytes_of(const HeadShape& shape, const RowCounts& counts) const;
  int64_t exact_bytes(int64_t numbers) const { return numbers * stored_bytes_; }
  // Rows that were changed so far.
  int64_t quantised() const { return quantised_; }
  const CodedNumbers& numbers() const { return coded_; }
  void take_over(const CodedNumbers& of_device) { coded_ = of_device; }
  const std::string& failure() const { return failure_; }  // or ""

 private:
  using Part = RowPart;
  struct Block {  // rows that kivi or gear coded at one time
    Part part;
    Correction correction;
  };
  // What stays stored as long as one row of it is held.
  struct Held {
    int64_t key_groups = 0, factor_numbers = 0, outliers = 0;
  };

  void code_rows(BasicCache<Real>& cache, int32_t exempt);
  void code_keys(BasicCache<Real>& cache);
  void code_values(BasicCache<Real>& cache);
  void code_block(BasicCache<Real>& cache, Part part, const std::vector<int32_t>& rows);
  bool code_matrix(Part part, int32_t width, std::vector<double>& numbers);
  void write_part(BasicCache<Real>& cache, Part part, int32_t row, int32_t at, int32_t group);
  void refuse(RowCoder::Refusal why, int32_t token);

  const RowFormat& format() const { return coding_->format(); }
  bool by_block(Part part) const { return writes() && entry_of(format().part(part)).info.by_block; }
  const Kivi& kivi(Part part) const { return format().part(part).template as<Kivi>(); }
  bool stores_value(const BasicCache<Real>& cache, int32_t row) const { return !split_ || cache.num(row) != 0; }
  CodedBytes coded_bytes(Part part, int32_t width) const;    // of a row; kivi's keys: codes alone
  RowCounts counts_of(const BasicCache<Real>& cache) const;  // without outliers
  const Held& held(const BasicCache<Real>& cache);
  void hold(const Block& block, int64_t rows, int32_t width);

  std::shared_ptr<const RowCoding> coding_;
  CodedTokens<Real>* known_ = nullptr;
  int32_t stored_bytes_ = 4;
  bool split_ = false;
  int64_t quantised_ = 0;
  CodedNumbers coded_;
  std::string failure_;
  std::vector<Block> blocks_;
  std::vector<int32_t> block_of_group_;  // of the key groups
  Held held_;
  int32_t held_keys_ = 0, held_values_ = 0;    // coded rows when held_ was counted
  std::vector<std::vector<double>> restored_;  // of each kv head, [rows, width]: scratch of code_block
  std::vector<double> row_;                    // scratch of code_rows
};

}  // namespace kvreplay
