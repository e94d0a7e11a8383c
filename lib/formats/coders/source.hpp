#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

// Numbers as the trace has them: nothing is coded, and the trace determines the bytes.
struct SourceRows {
  static constexpr FormatInfo info{
      .name = "source", .title = "as the trace has it", .source = "", .tier = 1, .quantises = false};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t) { return {}; }
  template <Team T>
  CodeTally code(const T&, const CodedRow&) const {
    return {};
  }
};

}  // namespace kvreplay
