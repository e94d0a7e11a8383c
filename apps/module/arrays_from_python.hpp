#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <vector>

#include "trace/array_tensors.hpp"

namespace kvreplay::python {

// Arrays in the form of apps/kvreplay/sources.py, with the objects that own their memory.
struct PythonArrays {
  TraceArrays trace;
  // Both must be released with the interpreter's lock held.
  std::vector<nanobind::object> owners;
  std::vector<nanobind::ndarray<nanobind::ro>> on_device;
};
// Reads None, or a dict as traces/kvtrace/rope.py gives it.
std::optional<Rope> rope_of(nanobind::handle given);

// Throws TraceError if shapes do not fit together.
std::unique_ptr<PythonArrays> described_arrays(nanobind::dict described);

}  // namespace kvreplay::python
