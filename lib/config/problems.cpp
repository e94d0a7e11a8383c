#include "config/problems.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/text.hpp"

namespace kvreplay {

void Problems::add(Problem problem, bool at_its_mark) {
  std::string identity = fmt::format("{}\n{}", int(problem.kind), problem.refusal.identity());
  if (at_its_mark) identity += fmt::format("\n{}:{}", problem.mark.line, problem.mark.column);
  const auto [known, is_new] = known_.emplace(std::move(identity), problems_.size());
  if (is_new) problems_.push_back(std::move(problem));
  else problems_[known->second].refusal.add(problem.refusal);
}

size_t Problems::errors() const {
  const auto is_error = [](const Problem& p) { return p.kind != Kind::warning; };
  return size_t(std::count_if(problems_.begin(), problems_.end(), is_error));
}

std::vector<Problems::Problem> Problems::sorted() const {
  std::vector<Problem> all = problems_;
  std::stable_sort(all.begin(), all.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.mark.line, a.mark.column) < std::tie(b.mark.line, b.mark.column);
  });
  return all;
}

std::vector<std::string> Problems::errors(const RunConfig& config) const {
  std::vector<std::string> lines;
  for (const Problem& p : sorted())
    if (p.kind != Kind::warning) lines.push_back(config.at(p.mark, "error", p.refusal.text(words())));
  return lines;
}

std::vector<std::string> Problems::warnings(const RunConfig& config) const {
  std::vector<std::string> lines;
  for (const Problem& p : sorted())
    if (p.kind == Kind::warning) lines.push_back(config.at(p.mark, "warning", p.refusal.text(words())));
  return lines;
}

void Problems::raise(const RunConfig& config) const {
  const std::vector<std::string> lines = errors(config);
  if (lines.empty()) return;
  const bool only_traces =
      std::none_of(problems_.begin(), problems_.end(), [](const Problem& p) { return p.kind == Kind::error; });
  if (only_traces) throw TraceError(join(lines, "\n"));
  throw ConfigError(join(lines, "\n"));
}

}  // namespace kvreplay
