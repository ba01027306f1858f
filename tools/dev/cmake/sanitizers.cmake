# Applies VPMU_SANITIZE to every target that follows, and for fuzz targets the coverage that libFuzzer reads.
if(VPMU_SANITIZE)
  add_compile_options(-fsanitize=${VPMU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++'s check of dynamic types wants RTTI, which parts of the tree do not have; and it warns that TSan does not see fences. Ours, for a
    # guest's MFENCE and in virtio's queues, order accesses to the guest's memory only.
    add_compile_options(-fno-sanitize=vptr -Wno-tsan)
  endif()
  add_link_options(-fsanitize=${VPMU_SANITIZE})
endif()
if(VPMU_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "VPMU_BUILD_FUZZERS needs clang, this is ${CMAKE_CXX_COMPILER_ID}: configure with --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
  # Everything that fuzzes, for `cmake --build --preset fuzz`.
  add_custom_target(fuzzers)
endif()
