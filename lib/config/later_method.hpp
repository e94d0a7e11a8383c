#pragma once
#include <functional>
#include <memory>

#include "config/problems.hpp"
#include "config/run_config.hpp"

namespace kvreplay {

constexpr const char* kThen = "then";  // option whose value is the method that decides after the prompt

// Reads the value of `then`: an entry inside an entry, with a budget of its own. read: reads the entries of a method
// into a run. Null after reporting what is wrong.
std::shared_ptr<const LaterMethod> read_later_method(const Key& key, const Node& value, Problems& problems,
                                                     const std::function<void(RunConfig&, const Node&)>& read);

}  // namespace kvreplay
