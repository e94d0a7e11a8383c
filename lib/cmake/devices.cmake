# CUDA devices beside the cores. Where they are not built, a few lines say so.
if(KVREPLAY_CUDA)
  file(GLOB kernels CONFIGURE_DEPENDS device/cuda/*.cu)
  add_library(kvreplay_cuda STATIC ${kernels})
  target_include_directories(kvreplay_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  # std::span and std::bit_cast are constexpr functions of the standard library.
  target_compile_options(kvreplay_cuda PRIVATE --expt-relaxed-constexpr -Xfatbin=-compress-all ${KVREPLAY_CUDA_WARNINGS})
  # The runtime lies inside and looks for the driver when a device is first asked for, so that a program starts without.
  set_target_properties(kvreplay_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_link_libraries(kvreplay PRIVATE kvreplay_cuda)
else()
  target_sources(kvreplay PRIVATE device/cuda/no_cuda.cpp)
endif()
