#pragma once
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <exception>
#include <functional>

namespace kvreplay::emulator {

// A function call on a separate stack, which can pause and be resumed.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber() { leave(); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // The body starts with the first resume().
  void start(std::function<void()> body);
  // Runs until the body pauses or ends; rethrows what the body throws.
  void resume();
  // Called by the body: returns to the caller of resume().
  void pause();
  bool alive() const { return bool(inside_); }
  // Ends a paused body: its frames are unwound.
  void leave();

 private:
  struct Stack {
    const void* bottom = nullptr;
    size_t bytes = 0;
  };
  static void leave_for(const Stack& stack, void** kept);
  static void arrive(void* kept, Stack* from);
  void switch_in();
  void run_body();

  std::function<void()> body_;
  boost::context::fiber inside_, outside_;
  Stack stack_, callers_stack_;
  std::exception_ptr error_;
  bool left_ = false;
};

}  // namespace kvreplay::emulator
