#include "list_files.hpp"

#include <fmt/core.h>

#include "trace/files.hpp"

namespace kvreplay::test {
namespace {

WrittenLists sinks_and_recent_lists(int32_t budget, const StreamShape& shape, const CommonOptions& options) {
  const int32_t sinks = std::min(2, budget - 1), steps = shape.tokens - shape.prompt;
  const bool oneshot = options.phase == Phase::oneshot;
  WrittenLists all;
  all.oneshot = oneshot ? 1 : -1;
  for (int32_t cache = 0; cache < (options.gqa_level == GqaLevel::query ? shape.heads : 1); ++cache)
    for (int32_t i = 0; i <= (oneshot ? 0 : steps); ++i) {
      std::vector<int32_t> now;
      for (int32_t t = 0, newest = shape.prompt - 1 + i; t <= newest; ++t)
        if (t < sinks || t > newest - (budget - sinks)) now.push_back(t);
      all.lists.push_back(now);
    }
  return all;
}

}  // namespace

void WrittenLists::write(H5Output& file, const std::string& group) const {
  std::vector<int32_t> flat;
  std::vector<int64_t> off = {0};
  for (const auto& list : lists) {
    flat.insert(flat.end(), list.begin(), list.end());
    off.push_back(int64_t(flat.size()));
  }
  const std::string prefix = group.empty() ? "" : group + "/";
  file.write(prefix + "kept_flat", std::span<const int32_t>(flat), {int64_t(flat.size())});
  file.write(prefix + "kept_off", std::span<const int64_t>(off), {int64_t(off.size())});
  if (!num.empty()) file.write(prefix + "num", std::span<const double>(num), {int64_t(num.size())});
  if (!den.empty()) file.write(prefix + "den", std::span<const double>(den), {int64_t(den.size())});
  for (const auto& [name, value] : {std::pair{"oneshot", oneshot}, {"attends", attends}, {"partial", partial}})
    if (value >= 0) file.attribute(group, name, int64_t{value});
}

std::filesystem::path WrittenLists::write(const std::filesystem::path& file, const std::string& group) const {
  H5Output out(file);
  write(out, group);
  out.close();
  return file;
}

std::string sinks_and_recent(int32_t budget, const StreamShape& shape, const CommonOptions& options) {
  static const Folder folder;
  const std::filesystem::path file = folder / fmt::format("{}-{}-{}-{}-{}-{}.h5", budget, shape.prompt, shape.tokens,
                                                          shape.heads, word(options.phase), word(options.gqa_level));
  if (!std::filesystem::exists(file)) sinks_and_recent_lists(budget, shape, options).write(file);
  return file.string();
}

}  // namespace kvreplay::test
