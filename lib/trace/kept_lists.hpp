#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/method_context.hpp"
#include "core/place.hpp"

// Kept sets of one kv head that were computed elsewhere: what a file of lists holds (docs/external.md).

namespace kvreplay {

struct KeptLists {
  std::vector<int32_t> tokens;   // ascending in each list
  std::vector<int64_t> off{0};   // list i is tokens off[i] .. off[i + 1]
  std::vector<double> num, den;  // of each token; empty: all 1
  bool oneshot = false;          // one list, after the prompt
  bool attends = false;          // a step attends to its own list
  int32_t count() const { return int32_t(off.size()) - 1; }
};

// Whose lists, and what they must fit.
struct KeptScope {
  Place place;
  Extent extent;
  int32_t window = 0;       // the layer's sliding window; 0: none
  int32_t caches = 1;       // of the kv head, the lists of one after those of the other
  int64_t most = 0;         // tokens of a list; 0: any number
  bool may_be_root = true;  // it is the only kv head, so its lists may stand at the root
};

// Lists under /<prompt>/<LLL>/<kv head>/, or at the root. Throws ConfigError that names file, group, dataset,
// list and value where something is missing, damaged or no cache could hold it.
KeptLists read_kept_lists(const std::filesystem::path& file, const KeptScope& scope);

// What is wrong with how a file holds these lists, found without risk to this process; "" if nothing is.
std::string why_unreadable(const std::filesystem::path& file, const std::vector<KeptScope>& heads);

// Of everything that the lists say, wherever they lie.
std::string digest_of(const KeptLists& lists);

// The file for one budget: `{budget}` in its name is the budget in tokens. Throws ConfigError where there is
// none.
std::string kept_file_of(const std::string& pattern, std::optional<int32_t> budget);

}  // namespace kvreplay
