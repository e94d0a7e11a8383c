#pragma once
#include <string>
#include <vector>

#include "catalog/policy_table.hpp"
#include "parameters/parameter.hpp"

// A method as the rest of the program sees it: one entry of the registry, made from the method's file by its line in
// lib/methods/methods.list.

namespace kvreplay {

// Words used in configurations and results.
const char* word(Phase phase);
const char* word(GqaLevel level);
const char* word(Aggregate how);
const char* word(Positions positions);
const char* word(Order order);
std::string wrapper_json(const Wrapper& wrapper);
std::string merge_json(const Merge& merge);
std::string think_json(const Think& think);
std::string allocator_json(const CommonOptions& options);
const char* word(PromptMode mode);
const char* word(Reweight reweight);
const char* word(Allocator allocator);
const char* word(Merge::Rule rule);
const char* word(Pages::Evict evict);
const char* word(Pages::Score score);
const char* word(Pages::Heads heads);

struct Method : PolicyTable {
  std::vector<ParameterSpec> parameters;
  std::vector<std::byte> defaults;  // a policy with every parameter at its default
  // The parameter that names a file of kept lists; "" if the method decides itself.
  std::string lists_in;
  // True if the method may depend on probabilities. A method that depends only on keys and values decides the same for
  // every query head, and separately for every kv head.
  bool looks_at_queries = false;
  bool scores_prompt = false;  // accepts allocators and reweighting
  bool shares_budget = false;  // by the method's rule: a head's tokens depend on its layer or on other heads

  explicit Method(const PolicyTable& table);
  // A method with defaults other than those of its type.
  Method(std::vector<std::byte> defaults, const PolicyTable& table);
  const ParameterSpec* parameter(const std::string& name) const;  // null if there is none of that name
};

using Registry = std::vector<Method>;
const Registry& registry();  // generated from methods.list, in its order
const Method* find_method(const Registry& methods, const std::string& name_or_alias);

}  // namespace kvreplay
