#include "results/note.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.hpp"

namespace kvreplay {
namespace {

constexpr const char* kWords[] = {
    "heads_repeat",     "outputs_zero",        "outputs_constant",        "single_head",
    "budget_holds_all", "budget_holds_prompt", "protection_fills_budget", "sinks_leave_window",
    "instances_equal",  "nothing_evicted",     "nothing_quantised",
};

template <class Parts>
std::string array_of(const Parts& parts) {
  std::string text = "[";
  for (const std::string& part : parts) text += (text.size() > 1 ? "," : "") + part;
  return text + "]";
}

std::string note_json(const Note& note) {
  std::vector<std::string> instances;
  for (const Note::Concerned& one : note.instances)
    instances.push_back(JsonObject()
                            .add("method", one.method)
                            .add_json("given", one.given)
                            .add("label", one.label())
                            .add("brief", one.brief)
                            .text());
  JsonObject all;
  all.add("kind", word(note.kind)).add_json("instances", array_of(instances)).add("budgets", note.budgets);
  all.add("traces", note.traces).add("cells", note.cells).add("heads", note.heads);
  return all.add("text", note.text).text();
}

Note note_of(const nlohmann::json& said, NoteKind kind) {
  Note note;
  note.kind = kind;
  for (const nlohmann::json& one : said.at("instances"))
    note.instances.push_back({{one.at("method"), one.at("given").dump()}, one.at("brief")});
  note.budgets = said.at("budgets").get<std::vector<int32_t>>();
  note.traces = said.at("traces").get<std::vector<std::string>>();
  note.cells = said.at("cells"), note.heads = said.at("heads"), note.text = said.at("text");
  return note;
}

}  // namespace

const char* word(NoteKind kind) { return kWords[size_t(kind)]; }

std::string NamedInstance::label() const {
  std::string text = method;
  const auto members = nlohmann::json::parse(given);
  for (const auto& [name, value] : members.items())
    text += fmt::format(" {}={}", name, value.is_string() ? value.get<std::string>() : canonical(value));
  return text;
}

const Note::Concerned* Note::concerned(const std::string& label, int32_t budget) const {
  const bool at = budget > 0 ? std::binary_search(budgets.begin(), budgets.end(), budget) : budgets.empty();
  const auto found =
      std::find_if(instances.begin(), instances.end(), [&](const Concerned& c) { return c.label() == label; });
  return at && found != instances.end() ? &*found : nullptr;
}

std::string notes_json(const Notes& notes) {
  std::vector<std::string> all;
  for (const Note& note : notes) all.push_back(note_json(note));
  return array_of(all);
}

Notes notes_of_json(const std::string& text) {
  Notes notes;
  for (const nlohmann::json& said : nlohmann::json::parse(text)) {
    const auto kind = std::find(std::begin(kWords), std::end(kWords), said.at("kind").get<std::string>());
    if (kind != std::end(kWords)) notes.push_back(note_of(said, NoteKind(kind - std::begin(kWords))));
  }
  return notes;
}

}  // namespace kvreplay
