#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cache.hpp"
#include "core/row_format.hpp"
#include "formats/aged_rows.hpp"
#include "formats/coded_tokens.hpp"
#include "formats/gear_block.hpp"
#include "formats/lacking_keys.hpp"

// Row formats (docs/configuration.md, "Row formats"): how the entries of any cache are stored. By default a row is
// exact in the step in which the engine or a policy wrote it, and is coded at the end of that step, after the eviction.
// From then on policies see the decoded numbers. The cache's counts locate the rows that are due, so a step costs only
// what it changes (kivi and gear also scan the residual, and the whole cache after a coded row was evicted).

namespace kvreplay {

// Stored numbers and bytes of one kv head: keys and values, coded or exact, and the corrections of coded blocks.
struct Payload {
  int64_t keys = 0, values = 0;  // count of numbers
  int64_t bytes = 0;
};

template <class Real>
class Formatter {
 public:
  Formatter() = default;
  // coding: null for rows as the trace has them. stored_bytes: bytes of one number in the trace. split: rows with num =
  // 0 store no value. known: the decoded rows of all tokens, or null if this object must code them.
  Formatter(std::shared_ptr<const RowCoding> coding, int32_t stored_bytes, bool split,
            CodedTokens<Real>* known = nullptr);

  bool writes() const { return coding_ != nullptr; }
  // Call when C_t is complete, before any query attends: codes the new row, token t, if the configuration wants it
  // coded at once.
  void code_own(BasicCache<Real>& cache, int32_t t);
  // Call when S_t is complete: codes the rows that are due. next: the token that comes next.
  void code_new(BasicCache<Real>& cache, int32_t next);

  // From now on the keys of the prompt lack channels.
  void lack(LackingKeys keys) { lacking_ = std::move(keys); }

  Payload payload(const BasicCache<Real>& cache);
  // Bytes read for the rows with read[row] != 0; for kWeighed, only the key's bytes; for kEstimated, none.
  int64_t read_bytes(const BasicCache<Real>& cache, std::span<const uint8_t> read);
  // Bytes of scales, offsets, steps, norms and outliers, and bytes that are stored once.
  int64_t sketch_bytes(const BasicCache<Real>& cache);
  int64_t exact_bytes(int64_t numbers) const { return numbers * stored_bytes_; }
  // Rows changed by coding so far.
  int64_t quantised() const { return quantised_; }
  // Rows that were brought from one format to another as they grew older.
  int64_t recoded() const { return aged_.recoded(); }
  const CodedNumbers& numbers() const { return coded_; }
  const std::string& failure() const { return failure_; }  // empty if there is none

 private:
  using Part = RowPart;
  struct Block {  // rows that kivi or gear coded together
    Part part;
    Correction correction;
  };
  // Totals over blocks and key groups that stay stored while at least one of their rows is in the cache.
  struct Held {
    int64_t key_groups = 0, factor_numbers = 0, outliers = 0;
  };

  void code_rows(BasicCache<Real>& cache, int32_t exempt);
  void code_by_age(BasicCache<Real>& cache, int32_t now);
  void take(const RowCoder::Coded& coded);
  void code_keys(BasicCache<Real>& cache);
  void code_values(BasicCache<Real>& cache);
  void code_block(BasicCache<Real>& cache, Part part, const std::vector<int32_t>& rows);
  bool code_matrix(Part part, int32_t width, std::vector<double>& numbers);
  void write_part(BasicCache<Real>& cache, Part part, int32_t row, int32_t at, int32_t group);
  void refuse(RowCoder::Refusal why, int32_t token);

  // From counts alone: what no correction that covers groups of rows adds to.
  Payload payload_of(const HeadShape& shape, const RowCounts& counts) const;
  Payload payload_of(const RowFormat& format, const HeadShape& shape, const RowCounts& counts) const;
  int64_t sketch_bytes_of(const RowFormat& format, const HeadShape& shape, const RowCounts& counts) const;
  Payload aged_payload(const BasicCache<Real>& cache, std::span<const uint8_t> read) const;
  const RowFormat& format() const { return coding_->format(); }
  bool by_block(Part part) const { return writes() && entry_of(format().part(part)).info.by_block; }
  const Kivi& kivi(Part part) const { return format().part(part).template as<Kivi>(); }
  bool stores_value(const BasicCache<Real>& cache, int32_t row) const { return !split_ || cache.num(row) != 0; }
  // One coded row; for kivi's keys, the codes alone.
  CodedBytes coded_bytes(const RowFormat& format, Part part, const HeadShape& shape) const;
  RowCounts counts_of(const BasicCache<Real>& cache) const;   // leaves outliers at 0
  RowCounts lacking_of(const BasicCache<Real>& cache) const;  // counts the rows whose keys lack channels
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
  std::vector<int32_t> block_of_group_;  // block index of each key group
  LackingKeys lacking_;
  AgedRows<Real> aged_;
  Held held_;
  int32_t held_keys_ = 0, held_values_ = 0;    // numbers of coded rows when held_ was counted
  std::vector<std::vector<double>> restored_;  // [kv head][rows * width], scratch of code_block
  std::vector<double> row_;                    // scratch of code_rows
};

}  // namespace kvreplay
