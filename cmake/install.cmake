# SPDX-License-Identifier: Apache-2.0
#
# What `make install` gives: headers, both libraries, weft.pc, the command, and the Python package, which finds
# the library in the prefix that it lies in (python/weft/library.py). weft.pc names its
# directories relative to itself, so that the prefix may be chosen at install time. libcurl is named there as a
# library and not as a package: who links libweft.a needs it, and not the static form of all that it needs.

if(TARGET weft_shared)
    install(TARGETS weft_shared weft_static)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/weft TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
    file(RELATIVE_PATH WEFT_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" WEFT_PC_PREFIX "${WEFT_PC_PREFIX}")
    configure_file(${PROJECT_SOURCE_DIR}/cmake/weft.pc.in ${PROJECT_BINARY_DIR}/weft.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/weft DESTINATION lib/python3/dist-packages
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
endif()

# What a wheel carries beside the modules (pyproject.toml): the library under the one name that it is loaded by, and the
# command. A zip file has no symbolic links, and would hold the library three times.
if(WEFT_WHEEL)
    install(PROGRAMS $<TARGET_FILE:weft_shared> DESTINATION weft/lib RENAME $<TARGET_SONAME_FILE_NAME:weft_shared>
        COMPONENT wheel)
    install(PROGRAMS $<TARGET_FILE:weft> DESTINATION weft/bin COMPONENT wheel)
endif()
