#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

namespace kvreplay::python {

// A numpy array that owns these numbers, row-major.
template <class T>
nanobind::object numpy_of(std::vector<T> values, const std::vector<size_t>& shape) {
  auto* owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(owned->data(), shape.size(), shape.data(), owner));
}

}  // namespace kvreplay::python
