#pragma once
#include <functional>
#include <memory>
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
  };
  RowCoding(const RowFormat& format, const Stream& stream, const RowUniforms& uniforms);
  RowCoding(const RowCoding&) = delete;
  RowCoding& operator=(const RowCoding&) = delete;

  const RowFormat& format() const { return format_; }
  const RowCoder& coder() const { return coder_; }
  // Bytes stored once for one kv head, from the end of the prompt on.
  int64_t static_bytes() const { return static_bytes_; }

 private:
  void make_part(RowPart part, const Stream& stream, const RowUniforms& uniforms);
  void calibrate(RowPart part, const Stream& stream);
  PartCoder& coder_of(RowPart part) { return part == RowPart::key ? coder_.key : coder_.value; }

  RowFormat format_;
  RowCoder coder_;
  std::vector<double> numbers_[2];
  int64_t static_bytes_ = 0;
};

}  // namespace kvreplay
