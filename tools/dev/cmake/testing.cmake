# What test programs are built with, in addition to what they test. It is cold code: what must be fast is in the libraries and the benchmarks.
find_package(GTest REQUIRED)
include(GoogleTest)
enable_testing()
add_library(vpmu_testing INTERFACE)
target_link_libraries(vpmu_testing INTERFACE vpmu_warnings GTest::gtest_main)
vpmu_cold_code(vpmu_testing)
# Guest code (X86() in assembled.hpp) is the same whatever the optimisation: without it clang would make all jumps long.
target_compile_options(vpmu_testing INTERFACE $<$<CXX_COMPILER_ID:Clang>:-mno-relax-all>)

# vpmu_testing_headers(NAME HEADER... LIBRARIES LIBRARY...): a target with the flags of a program, whose precompiled headers test programs share.
function(vpmu_testing_headers name)
  cmake_parse_arguments(headers "" "" "LIBRARIES" ${ARGN})
  file(WRITE ${PROJECT_BINARY_DIR}/${name}.cpp "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${name}.cpp)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE)
  target_link_libraries(${name} PRIVATE vpmu_testing ${headers_LIBRARIES})
  vpmu_precompile(${name} <gtest/gtest.h> ${headers_UNPARSED_ARGUMENTS})
endfunction()
vpmu_testing_headers(vpmu_testing_headers)
