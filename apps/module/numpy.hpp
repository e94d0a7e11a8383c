#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <span>
#include <vector>

namespace kvreplay::python {

// A numpy array that owns these numbers, row-major.
template <class T>
nanobind::object numpy_of(std::vector<T> values, const std::vector<size_t>& shape) {
  auto* owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(owned->data(), shape.size(), shape.data(), owner));
}

// A read-only numpy array whose numbers `fill` writes while other threads of Python run.
template <class T, class Fill>
nanobind::object filled_numpy(const std::vector<size_t>& shape, const Fill& fill) {
  size_t count = 1;
  for (const size_t extent : shape) count *= extent;
  std::unique_ptr<T[]> numbers(new T[count]);  // not set to zero first
  {
    const nanobind::gil_scoped_release unlocked;
    fill(std::span<T>(numbers.get(), count));
  }
  const nanobind::capsule owner(numbers.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nanobind::cast(
      nanobind::ndarray<nanobind::numpy, const T>(numbers.release(), shape.size(), shape.data(), owner));
}

}  // namespace kvreplay::python
