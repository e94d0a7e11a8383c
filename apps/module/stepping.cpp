#include "apps/module/stepping.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "apps/module/numpy.hpp"
#include "apps/module/prepared_run.hpp"
#include "base/errors.hpp"
#include "plan/plan.hpp"
#include "replay/growing_replay.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;
using RowArray = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using PositionArray = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// One cell for each kv head.
void expect_one_instance(const std::vector<Cell>& cells) {
  std::map<Place, int> seen;
  for (const Cell& cell : cells)
    if (++seen[cell.place] > 1)
      throw ConfigError("a stepwise replay has one method with one value for each parameter, one budget and one seed");
}

std::span<const float> numbers_of(const RowArray& rows) { return {rows.data(), rows.size()}; }

void expect_shape(const RowArray& rows, const char* name, int32_t layer, int32_t heads, size_t count, int32_t width) {
  if (rows.shape(0) == size_t(heads) && rows.shape(1) == count && rows.shape(2) == size_t(width) && count > 0) return;
  throw TraceError(fmt::format("layer {}: {} is [{}, {}, {}]: it must be [{}, {}, {}]", layer, name, rows.shape(0),
                               rows.shape(1), rows.shape(2), heads, count > 0 ? fmt::format("{}", count) : "R > 0",
                               width));
}

class Stepping {
 public:
  Stepping(const PlanRequest& request) : prepared_(planned(request)) {
    expect_one_instance(prepared_->cells);
    const RunConfig& config = prepared_->loaded.config;
    if (config.run.double_precision || config.run.audit)
      throw ConfigError("a stepwise replay has single precision and no audit: replay recorded rows for these");
    RunOptions options = options_of(*prepared_, observes_rows(prepared_->cells));
    options.stop = [all = prepared_.get()] { return all->stop.load(); };
    replay_ = interruptible(*prepared_, [&] { return std::make_unique<GrowingReplay>(prepared_->cells, options); });
    prepared_->arrays.reset(), prepared_->memory.reset();  // every row of the prompt has been read
  }

  nb::object step(int32_t layer, const RowArray& q, const RowArray& k, const RowArray& v,
                  const std::optional<PositionArray>& positions) {
    const GrowingReplay::LayerShape shape = replay_->shape(layer);
    const size_t count = q.shape(1);
    expect_shape(q, "q", layer, shape.q_heads, count, shape.dim);
    expect_shape(k, "k", layer, shape.kv_heads, count, shape.dim);
    expect_shape(v, "v", layer, shape.kv_heads, count, shape.v_dim);
    ArrivingRows rows{int32_t(count), numbers_of(q), numbers_of(k), numbers_of(v), {}};
    if (positions && positions->size() != count)
      throw TraceError(fmt::format("layer {}: {} positions, but {} rows", layer, positions->size(), count));
    if (positions) rows.positions = {positions->data(), count};
    std::vector<float> out(size_t(shape.q_heads) * count * size_t(shape.v_dim));
    {
      const nb::gil_scoped_release unlocked;
      replay_->step(layer, rows, out);
    }
    return numpy_of(std::move(out), {size_t(shape.q_heads), count, size_t(shape.v_dim)});
  }

  nb::list kept(int32_t layer, int32_t kv_head) const {
    nb::list lists;
    for (std::vector<int32_t>& tokens : replay_->kept(layer, kv_head)) {
      const size_t count = tokens.size();
      lists.append(numpy_of(std::move(tokens), {count}));
    }
    return lists;
  }
  double bytes() const { return replay_->bytes(); }
  nb::list warnings() const { return warnings_of(prepared_->loaded.config); }

 private:
  std::unique_ptr<Prepared> prepared_;  // declared first: the replay refers to its methods
  std::unique_ptr<GrowingReplay> replay_;
};

}  // namespace

void define_stepping(nb::module_& module) {
  nb::class_<Stepping>(module, "Stepping")
      .def("__init__",
           [](Stepping* self, std::string config, nb::object input, nb::list methods, nb::object is_stopped,
              std::string prompt, int64_t capacity) {
             new (self) Stepping({std::move(config), input, methods, is_stopped, {std::move(prompt), capacity}});
           })
      .def("step", &Stepping::step, nb::arg("layer"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("positions").none())
      .def("kept", &Stepping::kept)
      .def_prop_ro("bytes", &Stepping::bytes)
      .def_prop_ro("warnings", &Stepping::warnings);
}

}  // namespace kvreplay::python
