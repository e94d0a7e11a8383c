#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// UTF-8 as a Python str. Bytes that are none, as names of files may hold, appear as escapes.
nanobind::str text_of(const std::string& text);
// A Python str as UTF-8, lone surrogates as escapes.
std::string utf8(nanobind::handle text);
// The Python exception with its traceback, as UTF-8. Unlike what(), it accepts any text: lone surrogates are escaped.
// If the exception cannot be formatted, the text says so.
std::string raised_text(const nanobind::python_error& raised);
// The message alone, if this package's own error class was raised; otherwise as raised_text().
std::string message_text(const nanobind::python_error& raised);

}  // namespace kvreplay::python
