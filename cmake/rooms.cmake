# SPDX-License-Identifier: Apache-2.0
#
# Rooms: the sources of lib/<name> and of its folders become the object library weft_<name>. So do those of lm/
# and train/, which are no part of libweft.

set(WEFT_ROOMS "")

# The sources of a directory as the object library weft_<name>. Without sources there is none. What is for MPI is
# a library of its own (mpi.cmake).
function(weft_add_objects name directory)
    file(GLOB_RECURSE room_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${directory}/*.c)
    list(FILTER room_sources EXCLUDE REGEX "/lib/loco/mpi/[^/]*$")
    if(NOT WEFT_X86)
        list(FILTER room_sources EXCLUDE REGEX "_(avx2|avx512)\\.c$")
    endif()
    set(avx2_sources ${room_sources})
    list(FILTER avx2_sources INCLUDE REGEX "_avx2\\.c$")
    set_source_files_properties(${avx2_sources} PROPERTIES COMPILE_OPTIONS "${WEFT_AVX2_FLAGS}")
    set(avx512_sources ${room_sources})
    list(FILTER avx512_sources INCLUDE REGEX "_avx512\\.c$")
    set_source_files_properties(${avx512_sources} PROPERTIES COMPILE_OPTIONS "${WEFT_AVX512_FLAGS}")
    if(room_sources)
        add_library(weft_${name} OBJECT ${room_sources})
        target_include_directories(weft_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include)
        target_link_libraries(weft_${name} PUBLIC PkgConfig::dependencies Threads::Threads)
    endif()
endfunction()

macro(weft_add_room name)
    weft_add_objects(${name} lib/${name})
    if(TARGET weft_${name})
        list(APPEND WEFT_ROOMS weft_${name})
    endif()
endmacro()

# libweft.so and libweft.a from the objects of all rooms.
function(weft_add_libraries)
    set(objects "")
    foreach(room IN LISTS WEFT_ROOMS)
        list(APPEND objects $<TARGET_OBJECTS:${room}>)
    endforeach()
    if(NOT objects)
        return()
    endif()
    foreach(kind IN ITEMS shared static)
        string(TOUPPER ${kind} type)
        add_library(weft_${kind} ${type} ${objects})
        set_target_properties(weft_${kind} PROPERTIES OUTPUT_NAME weft LINKER_LANGUAGE C)
        target_include_directories(weft_${kind} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
    endforeach()
    target_link_libraries(weft_shared PRIVATE PkgConfig::dependencies Threads::Threads m)
    target_link_libraries(weft_static PUBLIC PkgConfig::dependencies Threads::Threads m)
    set_target_properties(weft_shared PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${WEFT_ABI})
    set(map ${PROJECT_SOURCE_DIR}/cmake/weft.map)
    target_link_options(weft_shared PRIVATE -Wl,--version-script=${map})
    set_target_properties(weft_shared PROPERTIES LINK_DEPENDS ${map})
    if(NOT WEFT_SANITIZE)
        target_link_options(weft_shared PRIVATE -Wl,--no-undefined)
    endif()
endfunction()
