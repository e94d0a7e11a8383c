#pragma once
#include "config/sections.hpp"

// Keys that a method lacks, and keys of a method that stand at the root of a configuration, where they mean nothing.

namespace kvreplay {

// Why a method does not take a key, with the one that was meant.
std::string unknown_key(const Method& method, const std::string& key, const Registry& methods, const Wording& words);

// The keys of the root, beside `known`, that methods take and no section does.
std::vector<std::string> method_keys_at_root(const Node& root, const std::vector<std::string>& known,
                                             const Registry& methods);
// The root without these keys.
Node without(Node root, const std::vector<std::string>& keys);
// Reports each with an entry that works: of a configured method if one takes the key, else of another.
void tell_method_keys(const RunConfig& config, const Node& root, const std::vector<std::string>& keys,
                      const Source& source, Problems& problems);

}  // namespace kvreplay
