#include "trace/kept_lists.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/h5_array.hpp"
#include "trace/kept_checks.hpp"
#include "trace/sandbox.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostEntries = int64_t{1} << 28;

std::string group_name(const KeptScope& scope) {
  return fmt::format("{}/{:03d}/{}", scope.place.prompt, scope.place.layer, scope.place.kv_head);
}

bool has_path(const h5::Node& root, const std::string& path) {
  h5::Node at = h5::open_path(root, "");
  for (const auto& step : fs::path(path).relative_path()) {
    if (!at.is_group() || !h5::has_child(at, step.string())) return false;
    at = h5::open_child(at, step.string());
  }
  return at.is_group();
}

// Opens the group that holds the lists of a kv head.
h5::Node open_group(const h5::Node& root, const KeptScope& scope) {
  const std::string group = group_name(scope);
  if (has_path(root, group)) return h5::open_path(root, group);
  if (scope.may_be_root && h5::has_child(root, "kept_flat")) return h5::open_path(root, "");
  const char* const remedy = scope.may_be_root ? ", nor kept_flat at the root: write its lists there"
                             : h5::has_child(root, "kept_flat")
                                 ? ": lists at the root are for one kv head alone, and several are selected"
                                 : ": write lists for every kv head that is replayed, or narrow select";
  throw h5::Problem(fmt::format("{}: no group /{}{}", root.file.string(), group, remedy));
}

h5::Array open_list(const h5::Node& group, const std::string& name) {
  h5::Array array = h5::open_array(group, name);
  if (array.shape.size() != 1)
    h5::fail(array.node, fmt::format("has the shape {}, it must have one axis", h5::describe(array.shape)));
  if (array.elements() > kMostEntries)
    h5::fail(array.node, fmt::format("holds {} numbers, at most {} can be used here", array.elements(), kMostEntries));
  return array;
}

std::vector<int32_t> read_tokens(const h5::Node& group) {
  const h5::Array array = open_list(group, "kept_flat");
  std::vector<int32_t> tokens;
  for (const int64_t token : h5::read_integers(array)) {
    if (token < 0 || token > std::numeric_limits<int32_t>::max())
      h5::fail(array.node, fmt::format("holds {} at {}, which is no token's index", token, tokens.size()));
    tokens.push_back(int32_t(token));
  }
  return tokens;
}

std::vector<int64_t> read_offsets(const h5::Node& group, int64_t tokens) {
  const h5::Array array = open_list(group, "kept_off");
  std::vector<int64_t> off = h5::read_integers(array);
  if (off.size() < 2) h5::fail(array.node, "holds no list: list i is kept_flat[kept_off[i] : kept_off[i + 1]]");
  if (off.front() != 0) h5::fail(array.node, fmt::format("begins with {}, it must begin with 0", off.front()));
  for (size_t i = 1; i < off.size(); ++i)
    if (off[i] < off[i - 1])
      h5::fail(array.node, fmt::format("falls from {} to {} at {}: offsets must not decrease", off[i - 1], off[i], i));
  if (off.back() != tokens)
    h5::fail(array.node, fmt::format("ends with {}, but kept_flat holds {} tokens", off.back(), tokens));
  return off;
}

std::vector<double> read_weights(const h5::Node& group, const std::string& name, int64_t tokens) {
  const h5::Array array = open_list(group, name);
  const H5T_class_t kind = H5Tget_class(array.type.get());
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) h5::fail(array.node, "does not hold numbers");
  if (array.elements() != tokens)
    h5::fail(array.node, fmt::format("holds {} weights, but kept_flat {} tokens", array.elements(), tokens));
  std::vector<double> weights(size_t(array.elements()));
  h5::read_box(array, H5T_NATIVE_DOUBLE, {0}, array.shape, weights.data());
  return weights;
}

// Refuses lists that cannot be replayed, with the reason (docs/formats.md).
void refuse_other_lists(const h5::Node& group) {
  if (h5::flag(group, "partial").value_or(false))
    h5::fail(group, "is marked partial: its method attends to something that lists of tokens cannot express");
  if (!h5::has_child(group, "kept_flat") && h5::has_child(group, "attended_flat"))
    h5::fail(group,
             "lists the tokens that a query-time method reads, which change from step to step; write the tokens "
             "stored (kept_flat)");
}

KeptLists read_group(const h5::Node& group, int32_t caches) {
  refuse_other_lists(group);
  KeptLists lists;
  lists.tokens = read_tokens(group);
  const int64_t tokens = int64_t(lists.tokens.size());
  lists.off = read_offsets(group, tokens);
  lists.oneshot = h5::flag(group, "oneshot").value_or(lists.count() == caches);
  lists.attends = !lists.oneshot && h5::flag(group, "attends").value_or(false);
  const bool num = h5::has_child(group, "num"), den = h5::has_child(group, "den");
  if (num != den)
    h5::fail(group, fmt::format("holds {} without {}: write both, equal where a token has one weight",
                                num ? "num" : "den", num ? "den" : "num"));
  if (!num) return lists;
  lists.num = read_weights(group, "num", tokens), lists.den = read_weights(group, "den", tokens);
  return lists;
}

}  // namespace

KeptLists read_kept_lists(const fs::path& file, const KeptScope& scope) {
  const h5::Lock lock;
  try {
    const h5::Node group = open_group(h5::open_root(file), scope);
    KeptLists lists = read_group(group, scope.caches);
    check_kept_lists(lists, scope, group.where());
    return lists;
  } catch (const h5::Problem& problem) {
    throw ConfigError(problem.what());
  }
}

std::string kept_lists_problem(const fs::path& file, const std::vector<KeptScope>& heads) {
  const h5::Lock lock;
  const SandboxedRead seen = read_sandboxed([&] {
    const h5::Node root = h5::open_root(file);
    for (const KeptScope& head : heads) {
      const h5::Node group = open_group(root, head);
      for (const char* name : {"kept_flat", "kept_off", "num", "den"})
        if (h5::has_child(group, name)) (void)h5::open_array(group, name);
      for (const char* name : {"oneshot", "attends", "partial"}) (void)h5::flag(group, name);
    }
  });
  if (seen.crash.empty()) return seen.error;
  return fmt::format("{}: is damaged: reading it ends with \"{}\". Write it again", file.string(), seen.crash);
}

}  // namespace kvreplay
