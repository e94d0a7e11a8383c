#include "apps/module/raised.hpp"

namespace kvreplay::python {

namespace nb = nanobind;

std::string raised_text(const nb::python_error& raised) {
  try {
    const nb::object lines =
        nb::module_::import_("traceback").attr("format_exception")(raised.type(), raised.value(), raised.traceback());
    const nb::object text = nb::str("").attr("join")(lines).attr("encode")("utf-8", "backslashreplace");
    const auto bytes = nb::cast<nb::bytes>(text);
    return {bytes.c_str(), bytes.size()};
  } catch (nb::python_error&) {
    return "the method raised an exception whose text cannot be told";
  }
}

}  // namespace kvreplay::python
