#pragma once
#include "catalog/make_policy_table.hpp"

using namespace kvreplay;

struct Base {
  static constexpr MethodInfo info{.name = "test", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  static void declare(auto&) {}
  void resolve(const MethodContext&) {}
};

// What a line of methods.list becomes: every hook is compiled, for float and for double.
#define REGISTERED(P) template PolicyTable kvreplay::policy_table<P>();
