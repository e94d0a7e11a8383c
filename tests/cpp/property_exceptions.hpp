#pragma once
#include "support.hpp"

// The methods tested for a property: every method of the registry in every phase, except for the exceptions named here
// with their reasons.

namespace kvreplay::test {

struct MethodCase {
  std::string method;
  CommonOptions options;
  std::string label() const { return method + " " + word(options.phase); }
  const Method& entry() const { return *find_method(registry(), method); }
};
std::vector<MethodCase> variants();
// Exactly the variants that must have a property. The name of the property must be in the table.
std::vector<MethodCase> variants_with(const char* property);
bool excused(const char* property, const MethodCase& v);
std::vector<std::pair<std::string, std::string>> exception_names();  // (property, method)

// Parameters for small streams: those without a default, or with a default that leaves nothing to test.
nlohmann::json params_of(const std::string& method);
Cell cell_of(const MethodCase& v, int32_t budget, const StreamShape& s);
bool has_parameter(const MethodCase& v, const std::string& name);

}  // namespace kvreplay::test
