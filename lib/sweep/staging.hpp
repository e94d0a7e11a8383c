#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "trace/trace.hpp"

// Copies of what a worker reads on a disk of its own node.

namespace kvreplay {

// A folder of this process below `dir`, removed with the object. Folders of processes that were killed are
// removed when the next one comes: whoever lives holds a lock on his.
class Staging {
 public:
  // `tell` gets a line for what is copied, and for what is not and why. Throws OutputError if `dir` cannot be
  // written.
  Staging(const std::filesystem::path& dir, std::function<void(const std::string&)> tell);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The copy of a trace that holds what `scope` names; the trace itself where the disk has no room for it.
  std::filesystem::path copy(const std::filesystem::path& trace, const TraceScope& scope);

 private:
  std::filesystem::path folder_;
  std::function<void(const std::string&)> tell_;
  int lock_ = -1;
  int copies_ = 0;
};

}  // namespace kvreplay
