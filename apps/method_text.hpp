#pragma once
#include <string>

#include "base/refusal.hpp"
#include "catalog/method.hpp"

// Describes a method for people, for programs and for the documentation.

namespace kvreplay::app {

std::string phases_text(const MethodInfo& info);  // the first is the default
std::string method_json(const Method& method);
std::string method_text(const Method& method);
std::string method_markdown(const Method& method);
// The README's table, and the page with one section for each method.
std::string methods_markdown_table(const Registry& methods);
std::string methods_markdown_page(const Registry& methods);

// Throws ConfigError that suggests similar names.
const Method& method_named(const Registry& methods, const std::string& name, const Wording& words = file_wording());

}  // namespace kvreplay::app
