# SPDX-License-Identifier: Apache-2.0
#
# Makes the page of `weft serve` a C header: cmake -DPAGE=programs/page -DOUTPUT=FILE -P cmake/page.cmake
#
# The style and the script are put into the document where it says so, and stand beside it alone too, since
# the browser is told their hashes.

file(READ ${PAGE}/status.css style)
file(READ ${PAGE}/status.js script)
file(READ ${PAGE}/index.html document)
string(REPLACE "<!-- style -->" "<style>${style}</style>" document "${document}")
string(REPLACE "<!-- script -->" "<script>${script}</script>" document "${document}")
file(WRITE ${OUTPUT}.html "${document}")

function(print_array name path)
    file(READ ${path} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    file(APPEND ${OUTPUT}.new "\nstatic const char ${name}[] = {\n${bytes}};\n")
endfunction()

file(WRITE ${OUTPUT}.new "/* Made by cmake/page.cmake of ${PAGE}. */\n")
print_array(page_style ${PAGE}/status.css)
print_array(page_script ${PAGE}/status.js)
print_array(page_document ${OUTPUT}.html)
file(RENAME ${OUTPUT}.new ${OUTPUT})
