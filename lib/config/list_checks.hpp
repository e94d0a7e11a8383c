#pragma once
#include <map>
#include <tuple>

#include "config/problems.hpp"
#include "trace/kept_lists.hpp"

namespace kvreplay {

// Checks of kept lists that methods are given (docs/external.md), of every kv head that is selected: before
// anything runs, so that a file is either right for all of them or refused.
class ListChecks {
 public:
  ListChecks(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems);
  // The lists of instance m for one layer and budget.
  void check(size_t m, const PromptInfo& prompt, const MethodContext& context);

 private:
  bool is_selected(int32_t kv_head) const;
  std::vector<KeptScope> heads_of(const MethodInstance& m, const PromptInfo& prompt,
                                  const MethodContext& context) const;
  std::filesystem::path sound_file(const MethodInstance& m, const MethodContext& context,
                                   const std::vector<KeptScope>& heads);
  void check_heads(const MethodInstance& m, const std::filesystem::path& file,
                   const std::vector<KeptScope>& heads) const;

  const RunConfig& config_;
  Problems& problems_;
  bool one_head_ = false;  // is selected in all
  // Of a file, for a prompt and a layer: how reading it ended, empty where it is sound.
  std::map<std::tuple<std::filesystem::path, std::string, int32_t>, std::string> damage_;
  std::map<size_t, int> told_;  // problems of each instance
};

// What the lists of an instance must fit at one place. query_heads: of a group.
KeptScope list_scope(const CommonOptions& options, const MethodContext& context, const Place& place, int32_t window,
                     int32_t query_heads);

}  // namespace kvreplay
