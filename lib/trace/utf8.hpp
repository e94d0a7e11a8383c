#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvreplay {

// Well-formed UTF-8 (Unicode 15, table 3-7): strings of foreign files end in JSON and CSV.
inline bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    const size_t tail = lead < 0x80                   ? 0
                        : lead >= 0xC2 && lead < 0xE0 ? 1
                        : (lead >> 4) == 0xE          ? 2
                        : lead >= 0xF0 && lead < 0xF5 ? 3
                                                      : 4;
    if (tail == 4) return false;
    for (size_t j = 1; j <= tail; ++j)
      if ((byte(i + j) & 0xC0) != 0x80) return false;
    const uint8_t second = byte(i + 1);  // no overlong forms, no surrogates, nothing beyond U+10FFFF
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return false;
    if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return false;
    i += tail + 1;
  }
  return true;
}

// ... without control characters: names that end on terminals.
inline bool is_printable_utf8(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) return false;
  return is_utf8(text);
}

}  // namespace kvreplay
