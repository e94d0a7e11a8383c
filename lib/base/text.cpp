#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/sha256.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

// Ignores case and the kind of dash when words are compared.
std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return out;
}

// Number of insertions, deletions, replacements and swaps of neighbours that lead from a to b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// Text from a trace may contain any bytes; bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dumped(const json& text) { return text.dump(-1, ' ', false, json::error_handler_t::replace); }

void append_canonical(const json& value, std::string& out);

void append_array(const json& array, std::string& out) {
  out += '[';
  const char* between = "";
  for (const json& element : array) {
    out += between;
    append_canonical(element, out);
    between = ",";
  }
  out += ']';
}

void append_object(const json& object, std::string& out) {
  out += '{';
  const char* between = "";
  for (const auto& [name, element] : object.items()) {  // nlohmann::json keeps names sorted
    out += between;
    out += dumped(name);
    out += ':';
    append_canonical(element, out);
    between = ",";
  }
  out += '}';
}

void append_canonical(const json& value, std::string& out) {
  if (value.is_object()) return append_object(value, out);
  if (value.is_array()) return append_array(value, out);
  out += value.is_number_float() ? number_text(value.get<double>()) : dumped(value);
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  const std::string wanted = folded(word);
  size_t nearest = word.size() / 3 + 1;
  std::string found;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(wanted, folded(candidate));
    if (distance >= nearest) continue;
    nearest = distance;
    found = candidate;
  }
  return found;
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += between;
    out += words[i];
  }
  return out;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  if (nearest.empty()) return {};
  return fmt::format(" (did you mean {}?)", nearest);
}

std::string number_text(double value) {
  assert(std::isfinite(value));
  constexpr double kWholeBelow = 9007199254740992.0;  // 2^53: up to here every whole number is a double
  std::array<char, 32> text{};
  char* const begin = text.data();
  char* const end = begin + text.size();
  const bool whole = std::abs(value) < kWholeBelow && value == std::trunc(value);
  const auto written = whole ? std::to_chars(begin, end, int64_t(value)) : std::to_chars(begin, end, value);
  assert(written.ec == std::errc());
  return {begin, written.ptr};
}

std::string canonical(const json& value) {
  std::string out;
  append_canonical(value, out);
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$*?[]{}()<>|&;`!#~") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string single_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool control = (c >= 0 && c < ' ') || c == 0x7f;
    if (!control) line += c;
    else if (c == '\n' || c == '\t') line += c == '\n' ? "\\n" : "\\t";
    else line += fmt::format("\\x{:02x}", int{c});
  }
  return line;
}

}  // namespace kvreplay
