# The program, the library with its headers, and a package for find_package(kvreplay): with it another project
# replays caches, or builds the program anew with methods of its own.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/kvreplay)
set(header_folder ${CMAKE_INSTALL_INCLUDEDIR}/kvreplay)

set(exported "")
foreach(part packages commands methods registry cuda)
  if(TARGET kvreplay_${part})
    set_target_properties(kvreplay_${part} PROPERTIES EXPORT_NAME ${part})
    list(APPEND exported kvreplay_${part})
  endif()
endforeach()
# Headers that see HDF5 or Eigen are the library's own. The others include each other from
# their root; other projects write <kvreplay/trace/trace.hpp>.
target_include_directories(kvreplay INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                              $<INSTALL_INTERFACE:${header_folder}>)
install(TARGETS kvreplay ${exported} EXPORT kvreplay
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} OBJECTS DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvreplay)
install(TARGETS kvreplay_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT kvreplay NAMESPACE kvreplay:: FILE kvreplayTargets.cmake DESTINATION ${package_folder})
foreach(headers ${PROJECT_SOURCE_DIR}/lib ${PROJECT_BINARY_DIR}/lib/generated)
  install(DIRECTORY ${headers}/ DESTINATION ${header_folder} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh"
          PATTERN "cmake" EXCLUDE REGEX "/kernels/(tile_|vector)" EXCLUDE
          REGEX "/(content_id|gradient_rows|h5_(array|raii|walk|write)|added_rows|latent_rows|shape_checks|tensor_read|trace_metadata|turns|yaml_tree)\\.hpp$" EXCLUDE)
endforeach()

set(KVREPLAY_WITH_CUDA OFF)
if(TARGET kvreplay_cuda)
  set(KVREPLAY_WITH_CUDA ON)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/package.cmake.in ${PROJECT_BINARY_DIR}/kvreplayConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
# Before version 1 a minor release may change the headers.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvreplayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvreplayConfig.cmake ${PROJECT_BINARY_DIR}/kvreplayConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/methods.cmake ${CMAKE_CURRENT_LIST_DIR}/archives.cmake
              ${CMAKE_CURRENT_LIST_DIR}/cuda_language.cmake
        DESTINATION ${package_folder})
