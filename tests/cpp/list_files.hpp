#pragma once
#include <filesystem>

#include "support.hpp"
#include "trace/h5_file.hpp"
#include "trace/kept_lists.hpp"

// Files of kept lists for the method `external`.

namespace kvreplay::test {

// Lists written by hand, with optional weights.
struct WrittenLists {
  std::vector<std::vector<int32_t>> lists;
  std::vector<double> num = {}, den = {};
  int oneshot = -1, attends = -1, partial = -1;  // attributes; negative: none

  // Writes the lists into a group of the file; "" is the root.
  void write(H5Output& file, const std::string& group) const;
  std::filesystem::path write(const std::filesystem::path& file, const std::string& group = "") const;
};

// Path of a file with the lists of two sinks and the recent tokens of the budget, for a cell with these options. The
// file is written once and removed when the tests end.
std::string sinks_and_recent(int32_t budget, const StreamShape& shape, const CommonOptions& options);

}  // namespace kvreplay::test
