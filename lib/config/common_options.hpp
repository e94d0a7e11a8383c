#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catalog/bound_method.hpp"
#include "config/problems.hpp"
#include "config/run_config.hpp"
#include "config/values.hpp"
#include "core/common_options.hpp"
#include "formats/registry.hpp"

// The axes that every method can be combined with: their names and values, and which combinations are meaningful.

namespace kvreplay {

constexpr const char* kRowFormat = "row_format";  // axis whose values are row formats
constexpr const char* kWrapper = "wrapper";       // axis whose values are wrappers
constexpr const char* kMerge = "merge";           // axis whose values are rules for evicted rows
constexpr const char* kThink = "think";           // axis whose values say which channels of keys are dropped
constexpr const char* kEnds = "protect_ends";  // axis of methods with sinks and recent: both as a share of the budget
constexpr const char* kFilePrefix = "file:";   // starts the value of an allocator that reads its budgets from a file

// The axes of conventions C4, C6, C9 and C14, and the words they take.
const std::map<std::string, std::vector<std::string>>& option_words();
// A value of an axis: a word, or an object with parameters.
struct OptionValue {
  std::string word;
  RowFormat row_format = {};
  Wrapper wrapper = {};
  // Parameters of an allocator, as in CommonOptions; heads_file: importance of headkv, gates of duo.
  double window_share = CommonOptions{}.window_share;
  LuKv lu_kv = {};
  HeadKv headkv = {};
  ZigZag zigzag = {};
  std::map<std::string, std::string> looking = {};
  std::string heads_file = {};
  Merge merge = {};
  Serving serving = {};  // one option of serving
  Think think = {};
  double ends = kUnset;  // protect_ends
  bool operator==(const OptionValue& other) const {
    return word == other.word && row_format_json(row_format) == row_format_json(other.row_format) &&
           wrapper_json(wrapper) == wrapper_json(other.wrapper) && merge_json(merge) == merge_json(other.merge) &&
           think_json(think) == think_json(other.think) && ends == other.ends && window_share == other.window_share &&
           lu_kv == other.lu_kv && headkv == other.headkv && zigzag == other.zigzag && looking == other.looking &&
           heads_file == other.heads_file && serving == other.serving;
  }
};
void set_option(CommonOptions& options, const std::string& name, const OptionValue& value);
// Why a combination has no meaning, and what to do instead, as the rule of a Refusal; "" if it has one.
std::string combination_problem(const MethodInstance& m, const Wording& words);

// Whether caches hold rows that are no recorded tokens.
bool writes_rows(const MethodInstance& m);
// Whether the method itself does so, or holds tokens several times.
bool makes_rows(const MethodInstance& m);

// Reads wrapper: none, critical, or {name: caote, level: kv} with the wrapper's parameters.
std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item);

// Reads merge: none, cam, d2o, pivot, weighted_v, gaussian or value_blend, or a map with the rule's parameters.
std::optional<Merge> read_merge(Problems& problems, const Node& item);
// Reads think: none, or {ratio: 0.5, window: 32}.
std::optional<Think> read_think(Problems& problems, const Node& item);
// Why the keys that a method keeps cannot lose channels, as merge_problem().
std::string think_problem(const MethodInstance& m, const Wording& words);
// Whether protect_ends can set parameters of the method.
bool has_ends(const Method& method);

// Why the tokens that a method evicts cannot be merged, and what to do instead, as the rule of a Refusal; ""
// if they can, or if merge is none.
std::string merge_problem(const MethodInstance& m, const Wording& words = file_wording());

}  // namespace kvreplay
