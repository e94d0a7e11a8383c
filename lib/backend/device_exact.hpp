#pragma once
#include <memory>
#include <string>

#include "exact/head_stream.hpp"

namespace kvreplay {

class Runtime;

// Exact rows of a head on a device, again and again, with keys, values and queries in its memory all the
// while: what the kernels take, without copies. For measurements.
class DeviceExact {
 public:
  // The rows of all tokens after the prompt that have a query. DeviceError as of a head's replay.
  DeviceExact(std::unique_ptr<Runtime> runtime, const HeadStream<float>& stream);
  ~DeviceExact();
  // Outputs, largest logits, normalisers and ||p||_2 of every row; returns when they are there. Not from two
  // threads at a time.
  void pass();

 private:
  class Head;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Head> head_;
};

}  // namespace kvreplay
