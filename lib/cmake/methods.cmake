# kvreplay_methods_of(LIST names structs scorers): reads a methods.list. scorers: names of the lines that end in
# the word "scorer".
function(kvreplay_methods_of list names structs scorers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^[a-z]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([a-z0-9_]+)[ \t]+([A-Za-z0-9_]+)([ \t]+scorer)?[ \t]*$" ok "${line}")
    if(NOT ok)
      message(FATAL_ERROR "${list}: '${line}' is not 'file Struct' or 'file Struct scorer'")
    endif()
    if(CMAKE_MATCH_3)
      list(APPEND scoring ${CMAKE_MATCH_1})
    endif()
    list(APPEND found ${CMAKE_MATCH_1})
    list(APPEND types ${CMAKE_MATCH_2})
  endforeach()
  set(${names} ${found} PARENT_SCOPE)
  set(${structs} ${types} PARENT_SCOPE)
  set(${scorers} ${scoring} PARENT_SCOPE)
endfunction()

# kvreplay_any_scorer(LIST FILE): a struct that is one of the scorers of a list, chosen at run time, for the
# methods that wrap one.
function(kvreplay_any_scorer list file)
  kvreplay_methods_of(${list} names structs scorers)
  set(kind 0)
  set(usual 0)
  foreach(name struct IN ZIP_LISTS names structs)
    if(NOT name IN_LIST scorers)
      continue()
    endif()
    string(APPEND includes "#include \"methods/${name}.hpp\"\n")
    string(APPEND members "  ${struct} ${name};\n")
    string(APPEND cases "      case ${kind}: return f(self.${name});\n")
    set(last ${name})
    if(name STREQUAL snapkv)
      set(usual ${kind})
    endif()
    math(EXPR kind "${kind} + 1")
  endforeach()
  file(CONFIGURE OUTPUT ${file} CONTENT [[
#pragma once
#include "core/wrapped.hpp"
@includes@
namespace kvreplay {
struct Scorers {
  static constexpr int32_t kinds = @kind@, usual = @usual@;
@members@  KVR_FN static decltype(auto) pick(auto& self, int32_t kind, auto&& f) {
    switch (kind) {
@cases@      default: return f(self.@last@);
    }
  }
};
using AnyScorer = Wrapped<Scorers>;
}  // namespace kvreplay
]] @ONLY)
endfunction()

# kvreplay_methods(TARGET LIST): compiles the methods of a list, one translation unit each, and the programs by
# which devices replay their caches. A method's file stands beside its list.
function(kvreplay_methods target list)
  get_filename_component(folder ${list} DIRECTORY)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target})
  kvreplay_methods_of(${list} names structs scorers)
  foreach(name struct IN ZIP_LISTS names structs)
    file(CONFIGURE OUTPUT ${out}/${name}.cpp CONTENT [[
#include "@folder@/@name@.hpp"
#include "replay/make_method.hpp"
namespace kvreplay {
Method method_@name@() { return make_method<@struct@>(); }
}  // namespace kvreplay
]] @ONLY)
    list(APPEND sources ${out}/${name}.cpp)
  endforeach()
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC kvreplay::kvreplay PRIVATE kvreplay::packages)
  set_target_properties(${target} PROPERTIES kvreplay_names "${names}" EXPORT_PROPERTIES kvreplay_names)
  kvreplay_compiled_here(${target})
  if(KVREPLAY_EMULATOR AND NOT KVREPLAY_SANITIZE)  # minutes, and tests bring a policy with every whim
    kvreplay_programs(${target} ${list} emulated emulated_chain.hpp cpp)
    target_link_libraries(${target}_emulated PRIVATE kvreplay::packages)
    kvreplay_compiled_here(${target}_emulated)
  endif()
  if(KVREPLAY_CUDA AND CMAKE_CUDA_COMPILER)
    kvreplay_programs(${target} ${list} cuda cuda_chain.cuh cu)
    # std::span and std::bit_cast are constexpr functions of the standard library.
    target_compile_options(${target}_cuda PRIVATE --expt-relaxed-constexpr ${KVREPLAY_CUDA_WARNINGS})
  endif()
  if(KVREPLAY_SANITIZE)  # most of what an unoptimised file takes is its headers
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
endfunction()

# kvreplay_programs(METHODS LIST DEVICE HEADER EXTENSION): a library METHODS_DEVICE of what starts their chains
# there, DEVICE_chains_NAME(). HEADER, in the device's folder, has DEVICE::start_chains<Struct>().
function(kvreplay_programs target list device header extension)
  get_filename_component(folder ${list} DIRECTORY)
  string(REPLACE emulated emulator room ${device})
  set(sources "")
  kvreplay_methods_of(${list} names structs scorers)
  foreach(name struct IN ZIP_LISTS names structs)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}/${device}_${name}.${extension})
    file(CONFIGURE OUTPUT ${file} CONTENT [[
#include "backend/@room@/@header@"
#include "@folder@/@name@.hpp"
namespace kvreplay {
void @device@_chains_@name@(const ChainLaunch& launch) { @room@::start_chains<@struct@>(launch); }
}  // namespace kvreplay
]] @ONLY)
    list(APPEND sources ${file})
  endforeach()
  add_library(${target}_${device} STATIC ${sources})
  target_link_libraries(${target}_${device} PUBLIC kvreplay::kvreplay)
  target_link_libraries(${target} PUBLIC ${target}_${device})
endfunction()

# kvreplay_registry(TARGET METHODS...): registry() over the methods of these targets, in their order.
function(kvreplay_registry target)
  set(declarations "")
  set(calls "")
  foreach(methods IN LISTS ARGN)
    get_target_property(names ${methods} kvreplay_names)
    foreach(name IN LISTS names)
      string(APPEND declarations "Method method_${name}();\n")
      foreach(device emulated cuda)
        set(${device} nullptr)
        if(TARGET ${methods}_${device})
          set(${device} ${device}_chains_${name})
          string(APPEND declarations "void ${device}_chains_${name}(const ChainLaunch&);\n")
        endif()
      endforeach()
      string(APPEND calls "      with({${emulated}, ${cuda}}, method_${name}()),\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp CONTENT [[
#include "catalog/method.hpp"
namespace kvreplay {
@declarations@
namespace {
Method with(ChainPrograms programs, Method method) {
  method.programs = programs;
  return method;
}
}  // namespace
const Registry& registry() {
  static const Registry all{
@calls@  };
  return all;
}
}  // namespace kvreplay
]] @ONLY)
  add_library(${target} STATIC ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  target_link_libraries(${target} PUBLIC ${ARGN} kvreplay::kvreplay PRIVATE kvreplay::packages)
  kvreplay_compiled_here(${target})
endfunction()

# kvreplay_program(NAME REGISTRY): the command line over the methods of a registry.
function(kvreplay_program name registry)
  add_executable(${name} $<TARGET_OBJECTS:kvreplay::commands>)
  target_link_libraries(${name} PRIVATE ${registry} kvreplay::kvreplay kvreplay::packages ${CMAKE_DL_LIBS})
endfunction()
