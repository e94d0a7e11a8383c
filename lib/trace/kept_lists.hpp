#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/layer_window.hpp"
#include "core/method_context.hpp"
#include "core/place.hpp"

// Kept sets of one kv head that another program computed: the contents of a file of lists (docs/external.md).

namespace kvreplay {

struct KeptLists {
  std::vector<int32_t> tokens;   // ascending in each list
  std::vector<int64_t> off{0};   // list i is tokens off[i] .. off[i + 1]
  std::vector<double> num, den;  // weight of each token; empty: all 1
  bool oneshot = false;          // one list, after the prompt
  bool attends = false;          // a step attends to the list of that step
  int32_t count() const { return int32_t(off.size()) - 1; }
};

// The kv head of the lists, and the limits they must respect.
struct KeptScope {
  Place place;
  Extent extent;
  LayerWindow window;
  int32_t caches = 1;       // caches of the kv head; their lists follow one another
  int64_t most = 0;         // most tokens in a list; 0: any number
  bool may_be_root = true;  // the only kv head, so its lists may be at the root
};

// Reads lists from /<prompt>/<LLL>/<kv head>/, or from the root. Throws ConfigError, which names file, group, dataset,
// list and value, if something is missing, damaged or impossible for a cache.
KeptLists read_kept_lists(const std::filesystem::path& file, const KeptScope& scope);

// Describes why the lists of these heads cannot be read, or "". A damaged file cannot crash this process.
std::string kept_lists_problem(const std::filesystem::path& file, const std::vector<KeptScope>& heads);

// Digest of the lists' contents, independent of their file and group.
std::string digest_of(const KeptLists& lists);

// The file for one budget: replaces `{budget}` in its name by the budget in tokens. Throws ConfigError if there is no
// budget.
std::string kept_file_of(const std::string& pattern, std::optional<int32_t> budget);

// Throws ConfigError if the lists do not fit the replay: tokens that do not exist yet, evicted tokens that return, more
// tokens than the budget, or denominator weights that sum to 0. where: "FILE: /GROUP".
void check_kept_lists(const KeptLists& lists, const KeptScope& scope, const std::string& where);

}  // namespace kvreplay
