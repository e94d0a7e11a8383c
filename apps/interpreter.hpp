#pragma once
#include <string>
#include <vector>

// Commands whose work is done in Python.

namespace kvreplay::app {

// Becomes `python -m MODULE WORDS`, so that Ctrl-C and every other signal reach what does the work. The Python is the
// one that KVREPLAY_PYTHON names, else the environment of a checkout, else python3. UserError if it is not there or
// lacks the module or what that needs.
int become_python(const std::string& module, const std::vector<std::string>& needs,
                  const std::vector<std::string>& words);

}  // namespace kvreplay::app
