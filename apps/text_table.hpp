#pragma once
#include <string>
#include <vector>

namespace kvreplay::app {

// Columns padded with spaces; the first is left-aligned, the others right-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows);
std::string left_aligned(const std::vector<std::vector<std::string>>& rows);

}  // namespace kvreplay::app
