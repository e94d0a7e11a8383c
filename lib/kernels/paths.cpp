#include "kernels/paths.hpp"

#include <cstdlib>
#include <deque>

#include "base/errors.hpp"
#include "kernels/kernels.hpp"
#if defined(__x86_64__)
#include "kernels/x86/features.hpp"
#endif

namespace kvreplay::kernels {
namespace {

#if defined(__x86_64__)
// The vector kernels with products on tiles.
const Table* with_tiles(bool here, const char* name, TileProduct product) {
  if (!here) return nullptr;
  static std::deque<Table> made;
  Table table = kAvx512;
  table.name = name;
  table.tile_product = product;
  return &made.emplace_back(table);
}

std::vector<Path> find_paths() {
  const Features have = features();
  return {{"portable", &kPortable, true},
          {"avx2", have.avx2 ? &kAvx2 : nullptr, true},
          {"avx512", have.avx512 ? &kAvx512 : nullptr, true},
          // At best twice the rate of float: slower than avx512 where measured.
          {"avx512bf16", with_tiles(have.avx512bf16, "avx512bf16", kAvx512Bf16Product), false},
          {"amx", with_tiles(have.amx, "amx", kAmxProduct), true}};
}
#else
std::vector<Path> find_paths() {
  return {{"portable", &kPortable, true},
          {"avx2", nullptr, true},
          {"avx512", nullptr, true},
          {"avx512bf16", nullptr, false},
          {"amx", nullptr, true}};
}
#endif

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
    if (path.table != nullptr && path.automatic) best = path.table;
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
