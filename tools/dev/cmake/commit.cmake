# cmake -DSOURCE=... -DHEADER=... -P commit.cmake: writes the name of the commit, with "-dirty" if there are uncommitted
# changes, and its date (today's if there is no commit). Touches the header only when one of them has changed.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
execute_process(COMMAND git -C ${SOURCE} log -1 --format=%cs OUTPUT_VARIABLE commit_date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit_date MATCHES "^[0-9]+-[0-9]+-[0-9]+$")
  string(TIMESTAMP commit_date "%Y-%m-%d" UTC) # SOURCE_DATE_EPOCH where it is set
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT [[
#pragma once
// Written by tools/dev/cmake/commit.cmake.
inline constexpr auto commit = "@commit@";
inline constexpr auto commit_date = "@commit_date@";
]] @ONLY)
