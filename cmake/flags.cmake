# SPDX-License-Identifier: Apache-2.0
#
# Compiler flags. The library is built for the baseline of its architecture; only files whose names end
# in _avx2.c, _avx512.c or _neon.c may use more, and they are called only after the processor was asked.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_C_FLAGS_RELEASE "-O3")
set(CMAKE_C_FLAGS_DEBUG "-O2 -g -fno-omit-frame-pointer")
# Instrumented code is slow whatever is done for it, and takes the compiler long: a report needs lines and no more.
if(WEFT_SANITIZE AND NOT WEFT_FUZZ)
    set(CMAKE_C_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
endif()

add_compile_definitions(_GNU_SOURCE)
add_compile_options(-Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wwrite-strings
    -Wvla)
# gcc's plain -Wshadow also counts a variable that has the name of a type or of a function.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wshadow=local)
else()
    add_compile_options(-Wshadow)
endif()
# What gcc warns of when it is to instrument is more often its own doing; the other builds see all that is ours.
if(WEFT_WERROR AND NOT WEFT_SANITIZE)
    add_compile_options(-Werror)
endif()
# Results must not depend on whether the target has fused multiply-add.
add_compile_options(-ffp-contract=off)

if(WEFT_SANITIZE)
    add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${WEFT_SANITIZE})
    # There are a hundred tests to link, each with all of the library.
    find_program(WEFT_LLD ld.lld)
    if(WEFT_LLD)
        add_link_options(-fuse-ld=lld)
    endif()
endif()
if(WEFT_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

set(WEFT_X86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(WEFT_X86 ON)
    add_compile_definitions(WEFT_X86=1)
endif()
set(WEFT_AVX2_FLAGS -mavx2 -mbmi -mbmi2 -mlzcnt -mpopcnt -maes -mfma -mf16c)
set(WEFT_AVX512_FLAGS ${WEFT_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512ifma -mavx512vbmi
    -mavx512vbmi2 -mavx512vpopcntdq -mavx512bitalg -mvaes -mvpclmulqdq -mgfni)

# Vectors are in the baseline of aarch64, AES is not. Big-endian ones run the portable code.
set(WEFT_ARM OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(WEFT_ARM ON)
    add_compile_definitions(WEFT_ARM=1)
endif()
set(WEFT_NEON_FLAGS -march=armv8-a+crypto)
