#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// Serves apps/kvreplay/reading_back.py. Returns (key_from, value_from, keys, values) as in replay/read_back.hpp.
// format: JSON. facts: dict of arrays and numbers. Throws ConfigError if rows cannot be stored in the format.
nanobind::tuple read_back(const std::string& format, nanobind::dict facts);

}  // namespace kvreplay::python
