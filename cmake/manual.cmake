# SPDX-License-Identifier: Apache-2.0
#
# Has the command write its man pages, what shells complete, and configuration files with all options, as they are
# installed. Run by the build: cmake -DWEFT=COMMAND -DOUTPUT=DIRECTORY -P cmake/manual.cmake

function(write file)
    execute_process(COMMAND ${WEFT} help ${ARGN} OUTPUT_FILE ${OUTPUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${OUTPUT})
file(MAKE_DIRECTORY ${OUTPUT}/man1 ${OUTPUT}/completions ${OUTPUT}/examples)
execute_process(COMMAND ${WEFT} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE ".*\nVerbs:\n" "" help "${help}")
string(REGEX REPLACE "\n\n.*" "" help "${help}")
string(REGEX MATCHALL "(^|\n)  [a-z]+" verbs "${help}")
list(TRANSFORM verbs STRIP)
write(man1/weft.1 --man)
foreach(verb IN LISTS verbs)
    write(man1/weft-${verb}.1 --man ${verb})
endforeach()
write(completions/weft --completion bash)
write(completions/_weft --completion zsh)
write(completions/weft.fish --completion fish)
foreach(verb serve follow)
    write(examples/${verb}.toml --config ${verb})
endforeach()
