#pragma once
#include <cstdint>
#include <string>

namespace kvreplay {

// Reads the tokens of one kv head from a CSV file of budgets (axis `allocator: file:PATH`). The file holds either rows
// layer,kv_head,tokens in any order, or a table: one line for each layer of the model from 0 on, one column for each kv
// head. Lines without a digit are headings. Throws ConfigError that names file and line.
int32_t tokens_in_file(const std::string& path, int32_t layer, int32_t kv_head, int32_t kv_heads);

}  // namespace kvreplay
