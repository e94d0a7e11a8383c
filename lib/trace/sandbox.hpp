#pragma once
#include <functional>
#include <string>

namespace kvreplay {

// What became of work in a child process. Both empty: this process may do the same.
struct SandboxedRead {
  std::string crash;  // why the child did not end by itself
  std::string error;  // what the work threw
};

// HDF5 1.10 takes much of a file's metadata on trust: a flipped bit can crash it, send it round in circles,
// or make it ask for gigabytes. So `work` runs in a child process first, with 8 s of processor time and 512
// MiB.
SandboxedRead read_sandboxed(const std::function<void()>& work);

}  // namespace kvreplay
