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

# kvreplay_method_file(FOLDER NAME to): the header of a method: NAME.hpp, or NAME/NAME.hpp where it has a folder.
function(kvreplay_method_file folder name to)
  set(file ${name}.hpp)
  if(EXISTS ${folder}/${name}/${name}.hpp)
    set(file ${name}/${name}.hpp)
  endif()
  set(${to} ${file} PARENT_SCOPE)
endfunction()

# kvreplay_any_scorer(LIST FILE): a struct that is one of the scorers of a list, chosen at run time, for the
# methods that wrap one.
function(kvreplay_any_scorer list file)
  get_filename_component(folder ${list} DIRECTORY)
  kvreplay_methods_of(${list} names structs scorers)
  set(kind 0)
  set(usual 0)
  foreach(name struct IN ZIP_LISTS names structs)
    if(NOT name IN_LIST scorers)
      continue()
    endif()
    kvreplay_method_file(${folder} ${name} header)
    string(APPEND includes "#include \"methods/${header}\"\n")
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
#include "core/selecting.hpp"
@includes@
namespace kvreplay {
struct Scorers {
  static constexpr int32_t kinds = @kind@, usual = @usual@;
@members@  static decltype(auto) pick(auto& self, int32_t kind, auto&& f) {
    switch (kind) {
@cases@      default: return f(self.@last@);
    }
  }
};
using AnyScorer = Wrapped<Scorers>;
}  // namespace kvreplay
]] @ONLY)
endfunction()

# kvreplay_together(TARGET [COUNT]): compiles COUNT files at a time, which share what the compiler reads and instantiates.
function(kvreplay_together target)
  set(count 16)
  if(ARGN)
    set(count ${ARGN})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
endfunction()

# kvreplay_methods(TARGET LIST): the tables of the methods of a list. A method's file stands beside its list.
function(kvreplay_methods target list)
  get_filename_component(folder ${list} DIRECTORY)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target})
  kvreplay_methods_of(${list} names structs scorers)
  foreach(name struct IN ZIP_LISTS names structs)
    kvreplay_method_file(${folder} ${name} header)
    file(CONFIGURE OUTPUT ${out}/${name}.cpp CONTENT [[
#include "@folder@/@header@"
#include "catalog/make_policy_table.hpp"
namespace kvreplay {
PolicyTable policy_table_@name@() { return policy_table<@struct@>(); }
}  // namespace kvreplay
]] @ONLY)
    list(APPEND sources ${out}/${name}.cpp)
  endforeach()
  add_library(${target} STATIC ${sources})
  kvreplay_together(${target})
  target_link_libraries(${target} PUBLIC kvreplay::kvreplay)
  set_target_properties(${target} PROPERTIES kvreplay_names "${names}" kvreplay_list ${list}
                        EXPORT_PROPERTIES kvreplay_names)
  if(COMMAND kvreplay_compiled_here)
    kvreplay_compiled_here(${target})
  endif()
endfunction()

# kvreplay_registry(TARGET [EMULATED] METHODS...): registry() over the methods of these targets, in their order.
# EMULATED: with the device `emulated`.
function(kvreplay_registry target)
  cmake_parse_arguments(PARSE_ARGV 1 with EMULATED "" "")
  set(declarations "")
  set(calls "")
  if(with_EMULATED)
    set(installs "#include \"emulator/install.hpp\"
extern const bool emulator_is_there;
const bool emulator_is_there = kvreplay::emulator::install();")
  endif()
  foreach(methods IN LISTS with_UNPARSED_ARGUMENTS)
    get_target_property(names ${methods} kvreplay_names)
    foreach(name IN LISTS names)
      string(APPEND declarations "PolicyTable policy_table_${name}();\n")
      string(APPEND calls "      Method(policy_table_${name}()),\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp CONTENT [[
#include "catalog/method.hpp"
@installs@
namespace kvreplay {
@declarations@
const Registry& registry() {
  static const Registry all{
@calls@  };
  return all;
}
}  // namespace kvreplay
]] @ONLY)
  add_library(${target} STATIC ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  target_link_libraries(${target} PUBLIC ${with_UNPARSED_ARGUMENTS} kvreplay::kvreplay)
  if(with_EMULATED)
    target_link_libraries(${target} PUBLIC kvreplay_emulator)
  endif()
  if(COMMAND kvreplay_compiled_here)
    kvreplay_compiled_here(${target})
  endif()
endfunction()

# kvreplay_program(NAME REGISTRY): the command line over the methods of a registry.
function(kvreplay_program name registry)
  add_executable(${name} $<TARGET_OBJECTS:kvreplay::commands>)
  target_link_libraries(${name} PRIVATE ${registry} kvreplay::kvreplay kvreplay::packages ${CMAKE_DL_LIBS})
endfunction()
