#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "catalog/cell.hpp"
#include "exact/head_stream.hpp"
#include "formats/coded_tokens.hpp"

namespace kvreplay {

// The part of a head stream that row formats read. Objects made from it refer to it.
template <class Real>
RowCoding::Stream coding_stream(const HeadStream<Real>& stream);

// What row formats need from one head stream, made once for all caches that use the format.
template <class Real>
class RowCodings {
 public:
  // Both are null for rows as the trace has them. format: the row format of the layer. Throws ConfigError if the cell's
  // file of uniforms cannot be read.
  struct Shared {
    std::shared_ptr<const RowCoding> coding;
    std::shared_ptr<CodedTokens<Real>> tokens;  // null: rows are not coded one by one
  };
  // shares: whether caches may share the rows that are read back.
  Shared of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream, bool shares);

 private:
  std::map<std::tuple<std::string, uint32_t, std::string>, Shared> made_;
};

}  // namespace kvreplay
