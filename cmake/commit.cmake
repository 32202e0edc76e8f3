# Writes OUTPUT, a header with the commit that is being built, when that has changed. Run at every build:
#   cmake -DSOURCE=… -DOUTPUT=… -P commit.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty=+changes --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
set(text "#pragma once\n#define MEGALITH_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
