#include "apps/labels.hpp"

#include "results/note.hpp"

namespace kvreplay::app {

std::string instance_text(const MethodInstance& instance) {
  return NamedInstance{instance.method().info.name, given_json(instance.values, instance.options)}.label();
}

}  // namespace kvreplay::app
