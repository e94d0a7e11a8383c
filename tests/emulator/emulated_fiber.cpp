#include "emulator/emulated_fiber.hpp"

#include <boost/context/pooled_fixedsize_stack.hpp>
#include <utility>

#if defined(__has_feature)
#define KVR_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define KVR_ADDRESS_SANITIZER 1
#else
#define KVR_ADDRESS_SANITIZER 0
#endif
#if KVR_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvreplay::emulator {
namespace {

constexpr size_t kStackBytes = 96 << 10;
struct Left {};  // thrown through the frames of a body that will not be resumed

}  // namespace

// The address sanitizer unwinds by the bounds of the stack, and must know of every change: the next stack, and the
// arrival on it. Without the sanitizer both functions do nothing.
#if KVR_ADDRESS_SANITIZER
void Fiber::leave_for(const Stack& stack, void** kept) {
  __sanitizer_start_switch_fiber(kept, stack.bottom, stack.bytes);
}
void Fiber::arrive(void* kept, Stack* from) {
  Stack ignored;
  if (from == nullptr) from = &ignored;
  __sanitizer_finish_switch_fiber(kept, &from->bottom, &from->bytes);
}
#else
void Fiber::leave_for(const Stack&, void**) {}
void Fiber::arrive(void*, Stack*) {}
#endif

void Fiber::start(std::function<void()> body) {
  leave();
  static thread_local boost::context::pooled_fixedsize_stack stacks(kStackBytes);  // reuses stacks
  const boost::context::stack_context stack = stacks.allocate();
  stack_ = {static_cast<const char*>(stack.sp) - stack.size, stack.size};
  body_ = std::move(body);
  left_ = false;
  inside_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), stacks,
                                  [this](boost::context::fiber&& outside) {
                                    outside_ = std::move(outside);
                                    arrive(nullptr, &callers_stack_);
                                    run_body();
                                    leave_for(callers_stack_, nullptr);
                                    return std::move(outside_);
                                  });
}

void Fiber::run_body() {
  if (left_) return;
  try {
    body_();
  } catch (const Left&) {
  } catch (...) {
    error_ = std::current_exception();
  }
}

void Fiber::switch_in() {
  void* kept = nullptr;
  leave_for(stack_, &kept);
  inside_ = std::move(inside_).resume();
  arrive(kept, nullptr);
}

void Fiber::resume() {
  switch_in();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fiber::pause() {
  void* kept = nullptr;
  leave_for(callers_stack_, &kept);
  outside_ = std::move(outside_).resume();
  arrive(kept, &callers_stack_);
  if (left_) throw Left{};
}

void Fiber::leave() {
  left_ = true;
  if (alive()) switch_in();
  error_ = nullptr;
}

}  // namespace kvreplay::emulator
