#pragma once
#include <cstdint>
#include <string>

namespace kvreplay {

// Why a cell failed, where several ways of computing it may find out.
inline std::string no_denominator(int32_t token) {
  return "the denominator at token " + std::to_string(token) +
         " is zero or not finite: nothing left to attend to";
}

}  // namespace kvreplay
