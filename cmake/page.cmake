# SPDX-License-Identifier: Apache-2.0
#
# Makes the pages of programs/server/page C headers, each with the style, the script and the document:
# cmake -DPAGE=programs/server/page -DOUTPUT=DIRECTORY -P cmake/page.cmake
#
# Styles and scripts are put into the document where it says so, and stand beside it alone too, since the
# browser is told their hashes.

# join(TEXT FILE...)
function(join text)
    set(all "")
    foreach(name IN LISTS ARGN)
        file(READ ${PAGE}/${name} part)
        string(APPEND all "${part}")
    endforeach()
    set(${text} "${all}" PARENT_SCOPE)
endfunction()

function(print_array header name path)
    file(READ ${path} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    file(APPEND ${header}.new "\nstatic const char ${name}[] = {\n${bytes}};\n")
endfunction()

# make_page(NAME DOCUMENT "STYLES" "SCRIPTS"): OUTPUT/NAME.h
function(make_page name document styles scripts)
    set(header ${OUTPUT}/${name}.h)
    join(style ${styles})
    join(script ${scripts})
    file(READ ${PAGE}/${document} text)
    string(REPLACE "<!-- style -->" "<style>${style}</style>" text "${text}")
    string(REPLACE "<!-- script -->" "<script>${script}</script>" text "${text}")
    file(WRITE ${OUTPUT}/${name}.css "${style}")
    file(WRITE ${OUTPUT}/${name}.js "${script}")
    file(WRITE ${OUTPUT}/${name}.html "${text}")
    file(WRITE ${header}.new "/* Made by cmake/page.cmake of ${PAGE}. */\n")
    print_array(${header} page_style ${OUTPUT}/${name}.css)
    print_array(${header} page_script ${OUTPUT}/${name}.js)
    print_array(${header} page_document ${OUTPUT}/${name}.html)
    file(RENAME ${header}.new ${header})
endfunction()

make_page(serve_page_data index.html "common.css;status.css" "common.js;chart.js;training.js;status.js")
make_page(demo_page_data report.html "common.css;report.css" "common.js;chart.js;training.js;report.js")
