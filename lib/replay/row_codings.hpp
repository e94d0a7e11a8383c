#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "catalog/cell.hpp"
#include "exact/head_stream.hpp"
#include "formats/coded_tokens.hpp"

namespace kvreplay {

// A head stream as row formats see it. It outlives what is made of it.
template <class Real>
RowCoding::Stream coding_stream(const HeadStream<Real>& stream);

// What row formats need of one head stream, made once for all caches that store their rows so.
template <class Real>
class RowCodings {
 public:
  // Both null for rows as the trace has them. format: as the layer stores its rows. Throws ConfigError where the cell's
  // file of uniforms cannot be read.
  struct Shared {
    std::shared_ptr<const RowCoding> coding;
    std::shared_ptr<CodedTokens<Real>> tokens;  // null: rows are not coded one by one
  };
  // shares: caches may share what is read back of a token.
  Shared of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream, bool shares);

 private:
  std::map<std::tuple<std::string, uint32_t, std::string>, Shared> made_;
};

}  // namespace kvreplay
