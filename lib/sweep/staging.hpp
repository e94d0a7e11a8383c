#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "trace/trace.hpp"

// Copies the files that a worker reads to a disk of its own node.

namespace kvreplay {

// A folder of this process below `dir`, removed with the object. A running process holds a lock on its folder. Folders
// of killed processes are removed when the next process starts.
class Staging {
 public:
  // `tell` gets a line for each trace that is copied, or that is not, with the reason. Throws OutputError if `dir`
  // cannot be written.
  Staging(const std::filesystem::path& dir, std::function<void(const std::string&)> tell);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Returns the copy of a trace that holds what `scope` names; the trace itself if the disk has no room for it.
  std::filesystem::path copy(const std::filesystem::path& trace, const TraceScope& scope);

 private:
  std::filesystem::path folder_;
  std::function<void(const std::string&)> tell_;
  int lock_ = -1;
  int copies_ = 0;
};

}  // namespace kvreplay
