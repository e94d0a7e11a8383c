#pragma once
#include <cstddef>
#include <functional>

#include "base/first_error.hpp"

// Threads of a parallel region. They are started anew for each, and none is left behind: a process may fork before and
// after, and load other libraries that bring pools of their own.

namespace kvreplay {

// Calls work() once on each of so many threads, the caller's among them, and returns when all have ended. The first
// exception is kept in `error`, whom others ask whether to stop, and thrown at the end. Throws std::system_error where
// the system refuses a thread.
void on_threads(int threads, FirstError& error, const std::function<void()>& work);

// Calls work(i) once for each i < count, on so many threads, in whatever order. After an exception, as above, no
// further item is begun.
void for_each_on_threads(int threads, size_t count, FirstError& error, const std::function<void(size_t)>& work);

}  // namespace kvreplay
