#include "apps/module/raised.hpp"

namespace kvreplay::python {

namespace nb = nanobind;

std::string utf8(nb::handle text) {
  const auto bytes = nb::cast<nb::bytes>(text.attr("encode")("utf-8", "backslashreplace"));
  return {bytes.c_str(), bytes.size()};
}

nb::str text_of(const std::string& text) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "backslashreplace"));
}

std::string raised_text(const nb::python_error& raised) {
  try {
    const nb::object lines =
        nb::module_::import_("traceback").attr("format_exception")(raised.type(), raised.value(), raised.traceback());
    return utf8(nb::str("").attr("join")(lines));
  } catch (nb::python_error&) {
    return "the method raised an exception whose text cannot be read";
  }
}

std::string message_text(const nb::python_error& raised) {
  try {
    if (!nb::isinstance(raised.value(), nb::module_::import_("kvbase.errors").attr("KvreplayError")))
      return raised_text(raised);
    return utf8(nb::str(raised.value()));
  } catch (nb::python_error&) {
    return raised_text(raised);
  }
}

}  // namespace kvreplay::python
