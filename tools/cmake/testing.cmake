# What test programs are built with, in addition to what they test. It is cold code: what must be fast is in the libraries and the benchmarks.
find_package(GTest REQUIRED)
include(GoogleTest)
enable_testing()
add_library(vpmu_testing INTERFACE)
target_link_libraries(vpmu_testing INTERFACE vpmu_warnings GTest::gtest_main)
vpmu_cold_code(vpmu_testing)

# Their precompiled headers, in a target of its own with the flags of a program.
file(WRITE ${PROJECT_BINARY_DIR}/vpmu_testing_headers.cpp "")
add_library(vpmu_testing_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/vpmu_testing_headers.cpp)
set_target_properties(vpmu_testing_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(vpmu_testing_headers PRIVATE -fPIE)
target_link_libraries(vpmu_testing_headers PRIVATE vpmu_testing)
vpmu_precompile(vpmu_testing_headers <gtest/gtest.h>)
