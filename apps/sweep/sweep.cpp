#include "apps/sweep/sweep.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "apps/meta.hpp"
#include "base/errors.hpp"
#include "results/shards.hpp"

namespace kvreplay::app {

namespace fs = std::filesystem;

void add_out_option(Command& command, std::string& out) {
  command.option("out,-o,--out", out, "the sweep's directory, where `sweep plan` has put its plan")
      .type("DIR")
      .required();
}

ResultsFolder results_of(const std::string& out, const Manifest& manifest) {
  return {out, manifest.save, build_record().build()};
}

int32_t Sweep::at_most_units(double shards) const {
  return int32_t(std::clamp(shards, 1.0, double(manifest.units.size())));
}

Sweep sweep_in(const std::string& out) {
  Manifest manifest = read_manifest(out);
  ResultsFolder folder = results_of(out, manifest);
  const SweepStatus status = status_of(manifest, folder);
  return {fs::absolute(out).lexically_normal().string(), std::move(manifest), std::move(folder), status};
}

std::string core_time_text(double core_seconds) {
  constexpr double kMinutes = 360;
  if (core_seconds < 1) return "a second of one core";
  return core_seconds < kMinutes ? fmt::format("{:.0f} core-seconds", core_seconds)
                                 : fmt::format("{:.1f} core-hours", core_seconds / 3600);
}

namespace {

constexpr int64_t kMostOfAUnit = 1'000'000;

// Reads a number at the front of `text` and removes it; nothing if there is none.
std::optional<int64_t> taken_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMostOfAUnit) return std::nullopt;
  text.remove_prefix(size_t(end - text.data()));
  return number;
}

// "1h30m"
std::optional<int64_t> with_units(std::string_view text) {
  const std::map<char, int64_t> units = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  int64_t seconds = 0;
  while (!text.empty()) {
    const auto number = taken_number(text);
    const auto unit = text.empty() ? units.end() : units.find(text.front());
    if (!number || unit == units.end()) return std::nullopt;
    seconds += *number * unit->second;
    text.remove_prefix(1);
  }
  return seconds;
}

// "[D-]HH:MM:SS"
std::optional<int64_t> with_colons(std::string_view text) {
  const size_t dash = text.find('-');
  int64_t seconds = 0;
  if (dash != std::string_view::npos) {
    const auto days = taken_number(text);
    if (!days || text.empty() || text.front() != '-') return std::nullopt;
    seconds = *days * 24;
    text.remove_prefix(1);
  }
  for (int part = 0; part < 3; ++part) {
    const auto number = taken_number(text);
    if (!number || (part < 2) != text.starts_with(':')) return std::nullopt;
    seconds = part == 0 ? (seconds + *number) : seconds * 60 + *number;
    if (part < 2) text.remove_prefix(1);
  }
  return text.empty() ? std::optional(seconds) : std::nullopt;
}

}  // namespace

int64_t parse_duration(const std::string& option, const std::string& text) {
  const auto seconds = text.find(':') == std::string::npos ? with_units(text) : with_colons(text);
  if (seconds && *seconds > 0) return *seconds;
  throw ConfigError(fmt::format("{} {}: must be a time, for example 90s, 50m, 1h30m or 01:30:00", option, text));
}

// An example for one command of `sweep`.
std::string sweep_example(const std::string& words) { return fmt::format("example:\n  kvreplay sweep {}\n", words); }

void add_sweep(Command& program) {
  Command sweep = program.command("sweep", "the same cells over many machines");
  sweep.footer(
      "examples:\n"
      "  kvreplay sweep plan configs/quickstart.yaml -o out/first\n"
      "  kvreplay sweep submit out/first --engine local --workers 4\n"
      "  kvreplay sweep submit out/first --engine slurm --time 1h -j 8\n");
  add_sweep_plan(sweep);
  add_sweep_work(sweep);
  add_sweep_status(sweep);
  add_sweep_merge(sweep);
  add_sweep_submit(sweep);
}

}  // namespace kvreplay::app
