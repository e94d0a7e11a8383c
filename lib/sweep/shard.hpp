#pragma once
#include <string>
#include <vector>

#include "sweep/manifest.hpp"

// Cuts a plan into shards: neighbours in the plan stay together, and shards cost about the same.

namespace kvreplay {

struct Shard {
  int32_t index = 0, count = 1;
};

// "3/20": the fourth of twenty. Throws ConfigError.
Shard parse_shard(const std::string& text);

// Index of the shard of each unit, among `count` shards. A shard may be empty.
std::vector<int32_t> shards_of_units(const std::vector<SweepUnit>& units, int32_t count);
// Units of one shard, in the order of the plan.
std::vector<size_t> units_of(const std::vector<SweepUnit>& units, const Shard& shard);

// "0-3,7": the notation of job arrays. `numbers` must ascend.
std::string ranges_text(const std::vector<int32_t>& numbers);

}  // namespace kvreplay
