#pragma once
#include <compare>
#include <string>

namespace kvreplay {

// The text that a method or an allocator is calibrated on (`calibration`).
struct Calibration {
  enum class Source { self, others, prompt, file };
  Source source = Source::self;  // self: the prompt that is replayed
  std::string name;              // prompt id, or path of the file
  // Calibrated on other text than the prompt that is replayed.
  bool is_offline() const { return source != Source::self; }
  // Calibrated on other prompts of the same trace.
  bool uses_other_prompts() const { return source == Source::others || source == Source::prompt; }
  auto operator<=>(const Calibration&) const = default;
};

constexpr const char *kCalibrationPrompt = "prompt:", *kCalibrationFile = "file:";

// The word in configurations: self, others, prompt:ID, file:PATH.
inline std::string word(const Calibration& c) {
  switch (c.source) {
    case Calibration::Source::self:
      return "self";
    case Calibration::Source::others:
      return "others";
    case Calibration::Source::prompt:
      return kCalibrationPrompt + c.name;
    case Calibration::Source::file:
      return kCalibrationFile + c.name;
  }
  return "";
}
// Parses such a word; false if `text` is none of them.
inline bool parse_calibration(const std::string& text, Calibration& c) {
  using Source = Calibration::Source;
  const auto behind = [&](const std::string& prefix) { return text.substr(prefix.size()); };
  if (text == "self") c = {};
  else if (text == "others") c = {Source::others, ""};
  else if (text.starts_with(kCalibrationPrompt)) c = {Source::prompt, behind(kCalibrationPrompt)};
  else if (text.starts_with(kCalibrationFile)) c = {Source::file, behind(kCalibrationFile)};
  else return false;
  return !c.is_offline() || c.source == Source::others || !c.name.empty();
}

}  // namespace kvreplay
