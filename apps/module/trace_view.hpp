#pragma once
#include <nanobind/nanobind.h>

namespace kvreplay::python {

// Defines the engine's reader of traces and what it says of a file, a prompt and a layer (traces/kvtrace/trace.py).
void define_traces(nanobind::module_& module);

}  // namespace kvreplay::python
