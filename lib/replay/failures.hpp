#pragma once
#include <cstdint>
#include <new>
#include <string>

#include "base/errors.hpp"

namespace kvreplay {

// Why a cell failed, where several ways of computing it may find out.
inline std::string no_denominator(int32_t token) {
  return "the denominator at token " + std::to_string(token) +
         " is zero or not finite: nothing left to attend to";
}

// For a catch block: why a head is lost where the others go on (RunOptions::outlive_heads). What is wrong
// with more than the head is thrown on.
inline std::string why_head_is_lost(bool others_go_on) {
  if (!others_go_on) throw;
  try {
    throw;
  } catch (const TraceError& e) {
    return e.what();
  } catch (const ConfigError& e) {
    return e.what();
  } catch (const std::bad_alloc&) {
    return "out of memory: fewer --jobs need less, and so do fewer methods at a time";
  }
}

}  // namespace kvreplay
