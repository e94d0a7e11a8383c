#pragma once
#include <hdf5.h>
#include <pthread.h>

#include <mutex>
#include <new>
#include <string>
#include <utility>

// The only header that includes HDF5: handles that close themselves, one lock, and a silent error stack.

namespace kvreplay::h5 {

// Owns one HDF5 identifier of any kind.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      close_ = other.close_;
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  // Closes the handle now; returns whether that worked. Closing a file writes its last bytes.
  bool reset() {
    if (id_ < 0) return true;
    return close_(std::exchange(id_, H5I_INVALID_HID)) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// Every public function holds this lock while it calls HDF5: one caller at a time, nothing printed to stderr. A process
// forks between two such calls, so that the child can read files too, whatever other threads were reading.
class Lock {
 public:
  Lock() : lock_(mutex()) {
    // After a failed close (a full disk) HDF5's exit handler would crash; these handles close themselves anyway.
    [[maybe_unused]] static const herr_t once = H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    [[maybe_unused]] static const int once =
        ::pthread_atfork([] { one.lock(); }, [] { one.unlock(); }, [] { new (&one) std::recursive_mutex; });
    return one;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

// The system's error message, if HDF5 quotes one between file descriptors and addresses.
inline std::string system_message(const std::string& text) {
  const std::string mark = "error message = '";
  const size_t from = text.find(mark);
  if (from == std::string::npos) return text;
  const size_t begin = from + mark.size();
  return text.substr(begin, text.find('\'', begin) - begin);
}

// The innermost message on HDF5's error stack: it names the cause, not the function that noticed it.
inline std::string reason() {
  std::string text;
  const auto keep = [](unsigned depth, const H5E_error2_t* error, void* into) -> herr_t {
    if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(into) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no further reason" : system_message(text);
}

}  // namespace kvreplay::h5
