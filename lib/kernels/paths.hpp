#pragma once
#include <string>
#include <vector>

#include "kernels/table.hpp"

namespace kvreplay::kernels {

struct Path {
  const char* name;
  const Table* table;  // null where this machine or this build lacks it
  bool automatic;      // it may be chosen without being named
};

// Every path, the plainest first.
const std::vector<Path>& paths();

// The best path of this machine. `wanted`, unless empty, must name a path that the machine has (ConfigError).
const Table& choose(const std::string& wanted);

// The program's choice, made once: choose(KVREPLAY_ISA).
const Table& chosen();

}  // namespace kvreplay::kernels
