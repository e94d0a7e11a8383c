#pragma once
#include <charconv>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

// The word of `known` that `word` most likely means (edit distance at most a third of its length),
// or "" when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);
std::string join(const std::vector<std::string>& words, std::string_view between = ", ");
// Words between spaces.
std::vector<std::string> split_words(std::string_view text);
// " (did you mean x?)" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

// The number that all of `text` is, without signs of plus and spaces; nothing if it is none.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The shortest decimal text that reads back as the same number; whole numbers have no point, so that 1
// and 1.0 are one text. `value` must be finite.
std::string number_text(double value);
// One form for one value: sorted keys, no spaces, numbers as number_text writes them.
std::string canonical(const nlohmann::json& value);
// A word as a shell takes it: in single quotes where it needs some.
std::string shell_quoted(const std::string& word);
// The text on one line that no terminal obeys: control characters as \n, \t or \x1b.
std::string on_one_line(std::string_view text);
// Lower-case hex of SHA-256 (64 digits).
std::string sha256_hex(std::string_view bytes);

}  // namespace kvreplay
