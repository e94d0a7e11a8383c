#include "device/cuda/of_width.cuh"

namespace kvreplay::cuda {
template struct OfWidth<128>;
}  // namespace kvreplay::cuda
