#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "core/row_format.hpp"
#include "formats/registry.hpp"
#include "formats/row_coder.hpp"

namespace kvreplay {

// How many of the uniforms a format reads.
RowUniformCounts uniforms_of(const RowFormat& format, int32_t dim, int32_t v_dim);

// What a row format needs for one head stream besides the rows: matrices, code books, and the constants that calibrated
// formats compute from the prompt. Caches share it.
class RowCoding {
 public:
  struct Stream {
    HeadShape shape{};
    int32_t prompt = 0;                  // prompt length, in tokens
    RopeView rope;                       // must live as long as the RowCoding
    const int32_t* positions = nullptr;  // [tokens], must live as long as the RowCoding
    // Reads one part of row `token` of a kv head into row [width].
    std::function<void(RowPart, int32_t block, int32_t token, std::span<double> row)> read;
    // Mean of q q^T [dim, dim] over the prompt and the query heads of a kv head; null: there are no queries.
    std::function<std::vector<double>(int32_t block)> query_moment = {};
  };
  RowCoding(const RowFormat& format, const Stream& stream, const RowUniforms& uniforms);
  RowCoding(const RowCoding&) = delete;
  RowCoding& operator=(const RowCoding&) = delete;

  const RowFormat& format() const { return format_; }
  const RowCoder& coder() const { return coder_; }
  // The coding of rows that have entry i of a format by age.
  const RowCoding& at_age(size_t i) const { return *ages_[i]; }
  // Bytes stored once for one kv head, from the end of the prompt on.
  int64_t static_bytes() const { return static_bytes_; }
  // What results say of the calibrated constants.
  void report(std::map<std::string, double>& extras) const;

 private:
  void make_part(RowPart part, const Stream& stream, const RowUniforms& uniforms);
  void calibrate(RowPart part, const Stream& stream);
  std::vector<double> constants_of(RowPart part, const Stream& stream, int32_t block);
  std::vector<double> joint_constants_of(RowPart part, const Stream& stream, int32_t block);
  PartCoder& coder_of(RowPart part) { return part == RowPart::key ? coder_.key : coder_.value; }

  RowFormat format_;
  RowCoder coder_;
  HeadShape shape_;
  std::vector<std::unique_ptr<const RowCoding>> ages_;
  std::vector<double> numbers_[2];
  int64_t static_bytes_ = 0;
};

}  // namespace kvreplay
