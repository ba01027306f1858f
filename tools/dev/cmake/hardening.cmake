# Hardens what follows, where this is the top-level project: an embedder's flags are the embedder's own, and the installed package has none of these.
# A target with the property FREESTANDING gets none either: it has no C library.

# For code that runs for each of a guest's instructions, without the costly two: a landing pad is one more instruction in each op, and the containers'
# checks took some 5 % of the models' speed. Fuzzed builds have the checks. Linux does not enforce landing pads in user programs so far.
function(vpmu_hot_code target)
  target_compile_options(${target} PRIVATE -fcf-protection=none)
  if(NOT VPMU_SANITIZE AND NOT VPMU_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE -U_GLIBCXX_ASSERTIONS)
  endif()
endfunction()

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)

set(hosted "$<NOT:$<BOOL:$<TARGET_PROPERTY:FREESTANDING>>>")
add_compile_options("$<${hosted}:-fstack-protector-strong;-fcf-protection=full>")
add_link_options("$<${hosted}:LINKER:-z,relro;LINKER:-z,now;LINKER:-z,noexecstack>")
# Needs a compiler that optimises; a sanitizer does the same and more.
if(NOT VPMU_SANITIZE AND NOT VPMU_BUILD_FUZZERS)
  add_compile_options("$<$<AND:${hosted},$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
add_compile_options("$<$<AND:${hosted},$<COMPILE_LANGUAGE:CXX>>:-D_GLIBCXX_ASSERTIONS>")
