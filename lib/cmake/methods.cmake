# kvreplay_methods_of(LIST names structs): reads a methods.list.
function(kvreplay_methods_of list names structs)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^[a-z]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([a-z0-9_]+)[ \t]+([A-Za-z0-9_]+)[ \t]*$" ok "${line}")
    if(NOT ok)
      message(FATAL_ERROR "${list}: '${line}' is not 'file Struct'")
    endif()
    list(APPEND found ${CMAKE_MATCH_1})
    list(APPEND types ${CMAKE_MATCH_2})
  endforeach()
  set(${names} ${found} PARENT_SCOPE)
  set(${structs} ${types} PARENT_SCOPE)
endfunction()

# kvreplay_registry(TARGET LIST...): a library that holds registry(), with one translation unit for each
# method, so that a method is one file and one line. A method's file stands beside its list.
function(kvreplay_registry target)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target})
  set(declarations "")
  set(calls "")
  set(sources "")
  foreach(list IN LISTS ARGN)
    get_filename_component(folder ${list} DIRECTORY)
    kvreplay_methods_of(${list} names structs)
    foreach(name struct IN ZIP_LISTS names structs)
      file(CONFIGURE OUTPUT ${out}/${name}.cpp CONTENT [[
#include "@folder@/@name@.hpp"
#include "replay/make_method.hpp"
namespace kvreplay {
Method method_@name@() { return make_method<@struct@>(); }
}  // namespace kvreplay
]] @ONLY)
      list(APPEND sources ${out}/${name}.cpp)
      string(APPEND declarations "Method method_${name}();\n")
      string(APPEND calls "method_${name}(), ")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${out}/registry.cpp CONTENT [[
#include "catalog/method.hpp"
namespace kvreplay {
@declarations@
const Registry& registry() {
  static const Registry all{@calls@};
  return all;
}
}  // namespace kvreplay
]] @ONLY)
  add_library(${target} STATIC ${sources} ${out}/registry.cpp)
  target_link_libraries(${target} PUBLIC kvreplay PRIVATE kvreplay_flags kvreplay_packages)
endfunction()
