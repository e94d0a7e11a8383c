#pragma once
#include <map>
#include <tuple>

#include "config/problems.hpp"
#include "trace/kept_lists.hpp"

namespace kvreplay {

// Checks the kept lists that methods read from files (docs/external.md), for every selected kv head. The check comes
// before anything runs, so that a file is either right for all heads or refused.
class ListChecks {
 public:
  ListChecks(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems);
  // Checks the lists of instance m for one layer and budget.
  void check(size_t m, const PromptInfo& prompt, const MethodContext& context);

 private:
  bool is_selected(int32_t kv_head) const;
  std::vector<KeptScope> heads_of(const MethodInstance& m, const PromptInfo& prompt,
                                  const MethodContext& context) const;
  std::filesystem::path readable_file(const MethodInstance& m, const MethodContext& context,
                                      const std::vector<KeptScope>& heads);
  void check_heads(const MethodInstance& m, const std::filesystem::path& file,
                   const std::vector<KeptScope>& heads) const;

  const RunConfig& config_;
  Problems& problems_;
  bool one_head_ = false;  // one head is selected in all
  // By file, prompt and layer: why the file cannot be read; empty if it can.
  std::map<std::tuple<std::filesystem::path, std::string, int32_t>, std::string> damage_;
};

// Requirements on the lists of an instance at one place. query_heads: number of query heads in a group.
KeptScope list_scope(const CommonOptions& options, const MethodContext& context, const Place& place, LayerWindow window,
                     int32_t query_heads);

}  // namespace kvreplay
