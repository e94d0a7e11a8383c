#include "results/notes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"

namespace kvreplay {
namespace {

constexpr size_t kNamed = 4;  // instances that one sentence names

using Instances = std::vector<uint32_t>;
using Budgets = std::vector<int32_t>;

// Mixes the bits of a number, so that each depends on all of them.
uint64_t mixed(uint64_t x) {
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 27, x *= 0x94d049bb133111ebU;
  return x ^ x >> 31;
}
uint64_t mixed(uint64_t a, uint64_t b) { return mixed(mixed(a) + b); }

std::string budgets_text(const Budgets& budgets) {
  if (budgets.empty()) return "";
  std::vector<std::string> words;
  for (const int32_t tokens : budgets) words.push_back(std::to_string(tokens));
  return fmt::format(" at budget{} {}", words.size() > 1 ? "s" : "", join(words));
}

// "a", "a and b", "a, b, c, d and 3 more"
std::string listed(std::vector<std::string> names) {
  if (names.size() > kNamed + 1) {
    const size_t more = names.size() - kNamed;
    names.resize(kNamed);
    names.push_back(fmt::format("{} more", more));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : join(names) + " and " + last;
}

// A note in progress: counts cells as they arrive.
struct Draft {
  std::set<uint32_t> heads, traces;
  size_t cells = 0;
  void add(const SeenCell& cell, const SeenCells& seen) {
    ++cells;
    heads.insert(cell.head), traces.insert(seen.heads()[cell.head].trace);
  }
  void add(const Draft& other) {
    cells += other.cells;
    heads.insert(other.heads.begin(), other.heads.end()), traces.insert(other.traces.begin(), other.traces.end());
  }
  Note note(NoteKind kind, const SeenCells& seen) const {
    Note note;
    note.kind = kind, note.cells = cells, note.heads = heads.size();
    for (const uint32_t trace : traces) note.traces.push_back(seen.traces()[trace]);
    return note;
  }
};

// Counts by instance and budget.
using Counts = std::map<std::pair<uint32_t, int32_t>, Draft>;

Counts counted(const SeenCells& seen, auto wanted) {
  Counts counts;
  for (const SeenCell& cell : seen.cells())
    if (wanted(cell)) counts[{cell.instance, cell.budget}].add(cell, seen);
  return counts;
}

Draft summed(const Counts& counts, const Instances& instances, const Budgets& budgets) {
  Draft sum;
  for (const uint32_t instance : instances)
    for (const int32_t budget : budgets) sum.add(counts.at({instance, budget}));
  return sum;
}

std::vector<std::string> labels_of(const Instances& instances, const SeenCells& seen) {
  std::vector<std::string> labels;
  for (const uint32_t instance : instances) labels.push_back(seen.instances()[instance].label());
  return labels;
}

struct Words {
  NoteKind kind;
  const char *brief, *text;  // for a row, and for a sentence
};
constexpr Words kInstanceNotes[] = {
    {NoteKind::budget_holds_all, "budget holds all tokens",
     "the budget is at least the number of tokens of the trace, so "
     "nothing is evicted"},
    {NoteKind::budget_holds_prompt, "budget holds the prompt",
     "the budget is at least the length of the prompt, so a "
     "one-shot method evicts nothing"},
    {NoteKind::protection_fills_budget, "protected tokens fill the budget",
     "tokens that always stay (sinks, recent "
     "or observation window) fill the budget, so that scores decide nothing; take a smaller window or a larger budget"},
    {NoteKind::nothing_evicted, "evicted nothing", "evicted nothing"},
    {NoteKind::sinks_leave_window, "sinks leave the window",
     "attention sinks leave the layer's sliding window, which the prompt fills, so that only recent and chosen tokens "
     "are attended to"},
    {NoteKind::nothing_quantised, "quantised nothing",
     "quantised nothing (every row stays exact: R of kivi and gear, full_precision)"},
};

// Groups the instances that `found` holds with equal budgets.
std::vector<std::pair<Instances, Budgets>> by_budgets(const Counts& found) {
  std::map<uint32_t, Budgets> budgets_of;
  for (const auto& [place, draft] : found) budgets_of[place.first].push_back(place.second);
  std::map<Budgets, Instances> alike;
  for (const auto& [instance, budgets] : budgets_of) alike[budgets].push_back(instance);
  std::vector<std::pair<Instances, Budgets>> groups;
  for (const auto& [budgets, instances] : alike) groups.emplace_back(instances, budgets);
  std::sort(groups.begin(), groups.end());
  return groups;
}

void add_instance_notes(const Words& words, const SeenCells& seen, const Counts& all, Notes& notes) {
  const Counts found = counted(seen, [&](const SeenCell& cell) { return cell.has(words.kind); });
  for (auto& [instances, budgets] : by_budgets(found)) {
    const Draft some = summed(found, instances, budgets);
    const size_t most = summed(all, instances, budgets).cells;
    const bool in_all = some.cells == most;
    const std::string where = in_all ? fmt::format("{} cells", most) : fmt::format("{} of {} cells", some.cells, most);
    std::erase(budgets, 0);
    Note note = some.note(words.kind, seen);
    note.budgets = budgets;
    for (const uint32_t instance : instances)
      note.instances.push_back({seen.instances()[instance], std::string(words.brief) + (in_all ? "" : " in " + where)});
    const std::string who = listed(labels_of(instances, seen)) + budgets_text(budgets);
    note.text = fmt::format("{}, in {}: {}", who, where, words.text);
    notes.push_back(std::move(note));
  }
}

// Sum over an instance's cells at a budget; it does not depend on their order.
struct Outcome {
  uint64_t sum = 0;
  size_t cells = 0;
  bool compresses = false;  // in some cell; if it does not, another note reports that
  auto operator<=>(const Outcome&) const = default;
};

void add_equal(const Instances& instances, Budgets budgets, const Counts& all, const SeenCells& seen, Notes& notes) {
  const Draft some = summed(all, instances, budgets);
  std::erase(budgets, 0);
  Note note = some.note(NoteKind::instances_equal, seen);
  note.budgets = budgets;
  const std::vector<std::string> labels = labels_of(instances, seen);
  for (size_t i = 0; i < instances.size(); ++i) {
    const std::string more = instances.size() > 2 ? fmt::format(" and {} more", instances.size() - 2) : "";
    note.instances.push_back({seen.instances()[instances[i]], "equals " + labels[i == 0 ? 1 : 0] + more});
  }
  const std::string heads = fmt::format("in all {} heads{}", note.heads, budgets_text(budgets));
  note.text = instances.size() == 2
                  ? fmt::format("{} equals {} {}: every measure, the bytes included", labels[1], labels[0], heads)
                  : fmt::format("{} are equal {}: every measure, the bytes included", listed(labels), heads);
  notes.push_back(std::move(note));
}

void add_equals(const SeenCells& seen, const Counts& all, Notes& notes) {
  std::map<std::pair<int32_t, uint32_t>, Outcome> outcomes;  // by budget and instance
  for (const SeenCell& cell : seen.cells()) {
    Outcome& outcome = outcomes[{cell.budget, cell.instance}];
    outcome.sum += mixed(mixed(cell.head, cell.seed), cell.numbers);
    ++outcome.cells;
    outcome.compresses |= !cell.has(NoteKind::budget_holds_all) && !cell.has(NoteKind::budget_holds_prompt);
  }
  std::map<std::pair<int32_t, Outcome>, Instances> same;
  for (const auto& [place, outcome] : outcomes)
    if (outcome.compresses) same[{place.first, outcome}].push_back(place.second);
  std::map<Instances, Budgets> groups;
  for (const auto& [place, instances] : same)
    if (instances.size() > 1) groups[instances].push_back(place.first);
  for (const auto& [instances, budgets] : groups) add_equal(instances, budgets, all, seen, notes);
}

// Groups heads for which all methods that see only one head gave equal results. Cells without an error cannot
// distinguish heads.
std::vector<Instances> equal_heads(const SeenCells& seen) {
  std::map<uint32_t, uint64_t> sums;
  for (const SeenCell& cell : seen.cells())
    if (cell.has_error && cell.seed == 0 && !cell.shares)
      sums[cell.head] += mixed(mixed(cell.instance, uint32_t(cell.budget)), cell.numbers);
  std::map<uint64_t, Instances> alike;
  for (const auto& [head, sum] : sums) alike[sum].push_back(head);
  std::vector<Instances> groups;
  for (const auto& [sum, heads] : alike) groups.push_back(heads);
  std::sort(groups.begin(), groups.end());
  return groups;
}

Note note_of_heads(NoteKind kind, const Instances& heads, const SeenCells& seen, const std::string& text) {
  const std::set<uint32_t> concerned(heads.begin(), heads.end());
  Draft some;
  for (const SeenCell& cell : seen.cells())
    if (concerned.count(cell.head) != 0) some.add(cell, seen);
  Note note = some.note(kind, seen);
  note.text = text;
  return note;
}

void add_repeated_heads(const SeenCells& seen, Notes& notes) {
  Instances heads;
  std::string example;
  size_t known = 0, different = 0;
  for (const Instances& alike : equal_heads(seen)) {
    known += alike.size(), ++different;
    if (alike.size() < 2) continue;
    heads.insert(heads.end(), alike.begin(), alike.end());
    if (example.empty()) example = fmt::format("{} = {}", seen.heads()[alike[0]].place, seen.heads()[alike[1]].place);
  }
  if (heads.empty()) return;
  const std::string text = different == 1
                               ? fmt::format(
                                     "all {} kv heads of the table give the same numbers: they count as one head, "
                                     "and intervals have no meaning; was a head repeated when the trace was written?",
                                     known)
                               : fmt::format(
                                     "{} of {} kv heads give the numbers of another one ({}): they count as one head, "
                                     "and intervals are too narrow",
                                     heads.size(), known, example);
  notes.push_back(note_of_heads(NoteKind::heads_repeat, heads, seen, text));
}

// Heads for which `kind` holds in every cell that can show it.
Instances heads_with(NoteKind kind, const SeenCells& seen, auto shows) {
  std::map<uint32_t, bool> in_all;
  for (const SeenCell& cell : seen.cells())
    if (shows(cell)) in_all.emplace(cell.head, true).first->second &= cell.has(kind);
  Instances heads;
  for (const auto& [head, holds] : in_all)
    if (holds) heads.push_back(head);
  return heads;
}

void add_flat_heads(const SeenCells& seen, Notes& notes) {
  const auto add = [&](NoteKind kind, const Instances& heads, const char* text) {
    if (heads.empty()) return;
    const std::string of = fmt::format("{} of {} kv heads", heads.size(), seen.heads().size());
    notes.push_back(
        note_of_heads(kind, heads, seen, fmt::format("{}: {} (first: {})", of, text, seen.heads()[heads[0]].place)));
  };
  add(NoteKind::outputs_zero, heads_with(NoteKind::outputs_zero, seen, [](const SeenCell&) { return true; }),
      "exact outputs are zero in every scored row, so there is no relative error and the heads are left out of "
      "every mean");
  add(NoteKind::outputs_constant,
      heads_with(NoteKind::outputs_constant, seen, [](const SeenCell& cell) { return cell.loses_mass; }),
      "outputs do not depend on which tokens are kept, as when all values are equal: every method has error 0");
}

void add_single_head(const SeenCells& seen, Notes& notes) {
  std::map<uint32_t, Instances> heads_of;
  for (uint32_t head = 0; head < seen.heads().size(); ++head) heads_of[seen.heads()[head].trace].push_back(head);
  Instances single;
  for (const auto& [trace, heads] : heads_of)
    if (heads.size() == 1) single.push_back(heads[0]);
  if (single.empty()) return;
  notes.push_back(note_of_heads(NoteKind::single_head, single, seen,
                                "every mean of a trace comes from a single kv head, so there is no interval; "
                                "replay more heads, layers or prompts"));
}

}  // namespace

Notes notes_of(const SeenCells& seen) {
  Notes notes;
  if (!seen.has_instances()) return notes;
  add_repeated_heads(seen, notes);
  add_flat_heads(seen, notes);
  add_single_head(seen, notes);
  const Counts all = counted(seen, [](const SeenCell&) { return true; });
  for (const Words& words : kInstanceNotes) add_instance_notes(words, seen, all, notes);
  add_equals(seen, all, notes);
  std::stable_sort(notes.begin(), notes.end(), [](const Note& a, const Note& b) { return a.kind < b.kind; });
  return notes;
}

}  // namespace kvreplay
