#include "device/cuda/of_width.cuh"

namespace kvreplay::cuda {
template struct OfWidth<64>;
}  // namespace kvreplay::cuda
