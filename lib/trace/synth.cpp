#include "trace/synth.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "base/errors.hpp"
#include "core/rotary.hpp"
#include "trace/trace_writer.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kBlockRows = 1024;
constexpr double kTheta = 1e4;
const std::string kPrompt = "prompts/synthetic";

template <class T>
void check_range(const char* option, T value, T low, T high) {
  if (!(value >= low && value <= high))
    throw ConfigError(fmt::format("{} is {}, it must be from {} to {}", option, value, low, high));
}

void check_options(const SynthOptions& o) {
  check_range<int64_t>("tokens", o.tokens, 1, INT32_MAX);
  check_range<int64_t>("prompt", o.prompt, 1, o.tokens);
  check_range("layers", o.layers, 1, 1000);
  check_range("kv_heads", o.kv_heads, 1, 65535);
  check_range("q_heads", o.q_heads, 1, 65535);
  if (o.q_heads % o.kv_heads != 0)
    throw ConfigError(fmt::format("q_heads is {}, it must be a multiple of kv_heads {}", o.q_heads, o.kv_heads));
  check_range("head_dim", o.head_dim, 1, 65536);
  check_range("v_head_dim", o.v_head_dim, 1, 65536);
  check_range("clusters", o.clusters, 0, 65536);
  check_range("cluster_spread", o.cluster_spread, 0.0, 1e4);
  check_range("sinks", o.sinks, 0, INT32_MAX);
  check_range("sink_strength", o.sink_strength, 0.0, 1e4);
  check_range("heavy_share", o.heavy_share, 0.0, 1.0);
  check_range("heavy_strength", o.heavy_strength, 0.0, 1e4);
  check_range("key_norm", o.key_norm, 1e-6, 1e6);
  check_range("query_norm", o.query_norm, 1e-6, 1e6);
  check_range("value_norm_spread", o.value_norm_spread, 0.0, 10.0);
  check_range("duplicates", o.duplicates, 0, INT32_MAX);
  if (o.duplicates == 1)
    throw ConfigError("duplicates is 1, it must be 0 (none) or 2 and above: the first token repeats none");
}

DType dtype_of(SynthOptions::Type type) {
  return type == SynthOptions::Type::float32    ? DType::float32
         : type == SynthOptions::Type::bfloat16 ? DType::bfloat16
                                                : DType::float16;
}

std::optional<Rope> make_rope(const SynthOptions& o) {
  if (!o.rope || o.head_dim < 2) return std::nullopt;
  Rope rope;
  rope.theta = kTheta;
  rope.rotary_dims = o.head_dim / 2 * 2;
  for (int32_t i = 0; i < rope.rotary_dims; i += 2)
    rope.inv_freq.push_back(std::pow(kTheta, -static_cast<double>(i) / rope.rotary_dims));
  return rope;
}

// Writes the tensors of one layer, in the order of the file.
class LayerWriter {
 public:
  LayerWriter(const SynthOptions& options, const Rope* rope, int32_t layer, TraceWriter& file)
      : options_(options),
        rope_(rope),
        layer_(layer),
        file_(file),
        group_(options.q_heads / options.kv_heads),
        type_(dtype_of(options.type)),
        path_(fmt::format("{}/layers/{:03}", kPrompt, layer)) {}

  void write() {
    const auto of_query = [&](int32_t h, int64_t t, std::span<float> row) {
      head(h / group_).query(h % group_, t, row);
    };
    const auto of_key = [&](int32_t h, int64_t t, std::span<float> row) { head(h).key(t, row); };
    const auto of_value = [&](int32_t h, int64_t t, std::span<float> row) { head(h).value(t, row); };
    tensor("q", options_.q_heads, options_.head_dim, of_query);
    tensor("k", options_.kv_heads, options_.head_dim, of_key);
    tensor("v", options_.kv_heads, options_.v_head_dim, of_value);
    if (options_.with_out) attention_output();
    attributes();
  }

 private:
  const PlantedHead& head(int32_t kv_head) {
    if (head_number_ != kv_head) head_.emplace(options_, rope_, layer_, kv_head);
    head_number_ = kv_head;
    return *head_;
  }

  template <class Row>
  void tensor(const char* name, int32_t heads, int32_t width, const Row& row) {
    file_.begin_tensor(path_ + "/" + name, heads, options_.tokens, width, type_);
    std::vector<float> block;
    for (int32_t h = 0; h < heads; ++h)
      for (int64_t first = 0; first < options_.tokens; first += kBlockRows) {
        const int64_t count = std::min(kBlockRows, options_.tokens - first);
        block.resize(static_cast<size_t>(count * width));
        for (int64_t t = 0; t < count; ++t)
          row(h, first + t, std::span(block).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width)));
        file_.append(block);
      }
    file_.end_tensor();
  }

  // Loads keys and values of one head, rounded as in the file.
  void load_head(int32_t kv_head) {
    const auto rows = static_cast<size_t>(options_.tokens), d = static_cast<size_t>(options_.head_dim),
               dv = static_cast<size_t>(options_.v_head_dim);
    keys_.resize(rows * d);
    values_.resize(rows * dv);
    for (size_t t = 0; t < rows; ++t) {
      head(kv_head).key(static_cast<int64_t>(t), std::span(keys_).subspan(t * d, d));
      head(kv_head).value(static_cast<int64_t>(t), std::span(values_).subspan(t * dv, dv));
    }
    for (std::vector<float>* array : {&keys_, &values_})
      std::ranges::transform(*array, array->begin(), [&](float x) { return stored_value(x, type_); });
    loaded_ = kv_head;
  }

  // Exact causal attention in double precision, with the running maximum subtracted.
  void attend(int32_t q_head, int64_t token, std::span<float> into) {
    if (loaded_ != q_head / group_) load_head(q_head / group_);
    const auto d = static_cast<size_t>(options_.head_dim), dv = into.size();
    std::vector<float> query(d);
    head(q_head / group_).query(q_head % group_, token, query);
    for (float& x : query) x = stored_value(x, type_);
    std::vector<double> logits(static_cast<size_t>(token) + 1), sum(dv, 0.0);
    for (size_t s = 0; s < logits.size(); ++s)
      logits[s] = std::inner_product(query.begin(), query.end(), keys_.begin() + static_cast<std::ptrdiff_t>(s * d),
                                     0.0, std::plus<>(), [](float a, float b) { return double{a} * double{b}; }) /
                  std::sqrt(options_.head_dim);
    const double peak = *std::ranges::max_element(logits);
    double mass = 0;
    for (size_t s = 0; s < logits.size(); ++s) {
      const double weight = std::exp(logits[s] - peak);
      mass += weight;
      for (size_t i = 0; i < dv; ++i) sum[i] += weight * double{values_[s * dv + i]};
    }
    std::ranges::transform(sum, into.begin(), [&](double x) { return static_cast<float>(x / mass); });
  }

  void attention_output() {
    tensor("out", options_.q_heads, options_.v_head_dim,
           [&](int32_t h, int64_t t, std::span<float> row) { attend(h, t, row); });
  }

  void attributes() {
    file_.attribute(path_, "scaling", 1 / std::sqrt(options_.head_dim));
    file_.attribute(path_, "sliding_window", int64_t{0});
    file_.attribute(path_, "softcap", 0.0);
    file_.attribute(path_, "rotary_dims", int64_t{rope_ == nullptr ? 0 : rope_->rotary_dims});
    file_.attribute(path_, "rope", std::string(rope_ == nullptr ? "none" : "post"));
    file_.attribute(path_, "q_prescaled", int64_t{0});
    file_.attribute(path_, "source_dtype", std::string(name_of(type_)));
  }

  const SynthOptions& options_;
  const Rope* rope_;
  const int32_t layer_;
  TraceWriter& file_;
  const int32_t group_;
  const DType type_;
  const std::string path_;
  std::optional<PlantedHead> head_;
  int32_t head_number_ = -1, loaded_ = -1;
  std::vector<float> keys_, values_;
};

nlohmann::json options_json(const SynthOptions& o) {
  return {{"tokens", o.tokens},
          {"prompt", o.prompt},
          {"layers", o.layers},
          {"q_heads", o.q_heads},
          {"kv_heads", o.kv_heads},
          {"head_dim", o.head_dim},
          {"v_head_dim", o.v_head_dim},
          {"clusters", o.clusters},
          {"cluster_spread", o.cluster_spread},
          {"sinks", o.sinks},
          {"sink_strength", o.sink_strength},
          {"heavy_share", o.heavy_share},
          {"heavy_strength", o.heavy_strength},
          {"key_norm", o.key_norm},
          {"query_norm", o.query_norm},
          {"value_norm_spread", o.value_norm_spread},
          {"duplicates", o.duplicates},
          {"seed", o.seed},
          {"rope", o.rope},
          {"dtype", name_of(dtype_of(o.type))},
          {"with_out", o.with_out}};
}

void write_root(const SynthOptions& o, const Rope* rope, TraceWriter& file) {
  file.attribute("/", "model", std::string("synthetic"));
  file.attribute("/", "dumper", std::string("kvreplay synth"));
  file.attribute("/", "config_json", options_json(o).dump());
  file.attribute("/", "n_layers", int64_t{o.layers});
  file.attribute("/", "n_q_heads", int64_t{o.q_heads});
  file.attribute("/", "n_kv_heads", int64_t{o.kv_heads});
  file.attribute("/", "head_dim", int64_t{o.head_dim});
  file.attribute("/", "v_head_dim", int64_t{o.v_head_dim});
  if (rope != nullptr) file.attribute("/", "rope_json", rope_to_json(*rope));
}

void write_prompt(const SynthOptions& o, TraceWriter& file) {
  std::vector<int32_t> numbers(static_cast<size_t>(o.tokens));
  std::iota(numbers.begin(), numbers.end(), 0);
  file.integers(kPrompt + "/position_ids", numbers);
  file.attribute(kPrompt, "n_prompt", o.prompt);
  file.attribute(kPrompt, "n_generated", o.tokens - o.prompt);
  file.attribute(kPrompt, "source", std::string("synthetic"));
}

}  // namespace

void write_synthetic_trace(const SynthOptions& options, const std::filesystem::path& path) {
  check_options(options);
  const std::optional<Rope> rope = make_rope(options);
  const Rope* rotation = rope ? &*rope : nullptr;
  TraceWriter file(path);
  write_root(options, rotation, file);
  write_prompt(options, file);
  for (int32_t layer = 0; layer < options.layers; ++layer) LayerWriter(options, rotation, layer, file).write();
  file.close(options_json(options).dump());
}

namespace {

constexpr int64_t kTopicTokens = 32;  // length of a passage on one topic
constexpr double kStrayShare = 0.15;  // share of tokens that belong to a random other topic
constexpr double kTopicStrength = 4;  // logit advantage of the query's topic, before rotation

std::vector<float> narrowed(std::span<const double> from) { return {from.begin(), from.end()}; }

}  // namespace

PlantedHead::PlantedHead(const SynthOptions& options, const Rope* rope, int32_t layer, int32_t kv_head)
    : options_(options), rope_(rope), scaling_(1 / std::sqrt(options.head_dim)) {
  draws_.seed = static_cast<uint32_t>(options.seed);
  draws_.prompt = static_cast<uint32_t>(options.seed >> 32);
  draws_.layer = static_cast<uint32_t>(layer);
  draws_.kv_head = static_cast<uint32_t>(kv_head);
  const auto dim = static_cast<size_t>(options.head_dim), v_dim = static_cast<size_t>(options.v_head_dim);
  axes_reserved_ = dim >= 4;
  const size_t rotated = rope == nullptr ? dim : static_cast<size_t>(rope->rotary_dims);
  sink_axis_ = rotated - 1;
  heavy_axis_ = axes_reserved_ ? rotated / 2 - 1 : sink_axis_;
  const auto clusters = static_cast<size_t>(options.clusters);
  key_centres_.resize(clusters * dim);
  value_centres_.resize(clusters * v_dim);
  for (size_t c = 0; c < clusters; ++c) {
    normals(Purpose::centre, static_cast<int64_t>(c), 0, std::span(key_centres_).subspan(c * dim, dim));
    normals(Purpose::value_centre, static_cast<int64_t>(c), 0, std::span(value_centres_).subspan(c * v_dim, v_dim));
  }
}

double PlantedHead::uniform(Purpose purpose, int64_t position, int64_t slot, int32_t member) const {
  return draws_.uniform(RngStream::synthetic_traces, position, slot, static_cast<int64_t>(purpose) + member);
}

// Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958): two uniforms make two normals.
void PlantedHead::normals(Purpose purpose, int64_t position, int32_t member, std::span<double> into) const {
  for (size_t i = 0; i < into.size(); i += 2) {
    const double u = uniform(purpose, position, static_cast<int64_t>(i), member),
                 w = uniform(purpose, position, static_cast<int64_t>(i) + 1, member);
    const double radius = std::sqrt(-2 * std::log1p(-u)), angle = 2 * std::numbers::pi * w;
    into[i] = radius * std::cos(angle);
    if (i + 1 < into.size()) into[i + 1] = radius * std::sin(angle);
  }
}

int32_t PlantedHead::topic(int64_t token) const {
  if (uniform(Purpose::topic, token) >= kStrayShare)
    return static_cast<int32_t>(token / kTopicTokens % options_.clusters);
  return static_cast<int32_t>(uniform(Purpose::topic, token, 1) * options_.clusters);
}

int64_t PlantedHead::original(int64_t token) const {
  while (options_.duplicates > 0 && token > 0 && token % options_.duplicates == 0)
    token = static_cast<int64_t>(uniform(Purpose::repeated, token) * static_cast<double>(token));
  return token;
}

bool PlantedHead::is_heavy(int64_t token) const {
  return token >= options_.sinks && uniform(Purpose::heavy, token) < options_.heavy_share;
}

std::span<const double> PlantedHead::centre(const std::vector<double>& centres, int64_t token, size_t width) const {
  return std::span(centres).subspan(static_cast<size_t>(topic(token)) * width, width);
}

void PlantedHead::rotate(int64_t position, std::span<double> x) const {
  if (rope_ == nullptr) return;
  const RopeView rope{rope_->inv_freq.data(), static_cast<int32_t>(rope_->inv_freq.size())};
  kvreplay::rotate(SerialTeam{}, rope, static_cast<double>(position), x.data());
}

void PlantedHead::key(int64_t token, std::span<float> into) const {
  token = original(token);
  std::vector<double> x(into.size());
  normals(Purpose::key, token, 0, x);
  if (options_.clusters > 0) {
    const auto mean = centre(key_centres_, token, x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = mean[i] + options_.cluster_spread * x[i];
  }
  rotate(token, x);
  if (axes_reserved_) x[sink_axis_] = x[heavy_axis_] = 0;
  if (token < options_.sinks) x[sink_axis_] += std::sqrt(options_.sink_strength / scaling_);
  if (is_heavy(token)) x[heavy_axis_] += std::sqrt(options_.heavy_strength / scaling_);
  for (double& coordinate : x) coordinate *= options_.key_norm;
  std::ranges::copy(narrowed(x), into.begin());
}

void PlantedHead::value(int64_t token, std::span<float> into) const {
  token = original(token);
  std::vector<double> x(into.size());
  normals(Purpose::value, token, 0, x);
  if (options_.clusters > 0) {
    const auto mean = centre(value_centres_, token, x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = mean[i] + options_.cluster_spread * x[i];
  }
  double log_norm[1];
  normals(Purpose::value_norm, token, 0, log_norm);
  for (double& coordinate : x) coordinate *= std::exp(options_.value_norm_spread * log_norm[0]);
  std::ranges::copy(narrowed(x), into.begin());
}

void PlantedHead::query(int32_t member, int64_t token, std::span<float> into) const {
  std::vector<double> x(into.size());
  normals(Purpose::query, token, member, x);
  if (options_.clusters > 0) {
    const auto mean = centre(key_centres_, token, x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] += kTopicStrength * scaling_ * mean[i];
  }
  rotate(token, x);
  if (axes_reserved_) x[sink_axis_] = x[heavy_axis_] = 0;
  x[sink_axis_] += std::sqrt(options_.sink_strength / scaling_);
  if (axes_reserved_) x[heavy_axis_] += std::sqrt(options_.heavy_strength / scaling_);
  for (double& coordinate : x) coordinate = coordinate / options_.key_norm * options_.query_norm;
  std::ranges::copy(narrowed(x), into.begin());
}

}  // namespace kvreplay
