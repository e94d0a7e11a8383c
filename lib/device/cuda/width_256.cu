#include "device/cuda/of_width.cuh"

namespace kvreplay::cuda {
template struct OfWidth<256>;
}  // namespace kvreplay::cuda
