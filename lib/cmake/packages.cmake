# Every package is a Debian package; a missing one is named in one line, all of them at once.
set(missing "")

macro(need package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    string(APPEND missing "\n  ${package}: apt-get install ${debian}")
  endif()
endmacro()

set(HDF5_PREFER_PARALLEL OFF)
need(HDF5 libhdf5-dev COMPONENTS C)
need(Eigen3 libeigen3-dev)
need(CLI11 libcli11-dev)
need(fmt libfmt-dev)
need(yaml-cpp libyaml-cpp-dev)
need(nlohmann_json nlohmann-json3-dev)
set(THREADS_PREFER_PTHREAD_FLAG ON)
need(Threads libc6-dev)
if(KVREPLAY_TESTS)
  need(Catch2 catch2)
  need(Boost libboost-context-dev COMPONENTS context)
endif()
if(missing)
  message(FATAL_ERROR "packages are missing:${missing}")
endif()

add_library(kvreplay_packages INTERFACE)
add_library(kvreplay::packages ALIAS kvreplay_packages)
# Imported targets and no paths: whoever uses the installed package finds these on their own machine.
include(${CMAKE_CURRENT_LIST_DIR}/archives.cmake)
kvreplay_packages_inside()
target_link_libraries(kvreplay_packages INTERFACE kvreplay_hdf5 kvreplay_yaml Eigen3::Eigen)
if(KVREPLAY_FMT_SHARED)
  target_link_libraries(kvreplay_packages INTERFACE fmt::fmt)
else()
  # The functions that fmt has compiled stand in the library (base/fmt_functions.cpp).
  target_include_directories(kvreplay_packages SYSTEM INTERFACE $<BUILD_INTERFACE:$<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>>)
endif()
# Threads run over kv heads; a product that starts its own would only get in their way.
target_compile_definitions(kvreplay_packages INTERFACE EIGEN_DONT_PARALLELIZE)

add_library(kvreplay_flags INTERFACE)
target_compile_options(kvreplay_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-unknown-pragmas)
# g++ 12 warns wrongly about std::string concatenation (its bugs 105329 and 105651); clang's -Wconversion counts signs.
target_compile_options(kvreplay_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow>
                       $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)
if(KVREPLAY_WERROR)
  target_compile_options(kvreplay_flags INTERFACE -Werror)
endif()
set(KVREPLAY_CUDA_WARNINGS -Werror=all-warnings)
if(KVREPLAY_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,vptr -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  # Others' inline functions are checked for what they touch, and not for overflows: half of all the code was that.
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    add_compile_options(-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/headers_of_others.txt)
  endif()
  add_link_options(-fsanitize=address,undefined)
endif()

# What this build asks of its own files, and of no other project's.
function(kvreplay_compiled_here target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:kvreplay_flags>)
endfunction()

find_package(Git QUIET)
set(KVREPLAY_GIT_COMMIT unknown)
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(KVREPLAY_GIT_COMMIT ${commit})
  endif()
endif()
