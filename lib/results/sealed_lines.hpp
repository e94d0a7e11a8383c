#pragma once
#include <optional>
#include <string>
#include <string_view>

// Lines of JSON with a checksum of their own content: {"sum":"<16 hex digits>",<members>}. A truncated or altered line
// fails the check and is ignored.

namespace kvreplay {

// `members`: a JSON object's text without its braces, on one line.
std::string sealed_line(std::string_view members);
// The members of a line whose checksum is right; nothing otherwise.
std::optional<std::string_view> unsealed(std::string_view line);

}  // namespace kvreplay
