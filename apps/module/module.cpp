#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "apps/method_text.hpp"
#include "apps/module/argument_wording.hpp"
#include "apps/module/arrays_from_python.hpp"
#include "apps/module/hosted_in_python.hpp"
#include "apps/module/live_run.hpp"
#include "apps/module/raised.hpp"
#include "apps/module/read_back.hpp"
#include "apps/module/replay_job.hpp"
#include "apps/module/stepping.hpp"
#include "apps/module/trace_view.hpp"
#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/version.hpp"
#include "kernels/kernels.hpp"
#include "results/columns.hpp"
#include "survey/suspicious_numbers.hpp"

// kvbase._engine: what the Python packages call. They are not a public interface.

namespace nb = nanobind;

namespace kvreplay::python {
namespace {

const char* class_of(const UserError& error) {
  switch (error.exit_code()) {
    case 3:
      return "TraceError";
    case 4:
      return "DeviceError";
    default:
      return "ConfigError";
  }
}

void raise(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UserError& error) {
    const nb::object type = nb::module_::import_("kvbase.errors").attr(class_of(error));
    PyErr_SetObject(type.ptr(), text_of(error.what()).ptr());
  }
}

std::string columns_json() {
  std::string all;
  for (const Column& c : columns())
    all += (all.empty() ? "" : ",") + column_facts(c).add("name", std::string(c.name)).add("measure", c.measure).text();
  return "[" + all + "]";
}

// Suspicious facts about arrays (apps/kvreplay/sources.py), one line each.
std::vector<std::string> suspicions(nb::dict described) {
  return suspicious_shapes(ArrayTensors(described_arrays(described)->trace));
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Method& method : registry()) names.emplace_back(method.info.name);
  return names;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const RowFormatEntry& format : row_formats()) names.emplace_back(format.info.name);
  return names;
}

}  // namespace
}  // namespace kvreplay::python

NB_MODULE(_engine, module) {
  using namespace kvreplay;
  using namespace kvreplay::python;
  nb::register_exception_translator(raise);
  define_views(module);
  define_traces(module);
  define_stepping(module);
  module.attr("version") = version();
  module.def("replay", [](std::string config, nb::object input, nb::list methods, nb::object on_plan,
                          nb::object on_cell, nb::object is_stopped) {
    const Ended ended = replay({{std::move(config), input, methods, is_stopped}, on_plan, on_cell});
    return nb::make_tuple(ended.seconds, text_of(ended.said));
  });
  module.def("needs_json", needs_json);
  module.def("notes_on", notes_on);
  module.def("read_back", read_back);
  module.def("suspicions", suspicions);
  module.def("isa", [] { return std::string(isa_path()); });
  module.def("columns", columns_json);
  module.def("method_names", method_names);
  module.def("format_names", format_names);
  module.def("format_json", [](const std::string& name) { return app::format_json(*find_row_format(name)); });
  module.def("format_text", [](const std::string& name) { return app::format_text(*find_row_format(name)); });
  module.def("method_json", [](const std::string& name) {
    return app::method_json(app::method_named(registry(), name, argument_wording()));
  });
  module.def("method_text", [](const std::string& name) {
    return app::method_text(app::method_named(registry(), name, argument_wording()));
  });
}
