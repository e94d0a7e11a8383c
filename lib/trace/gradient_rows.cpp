#include "trace/gradient_rows.hpp"

#include "trace/shape_checks.hpp"
#include "trace/tensor_read.hpp"

namespace kvreplay {
namespace {

// A gradient of one loss, beside the samples of `g`.
bool has_gradient(const h5::Node& node, const char* name, const LayerInfo& layer) {
  if (!h5::has_child(node, name)) return false;
  expect_shape(open_tensor(node, name, layer.source_dtype, 3, "[heads, rows, v_head_dim]").array,
               {layer.q_heads, layer.gradient_rows, layer.out_dim()});
  return true;
}

}  // namespace

void read_gradient_shapes(const h5::Node& node, LayerInfo& layer) {
  constexpr int64_t kMostSamples = 4096;
  if (!h5::has_child(node, "g")) return;
  const Tensor g = open_gradient(node, layer.source_dtype);
  const NamedShape shape{g.array.node.where(), g.array.shape};
  layer.gradient_samples = checked_extent(shape, 0, "samples", kMostSamples);
  layer.gradient_rows = checked_extent(shape, 2, "rows", layer.tokens);
  expect_shape(g.array, {layer.gradient_samples, layer.q_heads, layer.gradient_rows, layer.out_dim()});
  if (!h5::has_child(node, "g_rows"))
    h5::fail(node.where() + "/g", "needs the dataset g_rows beside it: the token of each row");
  expect_integers(h5::open_array(node, "g_rows"), layer.gradient_rows);
  layer.gradient_recorded = has_gradient(node, "g_recorded", layer);
  layer.gradient_answer = has_gradient(node, "g_answer", layer);
}

}  // namespace kvreplay
