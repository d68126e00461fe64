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
        FILES_MATCHING PATTERN "*.py")
endif()
