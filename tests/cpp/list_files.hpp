#pragma once
#include <filesystem>

#include "support.hpp"
#include "trace/h5_file.hpp"
#include "trace/kept_lists.hpp"

// Files of kept lists for the method `external`.

namespace kvreplay::test {

// Lists written by hand; weights only where they are given.
struct WrittenLists {
  std::vector<std::vector<int32_t>> lists;
  std::vector<double> num = {}, den = {};
  int oneshot = -1, attends = -1, partial = -1;  // attributes; negative: none

  // Into a group of the file, "" its root.
  void write(H5Output& file, const std::string& group) const;
  std::filesystem::path write(const std::filesystem::path& file, const std::string& group = "") const;
};

// Two sinks and the recent tokens of the budget, as a cell of these axes would be given. Written once and
// removed when the tests end.
std::string sinks_and_recent(int32_t budget, const StreamShape& shape, const CommonOptions& options);

}  // namespace kvreplay::test
