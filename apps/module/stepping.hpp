#pragma once
#include <nanobind/nanobind.h>

namespace kvreplay::python {

// Defines the class behind kvreplay.stepping.
void define_stepping(nanobind::module_& module);

}  // namespace kvreplay::python
