#pragma once
#include <span>

#include "trace/h5_walk.hpp"
#include "trace/trace_info.hpp"

// Layers of latent attention (LatentInfo): their datasets, and the form in which the engine reads them. In a file the
// rotated part of a query comes last, as models compute it; in the engine it comes first, as in any key of which a part
// is rotated.

namespace kvreplay {

// Sets the shapes of a layer with the datasets latent, rope_k, up_v, up_k and q. Throws h5::Problem.
void read_latent_shapes(const h5::Node& node, const std::string& source_dtype, LayerInfo& layer);

// rope [n, rope] and latent [n, width] -> [n, rope + width].
void join_rows(const LatentInfo& shape, std::span<const float> rope, std::span<const float> latent,
               std::span<float> into);
// Rows as the file has them, with the rotated part last -> [n, rope + width]. With up_k, [width, key] of a query head,
// they are its queries [n, key + rope]. Without it they are [n, width + rope] already.
void project_rows(const LatentInfo& shape, std::span<const float> stored, std::span<const float> up_k,
                  std::span<float> into);

}  // namespace kvreplay
