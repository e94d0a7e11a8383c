#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

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

}  // namespace kvreplay
