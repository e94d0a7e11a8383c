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
bool is_serving_key(const std::string& key);
// Reads the value of one of them; the others have their defaults.
std::optional<Serving> read_serving(Problems& problems, const Node& item, const std::string& key);
// Takes the value of one of them.
void set_serving(CommonOptions& options, const std::string& key, const Serving& value);
// The phase in which a method runs: one that cuts again and again streams, and so does the second of two methods
// (later). The first cuts once. has_phase: the configuration says it.
void set_phase(MethodInstance& m, bool has_phase, bool later);

// Why a method cannot be served as asked, as the rule of a Refusal; "" if it can.
std::string serving_problem(const MethodInstance& m, const Wording& words);
// Why a method cannot decide after a prompt that another one has cut (option `then`), and why one cannot cut it; "" if
// it can.
std::string later_problem(const MethodInstance& m, const Wording& words);
std::string first_problem(const MethodInstance& m, const Wording& words);
// Why a text with turns or branches cannot be replayed with it; "" if it can. has_turns: the run replays such a text.
std::string turns_problem(const MethodInstance& m, bool has_turns, bool has_branches, const Wording& words);
// Why its budget cannot grow with the text; "" if it can.
std::string growth_problem(const MethodInstance& m);

}  // namespace kvreplay
