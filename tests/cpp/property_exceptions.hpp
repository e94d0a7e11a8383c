#pragma once
#include "support.hpp"

// Who is tested for a property: every method of the registry in every phase it has, but for the exceptions
// named here with their reasons.

namespace kvreplay::test {

struct MethodCase {
  std::string method;
  CommonOptions options;
  std::string label() const { return method + " " + word(options.phase); }
  const Method& entry() const { return *find_method(registry(), method); }
};
std::vector<MethodCase> variants();
// Exactly the variants that must have a property. The name of a property must stand in the table.
std::vector<MethodCase> variants_with(const char* property);
bool excused(const char* property, const MethodCase& v);
std::vector<std::pair<std::string, std::string>> exception_names();  // (property, method)

// Parameters without a default, or whose default leaves nothing to test on streams as small as these.
nlohmann::json params_of(const std::string& method);
Cell cell_of(const MethodCase& v, int32_t budget, const StreamShape& s);
bool has_parameter(const MethodCase& v, const std::string& name);

}  // namespace kvreplay::test
