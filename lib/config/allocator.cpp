#include "config/allocator.hpp"

#include "config/values.hpp"
#include "core/method_info.hpp"

namespace kvreplay {

std::optional<LuKv> read_lu_kv(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = item.kind == Node::Kind::map ? item.find("name") : &item;
  if (name == nullptr || name->text != "lu_kv") {
    must_be(problems, item, "allocator",
            "a word (uniform, pyramid, ada, cake, file:PATH), or {name: lu_kv, calibration: self}");
    return std::nullopt;
  }
  const Node* calibration = item.kind == Node::Kind::map ? item.find("calibration") : nullptr;
  if (calibration == nullptr || calibration->text != "self") {
    must_be(
        problems, calibration == nullptr ? item : *calibration, "the calibration of lu_kv",
        "self, by which it is an oracle: it learns from the rows that it is measured on. Curves of other prompts are "
        "not built");
    return std::nullopt;
  }
  LuKv rule;
  const Section section(&item, "allocator", {"name", "calibration", "weight", "lo"}, problems);
  if (const Node* weight = section.find("weight"))
    if (const auto word = read_word(problems, *weight, "weight", {"mass", "contrib"}))
      rule.weight = *word == "contrib" ? LuKv::Weight::contrib : LuKv::Weight::mass;
  if (const Node* lo = section.find("lo"); lo != nullptr && lo->text != "protected")
    if (const auto tokens = read_integer(problems, *lo, "lo", {1, kManyTokens})) rule.lo = int32_t(*tokens);
  return problems.errors() == before ? std::optional(rule) : std::nullopt;
}

}  // namespace kvreplay
