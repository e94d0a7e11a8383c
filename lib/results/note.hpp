#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Facts that a reader must know before comparing a table's numbers: a budget that compressed nothing, scores that
// decided nothing, instances or heads that are identical. results.meta.json holds them as `notes`.

namespace kvreplay {

// In the order of output: first the kinds that concern the table as a whole.
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

// A method with its parameters that are not defaults (canonical JSON, as in the column `given`).
struct NamedInstance {
  std::string method, given;
  std::string label() const;  // "snapkv window=16 phase=stream"
};

struct Note {
  struct Concerned : NamedInstance {
    std::string brief;  // text for a row of a summary about this instance
  };
  NoteKind kind{};
  std::vector<Concerned> instances;  // none: the table as a whole
  std::vector<int32_t> budgets;      // tokens, ascending; none: the instances take none, or the note holds at every
                                     // budget
  std::vector<std::string> traces;   // ids
  size_t cells = 0, heads = 0;       // number where it holds; a head is a (trace, prompt, layer, kv head)
  std::string text;                  // one sentence

  // The instance with this label; null if the note does not concern it at this budget (0: none).
  const Concerned* concerned(const std::string& label, int32_t budget) const;
};
using Notes = std::vector<Note>;

// A JSON array of {"kind", "instances": [{"method", "given", "label", "brief"}], "budgets", "traces", "cells", "heads",
// "text"}.
std::string notes_json(const Notes& notes);
// Reads what notes_json wrote. Notes of a kind that this program does not know are left out.
Notes notes_of_json(const std::string& text);

}  // namespace kvreplay
