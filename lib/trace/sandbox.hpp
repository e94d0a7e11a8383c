#pragma once
#include <filesystem>
#include <functional>
#include <string>

namespace kvreplay {

// Result of work in a child process. If both are empty, this process may safely do the same work.
struct SandboxedRead {
  std::string crash;  // why the child was killed
  std::string error;  // message of the exception that the work threw
};

// HDF5 1.10 trusts much of a file's metadata: a flipped bit can crash it, make it loop forever or make it ask for
// gigabytes. So `work` runs in a child process first, limited to 8 s of processor time and 512 MiB.
SandboxedRead read_sandboxed(const std::function<void()>& work);
// Likewise for a trace; throws h5::Problem with what the child threw, or that the file is damaged.
void try_in_child(const std::filesystem::path& path, const std::function<void()>& work);

}  // namespace kvreplay
