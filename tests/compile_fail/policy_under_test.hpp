#pragma once
#include "core/step.hpp"

using namespace kvreplay;

struct Base {
  static constexpr MethodInfo info{
      .name = "test", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  static void declare(auto&) {}
  void resolve(const MethodContext&) {}
};

// Instantiates the hooks: a concept does not look into bodies.
#define REPLAYED(P)                                                                                   \
  template bool kvreplay::replay_prompt<P, SerialTeam, BasicCache<float>, float>(                     \
      const SerialTeam&, P&, BasicCache<float>&, const Prompt<float>&, const StepRules&, bool);       \
  template int32_t kvreplay::replay_step<P, SerialTeam, BasicCache<float>, Solo<float>, float>(       \
      const SerialTeam&, P&, BasicCache<float>&, const Token<float>&, const StepRules&, Solo<float>&, \
      const StepScratch<float>&, bool);
