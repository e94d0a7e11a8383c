# The policies as device code: one kernel each.
kvreplay_methods_of(${CMAKE_CURRENT_SOURCE_DIR}/methods/methods.list names structs scorers)
set(kernels "")
foreach(name struct IN ZIP_LISTS names structs)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.cu CONTENT [[
#include "backend/cuda/replay_kernel.cuh"
#include "methods/@name@.hpp"
namespace kvreplay {
template __global__ void replay_kernel<@struct@, float>(@struct@, DeviceHead<float>, CacheStorage<float>, StepRules, StepScratch<float>);
}  // namespace kvreplay
]] @ONLY)
  list(APPEND kernels ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.cu)
endforeach()
add_library(kvreplay_device_policies STATIC EXCLUDE_FROM_ALL ${kernels})
target_include_directories(kvreplay_device_policies PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${generated})
# std::span and std::bit_cast are constexpr functions of the standard library.
target_compile_options(kvreplay_device_policies PRIVATE --expt-relaxed-constexpr -Werror=all-warnings)
