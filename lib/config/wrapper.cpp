#include "config/wrapper.hpp"

#include <fmt/core.h>

#include "config/values.hpp"

namespace kvreplay {
namespace {

const std::vector<std::string> kNames = {"none", "critical", "caote"};

Wrapper named(const std::string& name) {
  Wrapper wrapper;
  if (name == "critical") wrapper.kind = Wrapper::Kind::critical;
  if (name == "caote") wrapper.kind = Wrapper::Kind::caote;
  return wrapper;
}

void read_critical(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* alpha = section.find("alpha"))
    if (const auto given = read_real(problems, *alpha, "alpha", {0, 1})) wrapper.alpha = *given;
  if (const Node* eps = section.find("eps"))
    if (const auto given = read_real(problems, *eps, "eps", {0, 1e300})) wrapper.eps = *given;
}

void read_caote(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* level = section.find("level"))
    if (const auto given = read_word(problems, *level, "level", {"query", "kv"}))
      wrapper.level = *given == "kv" ? Wrapper::Level::kv : Wrapper::Level::query;
  if (const Node* fast = section.find("fast"))
    if (const auto given = read_boolean(problems, *fast, "fast")) wrapper.fast = *given;
}

}  // namespace

std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = name_of(item);
  if (name == nullptr || name->kind != Node::Kind::scalar) {
    must_be(problems, item, "wrapper",
            fmt::format("none, critical or caote, or {} with a name: {}", problems.words().map(),
                        problems.words().literal(R"({"name": "critical", "alpha": 0.5})")));
    return std::nullopt;
  }
  const auto word = read_word(problems, *name, "wrapper", kNames);
  if (!word) return std::nullopt;
  Wrapper wrapper = named(*word);
  if (item.kind == Node::Kind::map) {
    std::vector<std::string> keys = {"name"};
    if (wrapper.kind == Wrapper::Kind::critical) keys.insert(keys.end(), {"alpha", "eps"});
    if (wrapper.kind == Wrapper::Kind::caote) keys.insert(keys.end(), {"level", "fast"});
    const Section section(&item, "wrapper", keys, problems);
    if (wrapper.kind == Wrapper::Kind::critical) read_critical(section, problems, wrapper);
    if (wrapper.kind == Wrapper::Kind::caote) read_caote(section, problems, wrapper);
  }
  return problems.errors() == before ? std::optional(wrapper) : std::nullopt;
}

}  // namespace kvreplay
