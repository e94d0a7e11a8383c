#include "base/errors.hpp"
#include "kernels/cases.hpp"

using namespace kvreplay;
using Catch::Matchers::Contains;

TEST_CASE("every available instruction set can be chosen by name, and the best one is the default", "[kernels]") {
  const kernels::Table* best = nullptr;
  for (const kernels::Path& path : kernels::paths()) {
    if (path.table == nullptr) continue;
    CHECK(&kernels::choose(path.name) == path.table);
    CHECK(std::string(path.table->name) == path.name);
    if (path.automatic) best = path.table;
  }
  CHECK(&kernels::choose("") == best);
}

TEST_CASE("an unknown instruction set is refused by name, with a list of the known ones", "[kernels]") {
  CHECK_THROWS_AS(kernels::choose("avx3"), ConfigError);
  CHECK_THROWS_WITH(kernels::choose("avx3"), Contains("KVREPLAY_ISA=avx3") && Contains("portable"));
  CHECK_THROWS_AS(kernels::choose("AVX2"), ConfigError);
}

TEST_CASE("an instruction set that the machine lacks is refused by name, never replaced", "[kernels]") {
  for (const kernels::Path& path : kernels::paths())
    if (path.table == nullptr)
      CHECK_THROWS_WITH(kernels::choose(path.name), Contains(std::string("KVREPLAY_ISA=") + path.name));
}
