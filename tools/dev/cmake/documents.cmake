# cmake -DPROGRAM=... -DDIRECTORY=... -P documents.cmake: has the program write its manual pages to DIRECTORY/man/man1, and its completion
# scripts to DIRECTORY/completion.SHELL. What was in DIRECTORY is removed.
file(REMOVE_RECURSE ${DIRECTORY})
file(MAKE_DIRECTORY ${DIRECTORY})
execute_process(COMMAND ${PROGRAM} manual ${DIRECTORY}/man/man1 COMMAND_ERROR_IS_FATAL ANY)
foreach(shell bash zsh fish)
  execute_process(COMMAND ${PROGRAM} completion ${shell} OUTPUT_FILE ${DIRECTORY}/completion.${shell} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
