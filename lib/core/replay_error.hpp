#pragma once
#include <stdexcept>
#include <string>

namespace kvreplay {

// One cell failed; the others continue.
struct ReplayError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::string denominator_error(int32_t token) {
  return "the denominator at token " + std::to_string(token) + " is zero or not finite: nothing left to attend to";
}

}  // namespace kvreplay
