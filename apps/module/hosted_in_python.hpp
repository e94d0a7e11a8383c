#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>

#include "hosted/hosted_method.hpp"

namespace kvreplay::python {

// A method that a Python object decides (apps/kvreplay/own_methods.py): `facts_json` of the object
// says what it is, open(place) gives the object that a cache asks. Once `stop` is true nobody is asked any more.
std::unique_ptr<HostedMethod> hosted_by(nanobind::object method, const std::atomic<bool>& stop);

// The classes by which Python sees a prompt and the rows of a cache while it is asked.
void define_views(nanobind::module_& module);

}  // namespace kvreplay::python
