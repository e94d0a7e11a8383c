#include <fmt/core.h>

#include <string>

#include "config/common_options.hpp"

// The option `think`: the kept keys of the prompt lose channels.

namespace kvreplay {

namespace {

// Whether a key of fewer channels can be coded: row by row, and without numbers that belong to channels.
bool codes_any_width(const PartFormat& f) {
  const RowFormatEntry& entry = entry_of(f);
  const auto tables = [&](int32_t width) { return entry.tables(f, RowPart::key, width); };
  const bool by_channel = entry.info.by_block || entry.info.of_latents || entry.is_calibrated(f) || entry.sketches(f);
  return !by_channel && !f.pre_rope && rotation_of(f, RowPart::key) == RowRotation::none && tables(64) == tables(32);
}

}  // namespace

std::optional<Think> read_think(Problems& problems, const Node& item) {
  if (item.kind == Node::Kind::scalar && item.text == "none") return Think{};
  if (item.kind != Node::Kind::map) {
    must_be(problems, item, kThink,
            fmt::format("none, or {}: {}", problems.words().map(), problems.words().literal(R"({"ratio": 0.5})")));
    return std::nullopt;
  }
  const size_t before = problems.errors();
  const Section section(&item, kThink, {"ratio", "window"}, problems);
  Think think;
  if (const Node* ratio = section.find("ratio"))
    if (const auto given = read_real(problems, *ratio, "ratio", {0, 1 - 1e-9})) think.ratio = *given;
  if (const Node* window = section.find("window"))
    if (const auto rows = read_integer(problems, *window, "window", {1, kManyTokens})) think.window = int32_t(*rows);
  return problems.errors() == before ? std::optional(think) : std::nullopt;
}

std::string think_problem(const MethodInstance& m, const Wording& words) {
  const CommonOptions& options = m.options;
  if (options.think.is_none()) return "";
  const std::string name = Refusal::kMethods;
  const bool is_exact = m.method().info.name == std::string("exact");
  if (m.values.traits().chooses || m.values.traits().holds_all)
    return fmt::format(
        "think drops channels of the keys that one cut keeps, and {} <chooses|choose> at every step: "
        "leave it out",
        name);
  if (options.phase == Phase::stream && !is_exact)
    return fmt::format("think drops channels once, and {} <streams|stream> here: add {}, or take exact", name,
                       words.option("phase", "oneshot"));
  if (m.method().info.own_row_format || makes_rows(m))
    return fmt::format(
        "think changes keys of recorded tokens, and {} <makes|make> rows of <its|their> own: leave it out", name);
  if (!codes_any_width(options.row_format.key))
    return "think leaves keys of fewer channels, and this row_format of keys rotates them, or codes them by channel or "
           "before RoPE: give keys another one, such as int4, or leave think out";
  if (!options.merge.is_none()) return "think and merge both change the keys that stay: leave out one of them";
  if (options.positions == Positions::cache)
    return "think drops channels of keys at their positions, and these move: add " +
           words.option("positions", "original");
  return "";
}

bool has_ends(const Method& method) {
  return method.parameter("sinks") != nullptr && method.parameter("recent") != nullptr;
}

}  // namespace kvreplay
