# What makes a build take less time.

# A unity build (preset `unity`) compiles the files of a target in batches: each header is read once for a batch. Names in anonymous namespaces are therefore
# distinct within a library. A directory has the kind of build that it was configured with first; editing one file compiles its whole batch.
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
endif()
if(CMAKE_UNITY_BUILD AND PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288) # KiB that g++ uses before it looks for garbage: a tenth of the time of a large file
endif()

# For code that parses, prints or tests: nobody waits for it, and at -O1 it compiles in two thirds of the time.
function(vpmu_cold_code target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_compile_options(${target} INTERFACE "$<$<CONFIG:RelWithDebInfo>:-O1>")
  else()
    target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:-O1>")
  endif()
endfunction()

# For code that no fuzz target calls: in their build it is neither instrumented nor optimized.
function(vpmu_not_fuzzed target)
  if(VPMU_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE -O0 -fno-sanitize=all)
  endif()
endfunction()

# Headers that nearly every file includes, compiled once: a quarter of a build's time. Only with g++ and without sanitizers, and for the fuzz targets:
# the other builds show whether each file includes what it uses.
if(NOT PROJECT_IS_TOP_LEVEL OR (NOT VPMU_BUILD_FUZZERS AND (VPMU_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")))
  function(vpmu_precompile target)
  endfunction()
  return()
endif()
set(common_headers <algorithm> <array> <atomic> <bit> <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view>
  <tuple> <utility> <variant> <vector>)

# vpmu_precompile(TARGET HEADER... [UNITY HEADER...]) | vpmu_precompile(TARGET AS OTHER): the second form shares the headers of OTHER. TARGET must have all
# of OTHER's flags (-O too) and definitions, and may have more. Those behind UNITY are our own, for unity builds: with single files each change of one would
# compile the whole library.
function(vpmu_precompile target)
  if("${ARGV1}" STREQUAL "AS")
    target_precompile_headers(${target} REUSE_FROM ${ARGV2})
  else()
    cmake_parse_arguments(headers "" "" "UNITY" ${ARGN})
    if(NOT CMAKE_UNITY_BUILD)
      set(headers_UNITY)
    endif()
    target_precompile_headers(${target} PRIVATE ${common_headers} ${headers_UNPARSED_ARGUMENTS} ${headers_UNITY})
  endif()
  # With precompiled headers, g++ 12 forgets that code which it inlines is from a system header, and warns about std::string's own copying.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/tools/dev/cmake/cached_compiler;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()
