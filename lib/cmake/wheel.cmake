# What a wheel holds beside the Python packages of pyproject.toml: the program, the extension module where it is built,
# and what `kvreplay quickstart` replays. Everything lands in the packages kvreplay and kvbase, and nothing else is installed.
#
# The C++ runtime goes inside, because systems have older ones than the compiler's. libgcc_s stays outside: every
# system with glibc has it, and its archive would ask for a newer glibc than anything else here.
foreach(target kvreplay_program kvreplay_module)
  if(TARGET ${target})
    target_link_options(${target} PRIVATE -static-libstdc++ -Wl,--exclude-libs,ALL,--gc-sections)
  endif()
endforeach()

install(TARGETS kvreplay_program RUNTIME DESTINATION kvreplay/bin COMPONENT wheel)
if(TARGET kvreplay_module)
  install(TARGETS kvreplay_module LIBRARY DESTINATION kvbase COMPONENT wheel)
endif()
# Side by side as in a checkout, so that the paths inside the configurations hold.
install(DIRECTORY configs DESTINATION kvreplay/data COMPONENT wheel FILES_MATCHING PATTERN "*.yaml" PATTERN "*.txt")
install(DIRECTORY traces/samples DESTINATION kvreplay/data/traces COMPONENT wheel USE_SOURCE_PERMISSIONS)
