#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Takes a budget and never evicts. Tests check that the engine notices.
struct Hoards {
  static constexpr MethodInfo info{
      .name = "hoards",
      .title = "keeps everything, whatever the budget",
      .source = "made up for a test",
      .tier = 3,
      .memory = "more than B tokens",
      .deviation = "",
  };
  static constexpr Hooks hooks{""};
  static void declare(auto&) {}
  void resolve(const MethodContext&) {}
};

}  // namespace kvreplay
