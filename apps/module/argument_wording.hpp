#pragma once
#include "base/refusal.hpp"

namespace kvreplay::python {

// The words of Python: arguments of kvreplay.replay, dicts, functions of the package.
const Wording& argument_wording();

}  // namespace kvreplay::python
