#pragma once
#include "formats/coders/nvfp4.hpp"

namespace kvreplay {

// Keys as fp8_e4m3, values as nvfp4, both with scale 1: the same numbers as {key: fp8_e4m3, value: nvfp4}.
struct Fp8KeysNvFp4Values {
  static constexpr FormatInfo info{.name = "fp8k_nvfp4v",
                                   .title = "8-bit floating point keys, 4-bit values",
                                   .source = "FP8 keys with FP4 values, discussed for vLLM and TensorRT-LLM",
                                   .tier = 2,
                                   .multiple_of = NvFp4::kBlock,
                                   .parts_differ = true};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart part, int32_t width) {
    return part == RowPart::key ? Fp8E4M3{}.bytes(part, width) : NvFp4{}.bytes(part, width);
  }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return row.part == RowPart::key ? Fp8E4M3{}.code(team, row) : NvFp4{}.code(team, row);
  }
};

}  // namespace kvreplay
