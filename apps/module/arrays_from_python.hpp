#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <vector>

#include "trace/array_tensors.hpp"
#include "trace/trace.hpp"

namespace kvreplay::python {

// The objects that own the memory of arrays. Must be released with the interpreter's lock held.
struct ArrayOwners {
  std::vector<nanobind::object> owners;
  std::vector<nanobind::ndarray<nanobind::ro>> on_device;
};
// Arrays in the form of apps/kvreplay/sources.py.
struct PythonArrays {
  TraceArrays trace;
  ArrayOwners owned;
};
// A trace in memory, in the form of apps/kvreplay/live_trace.py.
struct PythonTrace {
  TraceInMemory trace;
  ArrayOwners owned;
};
// Reads None, or a dict as traces/kvtrace/rope.py gives it.
std::optional<Rope> rope_of(nanobind::handle given);

// Throws TraceError if shapes do not fit together.
std::unique_ptr<PythonArrays> described_arrays(nanobind::dict described);
std::unique_ptr<PythonTrace> described_trace(nanobind::dict described);

}  // namespace kvreplay::python
