# SPDX-License-Identifier: Apache-2.0
#
# libweft-mpi: the exchange of PULSELoCo over MPI. A library of its own, so that nothing else links MPI: who
# wants it links it, and the command loads it when it is asked for. It carries its own copy of lib/base, whose
# functions libweft does not export. Where there is no MPI, there is no such library.

find_package(MPI COMPONENTS C)
if(MPI_C_FOUND AND TARGET weft_base)
    file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/loco/mpi/*.c)
    add_library(weft_mpi SHARED ${mpi_sources} $<TARGET_OBJECTS:weft_base>)
    set_target_properties(weft_mpi PROPERTIES OUTPUT_NAME weft-mpi
        VERSION ${PROJECT_VERSION} SOVERSION ${WEFT_ABI})
    target_include_directories(weft_mpi PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
    target_link_libraries(weft_mpi PRIVATE MPI::MPI_C PkgConfig::dependencies Threads::Threads)
    install(TARGETS weft_mpi)
else()
    message(STATUS "weft: no MPI: libweft-mpi is not built")
endif()
