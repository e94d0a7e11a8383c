#pragma once
#include <cstddef>
#include <functional>

#include "base/errors.hpp"

// Threads of a parallel region. They are started anew for each region, and none remains afterwards. A process may
// therefore fork before and after, and load other libraries that have thread pools.

namespace kvreplay {

// Calls work() once on each of `threads` threads, including the caller's, and returns when all have ended. The first
// exception is kept in `error`, which other threads can ask whether to stop, and thrown at the end. Throws
// std::system_error if the system refuses a thread.
void on_threads(int threads, FirstError& error, const std::function<void()>& work);

// Calls work(i) once for each i < count, on `threads` threads, in any order. After an exception, handled as above, no
// further item is started.
void for_each_on_threads(int threads, size_t count, FirstError& error, const std::function<void(size_t)>& work);

}  // namespace kvreplay
