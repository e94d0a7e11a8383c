#pragma once
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace kvreplay {

// Length in bytes of the well-formed UTF-8 sequence (Unicode 15, table 3-7) that starts at text[i]; 0 if there is none.
inline size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<uint8_t>(text[k]) : uint8_t{0}; };
  const uint8_t lead = byte(i), second = byte(i + 1);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : (lead >> 4) == 0xE          ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  for (size_t k = i + 1; k < i + length; ++k)
    if ((byte(k) & 0xC0) != 0x80) return 0;
  // No overlong forms, no surrogates, nothing beyond U+10FFFF.
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return length;
}

inline bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

// UTF-8 without control characters, for names that are printed on terminals.
inline bool is_printable_utf8(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) return false;
  return is_utf8(text);
}

// The word of `known` that `word` most likely means (edit distance at most a third of its length), or "" if none is
// near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);
std::string join(const std::vector<std::string>& words, std::string_view between = ", ");
// Words separated by spaces.
std::vector<std::string> split_words(std::string_view text);
// " (did you mean x?)" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

// The number that `text` consists of, without plus sign and spaces; nullopt if it is not a number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The shortest decimal text that reads back as the same number; whole numbers have no point, so that 1
// and 1.0 are one text. `value` must be finite.
std::string number_text(double value);
// One text for one value: sorted keys, no spaces, numbers as number_text writes them.
std::string canonical(const nlohmann::json& value);
// A word quoted for a shell: in single quotes if it needs them.
std::string shell_quoted(const std::string& word);
// The text on one line without control characters: they are written as \n, \t or \x1b, so that terminals do not act on
// them.
std::string single_line(std::string_view text);
// Lower-case hex of SHA-256 (64 digits).
std::string sha256_hex(std::string_view bytes);

}  // namespace kvreplay
