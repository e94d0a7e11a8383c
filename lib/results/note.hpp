#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What a reader must know of a table before its numbers are compared: a budget that compressed nothing, scores that
// decided nothing, instances or heads that are one and the same. results.meta.json holds them as `notes`.

namespace kvreplay {

// In the order in which they are told: first what concerns the table as a whole.
enum class NoteKind {
  heads_repeat,
  outputs_zero,
  outputs_constant,
  single_head,
  budget_holds_all,
  budget_holds_prompt,
  protection_fills_budget,
  sinks_leave_window,
  instances_equal,
  nothing_evicted,
  nothing_quantised,
};
const char* word(NoteKind kind);

// A method with what it was given beside its defaults (canonical JSON, as in the column `given`).
struct NamedInstance {
  std::string method, given;
  std::string label() const;  // "snapkv window=16 phase=stream"
};

struct Note {
  struct Concerned : NamedInstance {
    std::string brief;  // what a row of a summary says of this instance
  };
  NoteKind kind{};
  std::vector<Concerned> instances;  // none: the table as a whole
  std::vector<int32_t> budgets;      // tokens, ascending; none: the instances take none, or whatever the budget
  std::vector<std::string> traces;   // ids
  size_t cells = 0, heads = 0;       // in which it holds; a head is a (trace, prompt, layer, kv head)
  std::string text;                  // one sentence

  // The instance of this label, or null where the note says nothing of it at this budget (0: none).
  const Concerned* concerned(const std::string& label, int32_t budget) const;
};
using Notes = std::vector<Note>;

// A JSON array of {"kind", "instances": [{"method", "given", "label", "brief"}], "budgets", "traces", "cells", "heads",
// "text"}.
std::string notes_json(const Notes& notes);

}  // namespace kvreplay
