#include "apps/module/read_back.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "apps/module/argument_wording.hpp"
#include "apps/module/arrays_from_python.hpp"
#include "apps/module/numpy.hpp"
#include "base/errors.hpp"
#include "config/row_format.hpp"
#include "config/run_config.hpp"
#include "core/replay_error.hpp"
#include "replay/read_back.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;
template <class T, int Axes>
using Array = nb::ndarray<const T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;

template <class T, int Axes>
std::vector<T> numbers_of(nb::dict facts, const char* name) {
  const auto array = nb::cast<Array<T, Axes>>(facts[name]);
  return {array.data(), array.data() + array.size()};
}

RowFormat format_of(const std::string& json, const LayerInfo& layer, int32_t n_layers) {
  Problems problems(argument_wording());
  const std::optional<RowFormat> format = read_row_format(problems, parse_yaml(json, false, problems));
  problems.raise(RunConfig{});
  if (!format->rules.empty())
    throw ConfigError(
        "row_format: these rows are those of one kv head, and `by` is a choice: give the format of the head");
  if (codes_again(*format))
    throw ConfigError(
        "row_format: rows of a format by age are read in several ways one after the other, and one is returned: "
        "give one format");
  const Refusal refusal = storage_refusal(*format, layer, n_layers, false, argument_wording());
  if (!refusal.empty()) throw ConfigError(refusal.text(argument_wording()));
  return at_layer(*format, layer.layer, n_layers);
}

std::vector<double> uniforms_of(nb::dict facts, const char* name, int64_t needed) {
  std::vector<double> given = numbers_of<double, 1>(facts, name);
  const auto wrong = [](double x) { return !(x >= 0 && x < 1); };
  if (given.empty() || (int64_t(given.size()) >= needed && std::none_of(given.begin(), given.end(), wrong)))
    return given;
  throw ConfigError("uniforms: " + std::string(name) + " must be " + std::to_string(needed) +
                    " numbers in [0, 1), or more: " + std::to_string(given.size()) + " are given");
}

RowUniforms uniforms_of(nb::dict facts, const RowFormat& format, const LayerInfo& layer) {
  const RowUniformCounts needed = kvreplay::uniforms_of(format, layer.head_dim, layer.stored_v_dim());
  return {nb::cast<uint32_t>(facts["seed"]), uniforms_of(facts, "signs", needed.signs),
          uniforms_of(facts, "rotation", needed.rotation), uniforms_of(facts, "sketch", needed.sketch)};
}

LayerInfo layer_of(nb::dict facts) {
  LayerInfo layer;
  layer.layer = nb::cast<int32_t>(facts["layer"]);
  layer.head_dim = int32_t(nb::cast<Array<float, 2>>(facts["keys"]).shape(1));
  layer.v_head_dim = int32_t(nb::cast<Array<float, 2>>(facts["values"]).shape(1));
  if (nb::cast<bool>(facts["latent"])) layer.latent = {layer.v_head_dim, layer.head_dim - layer.v_head_dim, 0, 0};
  layer.rope = rope_of(facts["rope"]);
  layer.rope_recorded = true;  // None means that keys are not rotated
  return layer;
}

HeadStream<float> stream_of(nb::dict facts, const LayerInfo& layer) {
  HeadStream<float> stream;
  stream.shape = {layer.head_dim, layer.v_head_dim, 1, 1, layer.is_latent()};
  stream.keys = numbers_of<float, 2>(facts, "keys"), stream.values = numbers_of<float, 2>(facts, "values");
  stream.positions = numbers_of<int32_t, 1>(facts, "positions");
  stream.tokens = int32_t(stream.positions.size()), stream.prompt = nb::cast<int32_t>(facts["prompt"]);
  set_rope(stream, layer.rope);
  return stream;
}

}  // namespace

nb::tuple read_back(const std::string& text, nb::dict facts) {
  const LayerInfo layer = layer_of(facts);
  const RowFormat format = format_of(text, layer, nb::cast<int32_t>(facts["n_layers"]));
  const HeadStream<float> stream = stream_of(facts, layer);
  const RowUniforms uniforms = uniforms_of(facts, format, layer);
  const auto tokens = numbers_of<int32_t, 1>(facts, "held");
  const auto begins = numbers_of<int64_t, 1>(facts, "begins");
  ReadBack read;
  {
    const nb::gil_scoped_release unlocked;
    try {
      read = kvreplay::read_back(stream, format, uniforms, {tokens, begins});
    } catch (const ReplayError& error) {
      throw ConfigError(error.what());
    }
  }
  const size_t n = size_t(stream.tokens), dim = size_t(layer.head_dim), v_dim = size_t(layer.v_head_dim);
  return nb::make_tuple(numpy_of(std::move(read.key_from), {n}), numpy_of(std::move(read.value_from), {n}),
                        numpy_of(std::move(read.keys), {n, dim}), numpy_of(std::move(read.values), {n, v_dim}));
}

}  // namespace kvreplay::python
