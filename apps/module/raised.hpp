#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// What Python has raised, with its traceback, as UTF-8. Unlike what(), it stands any text: lone surrogates are
// escaped, and an exception that cannot be told is said to be one.
std::string raised_text(const nanobind::python_error& raised);
// Its message alone, where it is an error of this package's that says all; else the same.
std::string told_text(const nanobind::python_error& raised);

}  // namespace kvreplay::python
