#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/place.hpp"

namespace kvreplay {

// Throws ConfigError "PATH:LINE: text".
[[noreturn]] void refuse_line(const std::string& path, int line, const std::string& text);
// All lines of the file that an option names. Throws ConfigError if it cannot be read.
std::vector<std::string> lines_of_file(const std::string& path, const char* option);

// Reads the importance of kv heads from a JSON object as HeadKV and Retrieval_Head publish them: {"LAYER-HEAD": score}
// for every query head. A list of scores stands for its mean. A kv head's importance is the sum over the `group` query
// heads that share it. Throws ConfigError that names file and head.
std::vector<double> importance_in_file(const std::string& path, const std::vector<Place>& heads, int32_t group);

// Reads the tokens of one kv head from a CSV file of budgets (axis `allocator: file:PATH`). The file holds either rows
// layer,kv_head,tokens in any order, or a table: one line for each layer of the model from 0 on, one column for each kv
// head. Lines without a digit are headings. Throws ConfigError that names file and line.
int32_t tokens_in_file(const std::string& path, int32_t layer, int32_t kv_head, int32_t kv_heads);

}  // namespace kvreplay
