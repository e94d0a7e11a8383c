#pragma once
#include <functional>
#include <string>

namespace kvreplay {

// HDF5 1.10 takes much of a file's metadata on trust: a flipped bit can crash it, or send it round in
// circles. So `work` runs in a child process first. Returns why the child did not end by itself, or an
// empty string: then this process may do the same work.
std::string rehearse(const std::function<void()>& work);

}  // namespace kvreplay
