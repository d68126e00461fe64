# SPDX-License-Identifier: Apache-2.0
#
# What `make install` gives: headers, both libraries, weft.pc, the command with man pages and completions, units for
# systemd, alerts and a dashboard, and the Python package, which finds the library in the prefix that it lies in
# (python/weft/library.py). weft.pc names its
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

# The command writes its own man pages, so it must run here.
if(TARGET weft AND NOT WEFT_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    set(manual ${PROJECT_BINARY_DIR}/manual)
    add_custom_command(OUTPUT ${manual}.stamp
        COMMAND ${CMAKE_COMMAND} -DWEFT=$<TARGET_FILE:weft> -DOUTPUT=${manual}
            -P ${PROJECT_SOURCE_DIR}/cmake/manual.cmake
        COMMAND ${CMAKE_COMMAND} -E touch ${manual}.stamp
        DEPENDS weft cmake/manual.cmake)
    add_custom_target(manual ALL DEPENDS ${manual}.stamp)
    install(DIRECTORY ${manual}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
    install(FILES ${manual}/completions/weft DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${manual}/completions/_weft DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
    install(FILES ${manual}/completions/weft.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
    install(DIRECTORY ${manual}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
    # Units name the command by its whole path.
    file(GLOB units CONFIGURE_DEPENDS contrib/systemd/*.service)
    foreach(unit IN LISTS units)
        get_filename_component(name ${unit} NAME)
        install(CODE "
            file(READ \"${unit}\" text)
            string(REPLACE /usr/bin/weft \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/weft\" text \"\${text}\")
            file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${name}\" \"\${text}\")")
    endforeach()
    install(FILES contrib/systemd/weft.conf DESTINATION lib/sysusers.d)
    install(DIRECTORY contrib/prometheus contrib/grafana contrib/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
