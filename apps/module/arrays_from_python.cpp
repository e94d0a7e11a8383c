#include "apps/module/arrays_from_python.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>

#include "apps/module/raised.hpp"
#include "base/errors.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;
using AnyArray = nb::ndarray<nb::ro, nb::ndim<3>, nb::device::cpu>;
using Integers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto values_of(nb::handle object) {
  std::vector<std::remove_const_t<typename Array::Scalar>> values;
  if (object.is_none()) return values;
  const auto array = nb::cast<Array>(object);
  values.assign(array.data(), array.data() + array.size());
  return values;
}

DType type_named(const std::string& name) {
  return name == "float16" ? DType::float16 : name == "bfloat16" ? DType::bfloat16 : DType::float32;
}

// Rows that a Python object reads on demand: rows(head, first, count) -> a contiguous array [count, width].
std::function<void(int64_t, int64_t, int64_t, void*)> fetch_from(nb::object source, size_t row_bytes) {
  return [source = source.ptr(), row_bytes](int64_t head, int64_t first, int64_t rows, void* into) {
    const nb::gil_scoped_acquire lock;
    try {
      const auto array = nb::cast<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>(
          nb::handle(source).attr("rows")(head, first, rows));
      if (array.nbytes() != size_t(rows) * row_bytes)
        throw TraceError(std::to_string(array.nbytes()) + " bytes came for " + std::to_string(rows) + " rows of " +
                         std::to_string(row_bytes) + ": an array has changed while it was replayed");
      std::memcpy(into, array.data(), array.nbytes());
    } catch (nb::python_error& e) {
      throw TraceError(message_text(e));
    } catch (const nb::cast_error&) {
      throw TraceError("the fetched object is not an array in main memory");
    }
  };
}

// Where a DLPack capsule of a CUDA tensor says that its numbers lie; None: nowhere.
DeviceTensor device_tensor(nb::handle capsule, DType type, ArrayOwners& all) {
  nb::ndarray<nb::ro> array;
  if (capsule.is_none() || !nb::try_cast(capsule, array) || array.ndim() != 3) return {};
  DeviceTensor tensor{"cuda:" + std::to_string(array.device_id()), array.data(), type, {}};
  for (size_t axis = 0; axis < 3; ++axis) tensor.strides[axis] = array.stride(axis);
  all.on_device.push_back(array);
  return tensor;
}

ArrayView view_of(nb::dict tensor, ArrayOwners& all) {
  ArrayView view;
  view.type = type_named(nb::cast<std::string>(tensor["dtype"]));
  nb::object data = nb::borrow(tensor["data"]);
  all.owners.push_back(data);
  if (nb::hasattr(data, "rows")) {
    const auto shape = nb::cast<std::vector<int64_t>>(data.attr("shape"));
    std::copy(shape.begin(), shape.end(), view.extents);
    view.fetch = fetch_from(data, size_t(view.extents[2] * bytes_of(view.type)));
    view.on_device = device_tensor(nb::object(data.attr("memory")()), view.type, all);
    return view;
  }
  const auto array = nb::cast<AnyArray>(data);
  view.data = array.data();
  for (size_t axis = 0; axis < 3; ++axis)
    view.extents[axis] = int64_t(array.shape(axis)), view.strides[axis] = array.stride(axis);
  all.owners.push_back(nb::cast(array));  // owner of the exported array
  return view;
}

LayerInfo layer_of(nb::dict given, PythonArrays& all, PromptArrays& into) {
  LayerInfo info;
  info.layer = nb::cast<int32_t>(given["layer"]);
  info.scaling = nb::cast<double>(given["scaling"]);
  info.sliding_window = nb::cast<int32_t>(given["sliding_window"]);
  info.attention_chunk = nb::cast<int32_t>(given["attention_chunk"]);
  info.softcap = nb::cast<double>(given["softcap"]);
  info.q_prescaled = nb::cast<bool>(given["q_prescaled"]);
  info.rope = rope_of(given["rope"]);
  info.rope_recorded = nb::cast<bool>(given["rope_recorded"]);
  LayerArrays& arrays = into.layers[info.layer];
  arrays.q = view_of(nb::cast<nb::dict>(given["q"]), all.owned);
  arrays.k = view_of(nb::cast<nb::dict>(given["k"]), all.owned);
  arrays.v = view_of(nb::cast<nb::dict>(given["v"]), all.owned);
  arrays.q_pos = values_of<Integers>(given["q_pos"]);
  arrays.sinks = values_of<Floats>(given["sinks"]);
  return info;
}

PromptInfo prompt_of(nb::dict given, PythonArrays& all) {
  PromptInfo info;
  info.id = nb::cast<std::string>(given["prompt"]);
  info.tokens = info.n_prompt = nb::cast<int64_t>(given["tokens"]);
  PromptArrays& arrays = all.trace.prompts[info.id];
  arrays.position_ids = values_of<Integers>(given["position_ids"]);
  for (nb::handle layer : nb::cast<nb::list>(given["layers"])) {
    info.layers.push_back(layer_of(nb::cast<nb::dict>(layer), all, arrays));
    info.layer_numbers.push_back(info.layers.back().layer);
  }
  return info;
}

}  // namespace

std::optional<Rope> rope_of(nb::handle given) {
  if (given.is_none()) return std::nullopt;
  const auto facts = nb::cast<nb::dict>(given);
  Rope rope;
  rope.type = nb::cast<std::string>(facts["type"]);
  rope.theta = nb::cast<double>(facts["theta"]);
  rope.inv_freq = nb::cast<std::vector<double>>(facts["inv_freq"]);
  rope.attention_factor = nb::cast<double>(facts["attention_factor"]);
  const bool interleaved = nb::cast<std::string>(facts["layout"]) == "interleaved";
  rope.layout = interleaved ? Rope::Layout::interleaved : Rope::Layout::half_split;
  rope.rotary_dims = int32_t(2 * rope.inv_freq.size());
  return rope;
}

std::unique_ptr<PythonArrays> described_arrays(nb::dict described) {
  auto all = std::make_unique<PythonArrays>();
  TraceInfo& info = all->trace.info;
  info.path = nb::cast<std::string>(described["label"]);
  info.trace_id = nb::cast<std::string>(described["trace_id"]);
  info.model = nb::cast<std::string>(described["model"]);
  info.n_layers = nb::cast<int32_t>(described["n_layers"]);
  info.prompts.push_back(prompt_of(described, *all));
  take_shapes(all->trace);
  return all;
}

std::unique_ptr<PythonTrace> described_trace(nb::dict described) {
  auto all = std::make_unique<PythonTrace>();
  all->trace.label = nb::cast<std::string>(described["label"]);
  const auto image = nb::cast<nb::bytes>(described["image"]);
  all->trace.image.assign(image.c_str(), image.size());
  for (const auto& [path, tensor] : nb::cast<nb::dict>(described["arrays"]))
    all->trace.arrays.emplace(nb::cast<std::string>(path), view_of(nb::cast<nb::dict>(tensor), all->owned));
  return all;
}

}  // namespace kvreplay::python
