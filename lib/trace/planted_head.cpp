#include "trace/planted_head.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/rotary.hpp"

namespace kvreplay {
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
