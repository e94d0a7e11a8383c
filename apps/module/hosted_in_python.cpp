#include "apps/module/hosted_in_python.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "apps/module/numpy.hpp"
#include "apps/module/raised.hpp"
#include "core/replay_error.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;

// An object that a worker thread may release.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  ~Held() {
    const nb::gil_scoped_acquire lock;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const nb::object& operator*() const { return object_; }

 private:
  nb::object object_;
};

template <class T>
nb::object copy_of(const ShownNumbers& numbers) {
  const auto [blocks, rows, width] = numbers.extents;
  std::vector<T> copy;
  copy.reserve(size_t(blocks * rows * width));
  for (int64_t b = 0; b < blocks; ++b) {
    const T* from = static_cast<const T*>(numbers.data) + b * numbers.strides[0];
    copy.insert(copy.end(), from, from + rows * width);
  }
  return numpy_of(std::move(copy), {size_t(blocks), size_t(rows), size_t(width)});
}

nb::object array_of(const ShownNumbers& numbers) {
  if (numbers.data == nullptr) return nb::none();
  return numbers.wide ? copy_of<double>(numbers) : copy_of<float>(numbers);
}

// A Python view of the engine's numbers. It raises an error if it is used after the call.
template <class Shown>
class View {
 public:
  explicit View(const Shown& shown) : shown_(&shown) {}
  void close() { shown_ = nullptr; }
  const Shown& operator*() const {
    if (shown_ == nullptr)
      throw nb::value_error("this view of the cache was only good during the call that it was given to");
    return *shown_;
  }

 private:
  const Shown* shown_;
};
using PromptView = View<HostedPrompt>;
using RowsView = View<HostedRows>;

nb::object rows_array(const HostedRows& rows, const std::function<void(void*)>& copy, int32_t width) {
  const std::vector<size_t> shape{size_t(rows.blocks), rows.tokens.size(), size_t(width)};
  const size_t count = shape[0] * shape[1] * shape[2];
  if (rows.wide) {
    std::vector<double> numbers(count);
    copy(numbers.data());
    return numpy_of(std::move(numbers), shape);
  }
  std::vector<float> numbers(count);
  copy(numbers.data());
  return numpy_of(std::move(numbers), shape);
}

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void take_doubles(nb::handle from, std::span<double> to) {
  const auto array = nb::cast<Doubles>(from);
  if (array.size() != to.size()) throw nb::value_error("there must be one score for each row");
  std::copy(array.data(), array.data() + array.size(), to.begin());
}

// Calls Python. An exception fails the cell, with the traceback. A stopped run publishes no cell.
template <class Work>
auto asked(const std::atomic<bool>& stop, const Work& work) {
  if (stop) throw ReplayError("stopped");
  const nb::gil_scoped_acquire lock;
  try {
    return work();
  } catch (nb::python_error& e) {
    throw ReplayError(raised_text(e));
  } catch (const nb::cast_error&) {
    throw ReplayError("the method answered with something that is not an array of numbers");
  }
}

// Gives Python a view for one call.
template <class Shown, class Call>
nb::object with_view(const Shown& shown, const Call& call) {
  nb::object view = nb::cast(View<Shown>(shown));
  const auto close = [&] { nb::cast<View<Shown>&>(view).close(); };
  try {
    nb::object answer = call(view);
    close();
    return answer;
  } catch (...) {
    close();
    throw;
  }
}

class Session : public HostedSession {
 public:
  Session(nb::object cache, const std::atomic<bool>& stop) : cache_(std::move(cache)), stop_(stop) {}

  void score(const HostedPrompt& prompt, std::span<double> scores) override {
    asked(stop_, [&] {
      take_doubles(with_view(prompt, [&](nb::object view) { return (*cache_).attr("score")(view); }), scores);
    });
  }
  void start(const HostedPrompt& prompt, std::span<double> scores) override {
    asked(stop_, [&] {
      const nb::object answer = with_view(prompt, [&](nb::object view) { return (*cache_).attr("start")(view); });
      if (!answer.is_none()) take_doubles(answer, scores);
    });
  }
  void observe(const HostedRows& rows, std::span<const double> p, int32_t heads) override {
    asked(stop_, [&] {
      with_view(rows, [&](nb::object view) {
        return (*cache_).attr("observe")(
            view, numpy_of(std::vector<double>(p.begin(), p.end()), {size_t(heads), p.size() / size_t(heads)}));
      });
    });
  }
  std::vector<int32_t> evict(const HostedRows& rows) override {
    return asked(stop_, [&] {
      const auto leaving =
          nb::cast<Tokens>(with_view(rows, [&](nb::object view) { return (*cache_).attr("evict")(view); }));
      return std::vector<int32_t>(leaving.data(), leaving.data() + leaving.size());
    });
  }

 private:
  Held cache_;
  const std::atomic<bool>& stop_;
};

class PythonMethod : public HostedMethod {
 public:
  PythonMethod(nb::object method, const std::atomic<bool>& stop) : method_(std::move(method)), stop_(stop) {}
  std::shared_ptr<HostedSession> open(const HostedPlace& place) override {
    return asked(stop_, [&]() -> std::shared_ptr<HostedSession> {
      return std::make_shared<Session>((*method_).attr("open")(place_json(place)), stop_);
    });
  }

 private:
  Held method_;
  const std::atomic<bool>& stop_;
};

}  // namespace

std::unique_ptr<HostedMethod> hosted_by(nb::object method, const std::atomic<bool>& stop) {
  auto hosted = std::make_unique<PythonMethod>(method, stop);
  read_description(*hosted, nb::cast<std::string>(method.attr("facts_json")));
  return hosted;
}

AllMethods::AllMethods(const nb::list& methods, const std::atomic<bool>& stop) : registry(kvreplay::registry()) {
  for (nb::handle method : methods) {
    hosted.push_back(hosted_by(nb::borrow(method), stop));
    add_hosted(registry, *hosted.back());
  }
}

void define_views(nb::module_& module) {
  nb::class_<PromptView>(module, "PromptView")
      .def_prop_ro("size", [](const PromptView& v) { return (*v).tokens; })
      .def_prop_ro("scale", [](const PromptView& v) { return (*v).scale; })
      .def("keys", [](const PromptView& v) { return array_of((*v).keys); })
      .def("values", [](const PromptView& v) { return array_of((*v).values); })
      .def("queries", [](const PromptView& v) { return array_of((*v).queries); })
      .def("attention", [](const PromptView& v) { return array_of((*v).attention); })
      .def("positions", [](const PromptView& v) {
        return numpy_of(std::vector<int32_t>((*v).positions.begin(), (*v).positions.end()), {(*v).positions.size()});
      });
  nb::class_<RowsView>(module, "RowsView")
      .def("tokens",
           [](const RowsView& v) {
             return numpy_of(std::vector<int32_t>((*v).tokens.begin(), (*v).tokens.end()), {(*v).tokens.size()});
           })
      .def("scores",
           [](const RowsView& v) {
             return numpy_of(std::vector<double>((*v).scores.begin(), (*v).scores.end()), {(*v).scores.size()});
           })
      .def("set_scores", [](const RowsView& v, nb::handle scores) { take_doubles(scores, (*v).scores); })
      .def("keys", [](const RowsView& v) { return rows_array(*v, (*v).copy_keys, (*v).dim); })
      .def("values", [](const RowsView& v) { return rows_array(*v, (*v).copy_values, (*v).v_dim); });
}

}  // namespace kvreplay::python
