#include <algorithm>

#include "apps/commands.hpp"
#include "apps/interpreter.hpp"

// Commands of the Python package, which are listed with the others: `python -m kvreplay COMMAND` does the work.

namespace kvreplay::app {
namespace {

void add(Command& program, const std::string& name, const std::string& help, const std::vector<std::string>& needs) {
  program.command(name, help + " (of the Python package)").leaves_the_rest().runs([name, needs](Context& context) {
    const auto own = std::find(context.words.begin() + 1, context.words.end(), name);
    return become_python("kvreplay", needs, {own, context.words.end()});
  });
}

}  // namespace

void add_python_commands(Command& program) {
  add(program, "quickstart", "the sample trace replayed, drawn and shown on a page",
      {"kvanalysis", "numpy", "pandas", "scipy", "matplotlib"});
  add(program, "import", "a trace from arrays that another tool saved", {"numpy", "h5py"});
}

}  // namespace kvreplay::app
