#pragma once
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <exception>
#include <functional>

namespace kvreplay::emulator {

// A call on a stack of its own, which can pause and be gone on with.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber() { leave(); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // The body runs with the first resume().
  void start(std::function<void()> body);
  // Goes on until the body pauses or ends; throws what the body has thrown.
  void resume();
  // For the body: back to who called resume().
  void pause();
  bool alive() const { return bool(inside_); }
  // Ends a body that pauses: its frames are unwound.
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
