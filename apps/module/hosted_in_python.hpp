#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <vector>

#include "hosted/hosted_method.hpp"

namespace kvreplay::python {

// A method that a Python object implements (apps/kvreplay/own_methods.py): `facts_json` of the object describes it,
// open(place) returns the object that a cache calls. Once `stop` is true, no Python code is called any more.
std::unique_ptr<HostedMethod> hosted_by(nanobind::object method, const std::atomic<bool>& stop);

// The engine's methods and those that these Python objects implement.
struct AllMethods {
  AllMethods(const nanobind::list& methods, const std::atomic<bool>& stop);
  std::vector<std::unique_ptr<HostedMethod>> hosted;
  Registry registry;  // refers to `hosted`
};

// Defines the classes through which Python sees a prompt and the rows of a cache during a call.
void define_views(nanobind::module_& module);

}  // namespace kvreplay::python
