#pragma once
#include <optional>
#include <string>
#include <vector>

#include "config/problems.hpp"
#include "config/run_config.hpp"
#include "core/serving.hpp"

namespace kvreplay {

// The options of serving (core/serving.hpp), as an entry of `methods:` names them.
const std::vector<std::string>& serving_keys();
// Reads the value of one of them; the others have their defaults.
std::optional<Serving> read_serving(Problems& problems, const Node& item, const std::string& key);
// Takes the value of one of them.
void set_serving(CommonOptions& options, const std::string& key, const Serving& value);
// Values to show as examples.
std::vector<std::string> serving_words(const std::string& key);

// Why a method cannot be served as asked, as the rule of a Refusal; "" if it can.
std::string serving_problem(const MethodInstance& m, const Wording& words);
// Why a method cannot decide after a prompt that another one has cut (option `then`), and why one cannot cut it; "" if
// it can.
std::string later_problem(const MethodInstance& m, const Wording& words);
std::string first_problem(const MethodInstance& m);
// Why its budget cannot grow with the text; "" if it can.
std::string growth_problem(const MethodInstance& m);

}  // namespace kvreplay
