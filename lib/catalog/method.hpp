#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catalog/chain_programs.hpp"
#include "catalog/parameter.hpp"
#include "core/given_lists.hpp"
#include "core/method_info.hpp"
#include "core/philox.hpp"
#include "core/select.hpp"
#include "core/share.hpp"

// What the rest of the program knows of a method: one entry of the registry, made from the method's
// file by the line in lib/methods/methods.list.

namespace kvreplay {

nlohmann::json to_json(const CommonOptions& options);
const char* word(Phase phase);
const char* word(GqaLevel level);
const char* word(Aggregate how);
const char* word(Positions positions);
const char* word(Order order);
const char* word(PromptMode mode);
const char* word(Reweight reweight);
const char* word(Allocator allocator);
const char* word(RowFormat::Kind kind);
nlohmann::json to_json(const RowFormat& format);

template <class Real>
class Lane;  // replay/lane.hpp: one cache that is replayed

// How one cache is to be run: what the engine hands to Method::lane.
struct LaneOrder {
  nlohmann::json params;  // resolved
  CommonOptions options;
  MethodContext context;
  Rng rng;
  GivenLists given = {};
};

struct Method {
  MethodInfo info;
  std::vector<ParameterSpec> parameters;
  // Fills in what follows from the budget and checks the parameters against each other and the scene.
  // Returns every parameter, as integers, reals, booleans and words. Throws ParameterError.
  std::function<nlohmann::json(const nlohmann::json& params, const MethodContext&)> resolve;
  // CommonOptions that the user did not give: MethodInfo's, unless a variant has its own.
  std::function<CommonOptions(const nlohmann::json& params)> default_options;
  // Worth saying before a run of this instance, or "".
  std::function<const char*(const nlohmann::json& params, const CommonOptions& options)> warning;
  std::function<bool(const nlohmann::json& params)> random;  // does this instance repeat over seeds?
  std::function<bool(const nlohmann::json& params)>
      budgetless;  // a variant whose size is an output; may be empty
  bool takes_budget(const nlohmann::json& params) const {
    return info.takes_budget && !(budgetless && budgetless(params));
  }
  // Random numbers that a run can read from injected arrays.
  std::function<std::vector<RngArray>(const nlohmann::json& params, const MethodContext&)> rng_arrays;
  std::function<PromptNeeds(const nlohmann::json& params, const MethodContext&)> needs;
  std::function<OracleNeeds(const nlohmann::json& params)> oracle_needs;
  std::function<bool(const nlohmann::json& params, const CommonOptions&)> observes;  // every decode row
  // The parameter that names a file of kept lists; "": it decides itself.
  std::string lists_in;
  // Looks at probabilities, or may have been decided by them; a method that looks only at keys and values
  // runs once per kv head (C9).
  bool looks_at_queries = false;
  bool scores_prompt = false;  // takes allocators and reweighting
  // What of the prompt no selection may drop; of methods that score it.
  std::function<Protect(const nlohmann::json& params, const MethodContext&)> protection;
  // A method with a way of its own to share budgets: tokens for every testimony.
  SharedOver shared_over = SharedOver::none;
  std::function<std::vector<int32_t>(const nlohmann::json& params, const MethodContext&,
                                     const std::vector<HeadScores>&)>
      share;
  std::function<std::unique_ptr<Lane<float>>(const LaneOrder&)> lane_single;
  std::function<std::unique_ptr<Lane<double>>(const LaneOrder&)> lane_double;
  ChainPrograms programs;  // by which devices replay a cache
};

// Of an instance's parameters and axes those that are not the method's defaults: what tells it from others.
nlohmann::json given_of(const Method& method, const nlohmann::json& params, const CommonOptions& options);

using Registry = std::vector<Method>;
const Registry& registry();  // generated from methods.list; in its order
const Method* find_method(const Registry& methods, const std::string& name_or_alias);

}  // namespace kvreplay
