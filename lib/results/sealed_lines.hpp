#pragma once
#include <optional>
#include <string>
#include <string_view>

// Lines of JSON that carry the sum of their own content: {"sum":"<16 hex digits>",<members>}. A line that was
// torn, or changed by whatever, is known by it and counts for nothing.

namespace kvreplay {

// `members`: a JSON object's text without its braces, on one line.
std::string sealed_line(std::string_view members);
// The members of a line whose sum is right; nothing otherwise.
std::optional<std::string_view> unsealed(std::string_view line);

}  // namespace kvreplay
