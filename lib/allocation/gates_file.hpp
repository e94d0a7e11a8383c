#pragma once
#include <string>
#include <vector>

#include "catalog/cell.hpp"

namespace kvreplay {

// The file of trained gates that separates the heads of this cell: that of the method duo_attention or of the allocator
// duo (parameter `gates`); "" if the heads' attention separates them.
std::string gates_of(const Cell& cell);

// Which heads stream by a file of gates as DuoAttention publishes them (full_attention_heads.tsv): a line for each
// layer of the model from 0 on, a column for each kv head. As published, a head streams if its gate is below the
// quantile `stream_frac` of all gates of the file, whichever layers the trace holds. layers: see HeadSource::layers.
// One entry for each head, in the order of heads_of(). Throws ConfigError that names file, line and value.
std::vector<bool> streams_by_gates(const std::string& path, double stream_frac, const std::vector<Place>& layers);

// Separates the heads by the cell's file of gates.
void share_by_gates(Cell& cell, const std::vector<Place>& layers);

}  // namespace kvreplay
