#pragma once
#include <charconv>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

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
