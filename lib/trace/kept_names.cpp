#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/kept_lists.hpp"

// The digest of kept lists and the names of their files; needs no HDF5.

namespace kvreplay {
namespace {

constexpr const char* kBudgetMark = "{budget}";

template <class T>
void append(std::string& text, const std::vector<T>& values) {
  text += fmt::format("{} ", values.size());
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

std::string digest_of(const KeptLists& lists) {
  std::string text = fmt::format("{}{} ", int{lists.oneshot}, int{lists.attends});
  append(text, lists.tokens), append(text, lists.off), append(text, lists.num), append(text, lists.den);
  return sha256_hex(text);
}

std::string kept_file_of(const std::string& pattern, std::optional<int32_t> budget) {
  std::string file = pattern;
  const size_t length = std::string(kBudgetMark).size();
  for (size_t at = file.find(kBudgetMark); at != std::string::npos; at = file.find(kBudgetMark, at)) {
    if (!budget)
      throw ConfigError(
          fmt::format("{}: {} is the budget in tokens, and there is none: add budget", pattern, kBudgetMark));
    file.replace(at, length, std::to_string(*budget));
  }
  return file;
}

}  // namespace kvreplay
