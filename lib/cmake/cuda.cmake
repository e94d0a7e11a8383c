# The policies are compiled as device code where a CUDA compiler is found.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "no CUDA compiler: the policies are compiled for the CPU only")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

kvreplay_methods_of(${CMAKE_CURRENT_SOURCE_DIR}/methods/methods.list names structs)
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
add_library(kvreplay_cuda STATIC ${kernels})
target_include_directories(kvreplay_cuda PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
# --expt-relaxed-constexpr: std::span and std::bit_cast are constexpr functions of the standard library.
target_compile_options(kvreplay_cuda PRIVATE --expt-relaxed-constexpr -Werror=all-warnings)
