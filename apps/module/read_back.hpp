#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// What apps/kvreplay/reading_back.py asks: (key_from, value_from, keys, values) as replay/read_back.hpp has them.
// format: JSON. facts: dict of arrays and numbers. Throws ConfigError where rows cannot be stored so.
nanobind::tuple read_back(const std::string& format, nanobind::dict facts);

}  // namespace kvreplay::python
