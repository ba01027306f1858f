# cmake -DSOURCE=... -DHEADER=... -P commit.cmake: writes which commit is built, "-dirty" with changes of its own; touches the header only when
# that is another one.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT [[
#pragma once
// Written by tools/cmake/commit.cmake.
inline constexpr auto commit = "@commit@";
]] @ONLY)
