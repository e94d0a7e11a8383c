#pragma once
#include "formats/coders/floats.hpp"
#include "formats/coders/fp8.hpp"
#include "formats/coders/fp8k_nvfp4v.hpp"
#include "formats/coders/ik_llama.hpp"
#include "formats/coders/integers.hpp"
#include "formats/coders/kivi.hpp"
#include "formats/coders/kvquant.hpp"
#include "formats/coders/llama.hpp"
#include "formats/coders/mx.hpp"
#include "formats/coders/nvfp4.hpp"
#include "formats/coders/oscar.hpp"
#include "formats/coders/pca.hpp"
#include "formats/coders/polar.hpp"
#include "formats/coders/source.hpp"
#include "formats/coders/token_head.hpp"
#include "formats/coders/turboquant.hpp"

namespace kvreplay {

template <class... F>
struct FormatList {};

// Every row format, one line each; `source` must be first. Configurations, `kvreplay list formats`, the docs table,
// devices and tests are all derived from this list.
using RowFormats = FormatList<  //
    SourceRows,                 //
    F32,                        //
    F16,                        //
    Bf16,                       //
    Int8,                       //
    Int4,                       //
    Int3,                       //
    Int2,                       //
    Fp8E4M3,                    //
    Fp8E5M2,                    //
    Fp8DsMla,                   //
    NvFp4,                      //
    Fp8KeysNvFp4Values,         //
    MxFp4,                      //
    MxFp8,                      //
    Q8_0,                       //
    Q5_1,                       //
    Q5_0,                       //
    Q4_1,                       //
    Q4_0,                       //
    Q6_0,                       //
    Iq4Nl,                      //
    Int8TokenHead,              //
    Int4TokenHead,              //
    TurboQuantK8V4,             //
    TurboQuant4,                //
    TurboQuantK3V4,             //
    TurboQuant3,                //
    TqMse,                      //
    TqProd,                     //
    KvQuant,                    //
    Polar,                      //
    Pca,                        //
    Oscar,                      //
    Kivi,                       //
    Gear>;

// Codes a row with the format at index format.which. Formats that code several rows together leave the row unchanged.
template <Team T, class... F>
CodeTally code_row(const T& team, const PartFormat& format, const CodedRow& row, FormatList<F...>) {
  CodeTally done;
  int32_t place = 0;
  const auto with = [&]<class One>(const One& one) {
    if constexpr (requires { one.code(team, row); }) done = one.code(team, row);
  };
  ((place++ == format.which ? with(format.as<F>()) : void()), ...);
  return done;
}

}  // namespace kvreplay
