#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "catalog/cell.hpp"
#include "exact/head_stream.hpp"
#include "formats/row_coding.hpp"

namespace kvreplay {

// What row formats need of one head stream, made once for all caches that store their rows so.
template <class Real>
class RowCodings {
 public:
  // Null for rows as the trace has them. format: as the layer stores its rows. Throws ConfigError where the cell's file
  // of uniforms cannot be read.
  std::shared_ptr<const RowCoding> of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream);

 private:
  std::map<std::tuple<std::string, uint32_t, std::string>, std::shared_ptr<const RowCoding>> made_;
};

}  // namespace kvreplay
