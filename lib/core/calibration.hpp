#pragma once
#include <compare>
#include <string>

namespace kvreplay {

// Whose text a method or an allocator learns from what it decides by (`calibration`).
struct Calibration {
  enum class Source { self, others, prompt, file };
  Source source = Source::self;  // self: those of the prompt that is replayed
  std::string name;              // of the prompt, or of the file
  // From other text than the prompt that is replayed.
  bool is_offline() const { return source != Source::self; }
  // Of the same trace.
  bool is_of_other_prompts() const { return source == Source::others || source == Source::prompt; }
  auto operator<=>(const Calibration&) const = default;
};

constexpr const char *kCalibrationPrompt = "prompt:", *kCalibrationFile = "file:";

// As configurations write it: self, others, prompt:ID, file:PATH.
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
// Whether `text` is one of these words, and which.
inline bool read_calibration(const std::string& text, Calibration& c) {
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
