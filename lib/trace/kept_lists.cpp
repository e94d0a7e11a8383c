#include "trace/kept_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/h5_array.hpp"
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

namespace {

class ListChecks {
 public:
  ListChecks(const KeptLists& lists, const KeptScope& scope, const std::string& where)
      : lists_(lists), scope_(scope), where_(where) {}

  void all() const {
    const int32_t each = count_of_each();
    for (int32_t i = 0; i < lists_.count(); ++i) {
      const int32_t step = i % each, newest = scope_.extent.prompt_tokens - 1 + step;
      check_order(i, newest);
      if (step > 0) check_returns(i, newest);
      check_size(i, newest);
      check_weights(i);
    }
  }

 private:
  using List = std::span<const int32_t>;
  List list(int32_t i) const {
    return List(lists_.tokens)
        .subspan(size_t(lists_.off[size_t(i)]), size_t(lists_.off[size_t(i) + 1] - lists_.off[size_t(i)]));
  }
  // e.g. "list 3 (after token 770)"
  std::string name(int32_t i, int32_t newest) const { return fmt::format("list {} (after token {})", i, newest); }
  [[noreturn]] void fail(const std::string& what) const { throw ConfigError(fmt::format("{}: {}", where_, what)); }

  // Number of lists per cache: one after the prompt, and for streaming methods one after every later step.
  int32_t count_of_each() const {
    const int32_t every = 1 + scope_.extent.tokens - scope_.extent.prompt_tokens, each = lists_.oneshot ? 1 : every;
    const std::string caches =
        scope_.caches > 1 ? fmt::format(", for each of {} query heads (gqa.level: query)", scope_.caches) : "";
    if (lists_.count() != each * scope_.caches)
      fail(fmt::format(
          "kept_off makes {} lists, but a prompt of {} tokens and {} later ones need {}{}{}: write "
          "the list after the prompt alone (oneshot = 1), or that and one after every later token",
          lists_.count(), scope_.extent.prompt_tokens, scope_.extent.tokens - scope_.extent.prompt_tokens,
          lists_.oneshot ? "1" : fmt::format("1 or {}", every), caches, lists_.oneshot ? " (oneshot is 1)" : ""));
    return each;
  }

  void check_order(int32_t i, int32_t newest) const {
    const List now = list(i);
    for (size_t j = 0; j < now.size(); ++j) {
      if (now[j] < 0 || now[j] > newest)
        fail(fmt::format(
            "kept_flat: {} holds {}, but only tokens 0 to {} exist by then{}", name(i, newest), now[j], newest,
            now[j] >= scope_.extent.tokens
                ? fmt::format("; the trace has {}: do the lists belong to another trace?", scope_.extent.tokens)
                : ": a list may not know the future"));
      if (j > 0 && now[j] <= now[j - 1])
        fail(fmt::format("kept_flat: {} holds {} behind {}: write every token once, in ascending order",
                         name(i, newest), now[j], now[j - 1]));
    }
  }

  // First token that a query behind `newest` can see; tokens outside the window need no check.
  int32_t oldest(int32_t newest) const { return scope_.window.first(newest); }

  // An evicted token must not return. Both lists ascend.
  void check_returns(int32_t i, int32_t newest) const {
    const List before = list(i - 1);
    auto held = before.begin();
    for (const int32_t token : list(i)) {
      held = std::find_if(held, before.end(), [&](int32_t other) { return other >= token; });
      const bool stayed = held != before.end() && *held == token;
      if (!stayed && token != newest && token >= oldest(newest))
        fail(
            fmt::format("kept_flat: {} holds {}, which list {} does not: an evicted token cannot return. "
                        "Lists say what is stored, not what a step reads",
                        name(i, newest), token, i - 1));
    }
  }

  void check_size(int32_t i, int32_t newest) const {
    const int32_t first = oldest(newest);
    const List now = list(i);
    const int64_t held = std::count_if(now.begin(), now.end(), [&](int32_t token) { return token >= first; });
    if (scope_.most > 0 && held > scope_.most)
      fail(
          fmt::format("kept_flat: {} holds {} tokens, more than the budget of {}: raise budget, leave it out, or "
                      "list fewer",
                      name(i, newest), held, scope_.most));
  }

  void check_weights(int32_t i) const {
    if (lists_.num.empty()) return;
    const int64_t begin = lists_.off[size_t(i)], end = lists_.off[size_t(i) + 1];
    double sum = 0;
    for (int64_t at = begin; at < end; ++at) {
      const double num = lists_.num[size_t(at)], den = lists_.den[size_t(at)];
      if (!std::isfinite(num)) fail(fmt::format("num: holds {} at {}: weights are finite", num, at));
      if (!(std::isfinite(den) && den >= 0))
        fail(fmt::format("den: holds {} at {}: weights of the denominator are finite and not negative", den, at));
      sum += den;
    }
    if (begin < end && !(sum > 0))
      fail(fmt::format("den: list {} has weights that sum to 0: leave the list empty, or give some token a weight", i));
  }

  const KeptLists& lists_;
  const KeptScope& scope_;
  const std::string& where_;
};

}  // namespace

void check_kept_lists(const KeptLists& lists, const KeptScope& scope, const std::string& where) {
  ListChecks(lists, scope, where).all();
}

}  // namespace kvreplay
