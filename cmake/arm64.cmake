# SPDX-License-Identifier: Apache-2.0
#
# A build for aarch64 on an x86-64 machine, with what scripts/arm64.sh puts into build/arm64: `cmake --preset arm64`.
# Tests run under qemu.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(arm64 ${CMAKE_CURRENT_LIST_DIR}/../build/arm64)
set(CMAKE_SYSROOT ${arm64}/sysroot)
if(NOT CMAKE_C_COMPILER)
    set(CMAKE_C_COMPILER ${arm64}/bin/aarch64-linux-gnu-gcc)
endif()
set(CMAKE_CROSSCOMPILING_EMULATOR ${arm64}/bin/qemu-aarch64)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
# MPI's library would be the other machine's.
set(CMAKE_DISABLE_FIND_PACKAGE_MPI ON)
