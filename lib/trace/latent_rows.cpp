#include "trace/latent_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/matrices.hpp"
#include "trace/shape_checks.hpp"
#include "trace/tensor_read.hpp"
#include "trace/trace_metadata.hpp"

namespace kvreplay {
namespace {

constexpr const char* kRowAxes = "[tokens, width]";

// Whether queries are recorded before `up_k`. Where both readings fit the shapes, they are before it, as the model's
// attention call has them.
bool queries_need_up_k(const Tensor& q, int64_t key, const LatentInfo& shape) {
  if (q.width() == key + shape.rope) return true;
  if (q.width() == shape.width + shape.rope) return false;
  h5::fail(q.array.node, fmt::format("has rows of {} numbers, they must have {} (those of up_k and rope_k) or, after "
                                     "the projection by up_k, {} (those of latent and rope_k)",
                                     q.width(), key + shape.rope, shape.width + shape.rope));
}

void read_up_k(const h5::Node& node, const Tensor& q, LayerInfo& layer) {
  LatentInfo& shape = layer.latent;
  if (!h5::has_child(node, "up_k")) {
    if (q.width() == shape.width + shape.rope) return;
    h5::fail(node.where() + "/up_k",
             fmt::format("is missing, and rows of q have {} numbers: only queries of {} numbers (those of latent and "
                         "rope_k) are already projected",
                         q.width(), shape.width + shape.rope));
  }
  const Tensor up_k = open_tensor(node, "up_k", layer.source_dtype, 3, "[heads, latent, key]");
  expect_shape(up_k.array, {layer.q_heads, shape.width, up_k.width()});
  if (queries_need_up_k(q, up_k.width(), shape)) shape.key = static_cast<int32_t>(up_k.width());
}

}  // namespace

void read_latent_shapes(const h5::Node& node, const std::string& source_dtype, LayerInfo& layer) {
  for (const char* name : {"q", "rope_k", "up_v"})
    if (!h5::has_child(node, name))
      h5::fail(node.where() + "/" + name,
               "is missing. A layer with the dataset latent needs q, rope_k, up_v and, unless q is projected, up_k");
  const Tensor q = open_tensor(node, "q", source_dtype),
               latent = open_tensor(node, "latent", source_dtype, 2, kRowAxes),
               rope = open_tensor(node, "rope_k", source_dtype, 2, kRowAxes),
               up_v = open_tensor(node, "up_v", source_dtype, 3, "[heads, latent, value]");
  layer.dtype = latent.dtype;
  layer.source_dtype = source_dtype.empty() ? name_of(latent.dtype) : source_dtype;
  expect_shape(rope.array, {latent.rows(), rope.width()});
  // The engine's view has these shapes; set_shapes() checks their extents and names the dataset that is wrong.
  const auto shape_as = [](const Tensor& tensor, std::vector<int64_t> shape) {
    return NamedShape{tensor.array.node.where(), std::move(shape)};
  };
  const int64_t dim = latent.width() + rope.width();
  set_shapes(shape_as(q, {q.heads(), q.rows(), dim}), shape_as(latent, {1, latent.rows(), dim}),
             shape_as(latent, {1, latent.rows(), latent.width()}), layer);
  layer.latent = {static_cast<int32_t>(latent.width()), static_cast<int32_t>(rope.width()), 0,
                  static_cast<int32_t>(up_v.width())};
  expect_shape(up_v.array, {layer.q_heads, latent.width(), up_v.width()});
  if (up_v.width() < 1) h5::fail(up_v.array.node, "makes values without numbers");
  read_up_k(node, q, layer);
}

namespace {

// rope [n, rope] and latent [n, width] -> [n, rope + width].
void join_rows(const LatentInfo& shape, std::span<const float> rope, std::span<const float> latent,
               std::span<float> into) {
  const auto r = static_cast<size_t>(shape.rope), c = static_cast<size_t>(shape.width);
  for (size_t row = 0; row < into.size() / (r + c); ++row) {
    const auto to = into.begin() + static_cast<int64_t>(row * (r + c));
    std::ranges::copy(rope.subspan(row * r, r), to);
    std::ranges::copy(latent.subspan(row * c, c), to + static_cast<int64_t>(r));
  }
}

std::vector<float> transposed(std::span<const float> matrix, size_t columns) {
  const size_t rows = matrix.size() / columns;
  std::vector<float> turned(matrix.size());
  for (size_t i = 0; i < matrix.size(); ++i) turned[i % columns * rows + i / columns] = matrix[i];
  return turned;
}

}  // namespace

void project_rows(const LatentInfo& shape, std::span<const float> stored, std::span<const float> up_k,
                  std::span<float> into) {
  const auto r = static_cast<size_t>(shape.rope), c = static_cast<size_t>(shape.width),
             key = up_k.empty() ? c : static_cast<size_t>(shape.key);
  std::vector<float> front, rope;
  for (size_t at = 0; at < stored.size(); at += key + r) {
    const std::span<const float> row = stored.subspan(at, key + r);
    front.insert(front.end(), row.begin(), row.begin() + static_cast<int64_t>(key));
    rope.insert(rope.end(), row.end() - static_cast<int64_t>(r), row.end());
  }
  if (!up_k.empty()) front = product_of(front, transposed(up_k, key), key);
  join_rows(shape, rope, front, into);
}

void read_latent_keys(const LayerInfo& layer, const OpenByName& open, int64_t count, std::span<float> into) {
  std::vector<float> rope(static_cast<size_t>(count * layer.latent.rope)),
      latent(static_cast<size_t>(count * layer.latent.width));
  read_rows(open("rope_k"), 0, 0, count, rope, "token");
  read_rows(open("latent"), 0, 0, count, latent, "token");
  join_rows(layer.latent, rope, latent, into);
}

void read_latent_queries(const LayerInfo& layer, const OpenByName& open, const HeadRows& rows, std::span<float> into) {
  const LatentInfo& shape = layer.latent;
  std::vector<float> stored(static_cast<size_t>(rows.count * layer.query_width())),
      up_k(static_cast<size_t>(shape.width) * static_cast<size_t>(shape.key));
  read_rows(open(rows.name), rows.head, rows.first, rows.count, stored, rows.row);
  if (!up_k.empty()) read_rows(open("up_k"), rows.head, 0, shape.width, up_k, "channel");
  project_rows(shape, stored, up_k, into);
}

}  // namespace kvreplay
