# cmake -DBUILD=... -DSOURCE=... -DWORK=... [-DCXX=... -DFLAGS=...] -P run_installed.cmake
# Installs vpmu's library from BUILD under WORK, builds the example against that package alone, runs it and compares its output.
foreach(variable BUILD SOURCE WORK)
  if(NOT ${variable})
    message(FATAL_ERROR "run_installed.cmake: give -D${variable}=...")
  endif()
endforeach()

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run("installing" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix --component vpmu_core)
run("configuring" ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("building" ${CMAKE_COMMAND} --build ${WORK}/build)
run("running" ${WORK}/build/vpmu_embed_example)
file(READ ${SOURCE}/expected.txt expected)
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "the example printed\n${output}\ninstead of\n${expected}")
endif()
