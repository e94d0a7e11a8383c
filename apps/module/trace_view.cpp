#include "apps/module/trace_view.hpp"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "apps/module/numpy.hpp"
#include "apps/module/raised.hpp"
#include "base/errors.hpp"
#include "trace/h5_walk.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;
namespace fs = std::filesystem;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

nb::object dict_of(const std::optional<Rope>& rope) {
  if (!rope) return nb::none();
  nb::dict found;
  found["type"] = rope->type;
  found["theta"] = rope->theta;
  found["inv_freq"] = rope->inv_freq;
  found["attention_factor"] = rope->attention_factor;
  found["layout"] = rope->layout == Rope::Layout::half_split ? "half_split" : "interleaved";
  found["rotary_dims"] = rope->rotary_dims;
  return found;
}

nb::object rope_facts(nb::str json, nb::str where, int32_t head_dim) {
  try {
    return dict_of(parse_rope(utf8(json), utf8(where), head_dim, std::nullopt));
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
}

LayerInfo layer_shapes(nb::str where, const std::vector<int64_t>& q, const std::vector<int64_t>& k,
                       const std::vector<int64_t>& v) {
  LayerInfo layer;
  try {
    const std::string begin = utf8(where);
    set_shapes({begin + ": q", q}, {begin + ": k", k}, {begin + ": v", v}, layer);
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
  return layer;
}

// (name of the type, shape, file and offset where the numbers can be mapped)
using Storage = std::tuple<std::string, std::vector<int64_t>, std::optional<std::pair<fs::path, int64_t>>>;
Storage storage(const Trace& trace, const std::string& prompt, int32_t layer, const std::string& name) {
  StoredTensor found = trace.stored(prompt, layer, name);
  Storage storage{name_of(found.dtype), std::move(found.shape), std::nullopt};
  if (found.offset) std::get<2>(storage).emplace(std::move(found.file), *found.offset);
  return storage;
}

std::vector<size_t> shape_of(const StoredTensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

// The bits: uint32 of float32, uint16 of the others.
nb::object raw(const Trace& trace, const std::string& prompt, int32_t layer, const std::string& name) {
  const StoredTensor tensor = trace.stored(prompt, layer, name);
  const auto fill = [&](auto into) { trace.read_stored(prompt, layer, name, std::as_writable_bytes(into)); };
  return tensor.dtype == DType::float32 ? filled_numpy<uint32_t>(shape_of(tensor), fill)
                                        : filled_numpy<uint16_t>(shape_of(tensor), fill);
}

nb::object floats(const Trace& trace, const std::string& prompt, int32_t layer, const std::string& name) {
  return filled_numpy<float>(shape_of(trace.stored(prompt, layer, name)),
                             [&](std::span<float> into) { trace.read_floats(prompt, layer, name, into); });
}

// A tensor of a layer in the form in which the engine reads it, "q", "k", "v" or "up_v": [heads, rows, width].
nb::object rows(const Trace& trace, const std::string& prompt, int32_t number, const std::string& name) {
  const LayerInfo& layer = trace.layer(prompt, number);
  const auto by_head = [&](int32_t heads, int64_t count, int32_t width, auto read) {
    const size_t each = size_t(count) * size_t(width);
    return filled_numpy<float>({size_t(heads), size_t(count), size_t(width)}, [&](std::span<float> into) {
      for (int32_t head = 0; head < heads; ++head) read(head, into.subspan(size_t(head) * each, each));
    });
  };
  if (name == "q")
    return by_head(layer.q_heads, layer.query_rows, layer.head_dim, [&](int32_t head, std::span<float> into) {
      trace.read_queries(prompt, number, head, 0, layer.query_rows, into);
    });
  if (name == "k")
    return by_head(layer.kv_heads, layer.tokens, layer.head_dim, [&](int32_t head, std::span<float> into) {
      trace.read_keys(prompt, number, head, layer.tokens, into);
    });
  if (name == "v")
    return by_head(layer.kv_heads, layer.tokens, layer.v_head_dim, [&](int32_t head, std::span<float> into) {
      trace.read_values(prompt, number, head, layer.tokens, into);
    });
  return by_head(layer.q_heads, layer.v_head_dim, layer.out_dim(),
                 [&](int32_t head, std::span<float> into) { trace.read_up_values(prompt, number, head, into); });
}

// A tensor of a branch in that form, "q", "k" or "v".
nb::object branch_rows(const Trace& trace, const std::string& prompt, size_t branch, int32_t number,
                       const std::string& name) {
  const LayerInfo& layer = trace.layer(prompt, number);
  const int64_t count = trace.prompt(prompt).branches.at(branch).tokens;
  const int32_t heads = name == "q" ? layer.q_heads : layer.kv_heads;
  const int32_t width = name == "v" ? layer.v_head_dim : layer.head_dim;
  const auto read = name == "q"   ? &Trace::read_branch_queries
                    : name == "k" ? &Trace::read_branch_keys
                                  : &Trace::read_branch_values;
  const size_t each = size_t(count) * size_t(width);
  return filled_numpy<float>({size_t(heads), size_t(count), size_t(width)}, [&](std::span<float> into) {
    for (int32_t head = 0; head < heads; ++head)
      (trace.*read)(prompt, branch, number, head, into.subspan(size_t(head) * each, each));
  });
}

nb::object dict_of(const LatentInfo& latent) {
  if (latent.width == 0) return nb::none();
  nb::dict found;
  found["width"] = latent.width, found["rope"] = latent.rope;
  found["key"] = latent.key, found["value"] = latent.value;
  return found;
}

// What a method of Trace returns, as a numpy array.
template <class T, class Of, class... Words>
auto numpy_from(std::vector<T> (Of::*read)(Words...) const) {
  return [read](const Trace& trace, std::decay_t<Words>... words) {
    const std::vector<T> values = (trace.*read)(words...);
    return filled_numpy<T>({values.size()}, [&](std::span<T> into) { std::ranges::copy(values, into.begin()); });
  };
}

void define_facts(nb::module_& module) {
  nb::class_<LayerInfo>(module, "LayerFacts")
      .def_ro("number", &LayerInfo::layer)
      .def_ro("q_heads", &LayerInfo::q_heads)
      .def_ro("kv_heads", &LayerInfo::kv_heads)
      .def_ro("head_dim", &LayerInfo::head_dim)
      .def_ro("v_head_dim", &LayerInfo::v_head_dim)
      .def_ro("tokens", &LayerInfo::tokens)
      .def_ro("query_rows", &LayerInfo::query_rows)
      .def_prop_ro("dtype", [](const LayerInfo& layer) { return name_of(layer.dtype); })
      .def_ro("source_dtype", &LayerInfo::source_dtype)
      .def_ro("scaling", &LayerInfo::scaling)
      .def_ro("sliding_window", &LayerInfo::sliding_window)
      .def_ro("attention_chunk", &LayerInfo::attention_chunk)
      .def_ro("softcap", &LayerInfo::softcap)
      .def_ro("q_prescaled", &LayerInfo::q_prescaled)
      .def_prop_ro("rope", [](const LayerInfo& layer) { return dict_of(layer.rope); })
      .def_ro("rope_recorded", &LayerInfo::rope_recorded)
      .def_ro("rope_unknown", &LayerInfo::rope_unknown)
      .def_prop_ro("kv_layer",
                   [](const LayerInfo& l) { return l.kv_layer < 0 ? std::nullopt : std::optional(l.kv_layer); })
      .def_prop_ro("latent", [](const LayerInfo& layer) { return dict_of(layer.latent); })
      .def_ro("has_q_pos", &LayerInfo::has_q_pos)
      .def_ro("has_sinks", &LayerInfo::has_sinks)
      .def_ro("has_out", &LayerInfo::has_out);
  nb::class_<SegmentsInfo>(module, "SegmentFacts")
      .def_ro("start", &SegmentsInfo::start)
      .def_prop_ro("kind",
                   [](const SegmentsInfo& segments) {
                     std::vector<int> kinds;
                     for (const SegmentKind kind : segments.kind) kinds.push_back(static_cast<int>(kind));
                     return kinds;
                   })
      .def_ro("names", &SegmentsInfo::names);
  nb::class_<BranchInfo>(module, "BranchFacts")
      .def_ro("id", &BranchInfo::id)
      .def_ro("name", &BranchInfo::name)
      .def_ro("tokens", &BranchInfo::tokens)
      .def_ro("input_tokens", &BranchInfo::input_tokens);
  nb::class_<PromptInfo>(module, "PromptFacts")
      .def_ro("id", &PromptInfo::id)
      .def_ro("rank", &PromptInfo::rank)
      .def_ro("tokens", &PromptInfo::tokens)
      .def_ro("n_prompt", &PromptInfo::n_prompt)
      .def_ro("n_generated", &PromptInfo::n_generated)
      .def_ro("question_from", &PromptInfo::question_from)
      .def_ro("source", &PromptInfo::source)
      .def_ro("has_tokens", &PromptInfo::has_tokens)
      .def_ro("odd_positions", &PromptInfo::odd_positions)
      .def_ro("has_classes", &PromptInfo::has_classes)
      .def_ro("segments", &PromptInfo::segments)
      .def_ro("branches", &PromptInfo::branches)
      .def_ro("context_tokens", &PromptInfo::context_tokens)
      .def_ro("layers", &PromptInfo::layer_numbers)
      .def_prop_ro("layer", [](const PromptInfo& prompt) { return prompt.layers.at(0); });
  nb::class_<TraceInfo>(module, "TraceFacts")
      .def_ro("trace_id", &TraceInfo::trace_id)
      .def_ro("model", &TraceInfo::model)
      .def_ro("revision", &TraceInfo::revision)
      .def_ro("n_layers", &TraceInfo::n_layers)
      .def_ro("prompts", &TraceInfo::prompts);
}

// The file, for reads of one prompt and of the layer that its facts tell.
void open_trace(Trace* place, const fs::path& path, const PromptInfo* prompt) {
  TraceInfo info;
  info.path = path;
  if (prompt != nullptr) info.prompts = {*prompt};
  new (place) Trace(std::move(info));
}

}  // namespace

void define_traces(nb::module_& module) {
  define_facts(module);
  nb::class_<Trace>(module, "Trace")
      .def("__init__", open_trace, nb::arg("path"), nb::arg("prompt").none(), Unlocked())
      .def("storage", storage, Unlocked())
      .def("raw", raw)
      .def("floats", floats)
      .def("rows", rows)
      .def("branch_rows", branch_rows)
      .def("branch_position_ids", numpy_from(&Trace::branch_position_ids))
      .def("branch_token_ids", numpy_from(&Trace::branch_token_ids))
      .def("token_texts", &Trace::token_texts, Unlocked())
      .def("token_ids", numpy_from(&Trace::token_ids))
      .def("token_classes", numpy_from(&Trace::token_classes))
      .def("position_ids", numpy_from(&Trace::position_ids))
      .def("query_positions", numpy_from(&Trace::query_positions))
      .def("sink_logits", numpy_from(&Trace::sink_logits));
  module.def("check_trace_name", check_trace_name);
  module.def("trace_facts", read_names, Unlocked());
  module.def("prompt_facts", read_prompt_info, Unlocked());
  module.def(
      "trace_id", [](const fs::path& path) { return Trace(path).info().trace_id; }, Unlocked());
  module.def("written_trace_id", written_trace_id, Unlocked());
  module.def("rope_facts", rope_facts);
  module.def("odd_positions", [](const std::vector<int64_t>& positions) { return odd_positions(positions); });
  module.def("layer_shapes", layer_shapes);
}

}  // namespace kvreplay::python
