#pragma once
#include "catalog/make_policy_table.hpp"

using namespace kvreplay;

struct Base {
  static constexpr MethodInfo info{.name = "test", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  static void declare(auto&) {}
  void resolve(const MethodContext&) {}
};

// Compiles every hook for float and for double, as a line of methods.list does.
#define REGISTERED(P) template PolicyTable kvreplay::policy_table<P>();
