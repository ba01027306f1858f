# The warning set of the whole tree. Linked privately by each of our targets, so that an embedder does not inherit it.
add_library(vpmu_warnings INTERFACE)
target_compile_options(vpmu_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wold-style-cast -Wnon-virtual-dtor -Wswitch-enum
  # Designated initialisers leave members at their defaults on purpose.
  -Wno-missing-field-initializers
  # In a unity build other files' names would count.
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow>)
if(VPMU_WERROR)
  target_compile_options(vpmu_warnings INTERFACE -Werror)
endif()
