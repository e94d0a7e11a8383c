#include "kernels/paths.hpp"

#include <cstdlib>

#include "base/errors.hpp"
#include "kernels/kernels.hpp"
#if defined(__x86_64__)
#include "kernels/x86/features.hpp"
#endif

namespace kvreplay::kernels {
namespace {

std::vector<Path> find_paths() {
#if defined(__x86_64__)
  const Features have = features();
  return {{"portable", &kPortable},
          {"avx2", have.avx2 ? &kAvx2 : nullptr},
          {"avx512", have.avx512 ? &kAvx512 : nullptr}};
#else
  return {{"portable", &kPortable}, {"avx2", nullptr}, {"avx512", nullptr}};
#endif
}

std::string names(bool all) {
  std::string text;
  for (const Path& path : paths())
    if (all || path.table != nullptr) text += (text.empty() ? "" : ", ") + std::string(path.name);
  return text;
}

}  // namespace

const std::vector<Path>& paths() {
  static const std::vector<Path> found = find_paths();
  return found;
}

const Table& choose(const std::string& wanted) {
  const Table* best = nullptr;
  for (const Path& path : paths()) {
    if (path.table != nullptr) best = path.table;
    if (path.name != wanted) continue;
    if (path.table != nullptr) return *path.table;
    throw ConfigError("KVREPLAY_ISA=" + wanted + ": this machine lacks it. Here: " + names(false));
  }
  if (wanted.empty()) return *best;
  throw ConfigError("KVREPLAY_ISA=" + wanted + ": there is no such instruction set. Known: " + names(true) +
                    "; on this machine: " + names(false));
}

const Table& chosen() {
  static const Table& table = [&]() -> const Table& {
    const char* wanted = std::getenv("KVREPLAY_ISA");
    return choose(wanted == nullptr ? "" : wanted);
  }();
  return table;
}

}  // namespace kvreplay::kernels

namespace kvreplay {
const char* isa_path() { return kernels::chosen().name; }
}  // namespace kvreplay
