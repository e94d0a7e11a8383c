#pragma once
#include <functional>
#include <span>

#include "trace/tensor_read.hpp"

// Layers of latent attention (LatentInfo): their datasets, and the form in which the engine reads them. In a file the
// rotated part of a query comes last, as models compute it; in the engine it comes first, as in any key of which a part
// is rotated.

namespace kvreplay {

// Sets the shapes of a layer with the datasets latent, rope_k, up_v, up_k and q. Throws h5::Problem.
void read_latent_shapes(const h5::Node& node, const std::string& source_dtype, LayerInfo& layer);

// Rows as the file has them, with the rotated part last -> [n, rope + width]. With up_k, [width, key] of a query head,
// they are its queries [n, key + rope]. Without it they are [n, width + rope] already.
void project_rows(const LatentInfo& shape, std::span<const float> stored, std::span<const float> up_k,
                  std::span<float> into);

// Opens a dataset of a layer.
using OpenByName = std::function<const Tensor&(const char* name)>;

// Rows of a query head in one of the layer's datasets; row: what messages call a row.
struct HeadRows {
  const char *name, *row;
  int32_t head = 0;
  int64_t first = 0, count = 0;
};

// Keys of the first `count` tokens, [count, rope + width], and queries [rows.count, rope + width]. Throw h5::Problem.
void read_latent_keys(const LayerInfo& layer, const OpenByName& open, int64_t count, std::span<float> into);
void read_latent_queries(const LayerInfo& layer, const OpenByName& open, const HeadRows& rows, std::span<float> into);

}  // namespace kvreplay
