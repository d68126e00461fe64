/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.c: asks the processor once what it runs. A level needs every extension that its files are compiled
 * with (cmake/flags.cmake), because the compiler may use any of them, and an operating system that saves
 * the wide registers.
 */
#include "cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef WEFT_X86
#include <cpuid.h>
#endif
#ifdef WEFT_ARM
#include <sys/auxv.h>
#endif

static pthread_once_t decided = PTHREAD_ONCE_INIT;
static weft_cpu best_level;
static weft_cpu used_level;

static const char *const level_names[] = {
    [WEFT_CPU_PORTABLE] = "portable",
#ifdef WEFT_ARM
    [WEFT_CPU_NEON] = "neon",
#else
    [WEFT_CPU_AVX2] = "avx2",
    [WEFT_CPU_AVX512] = "avx512",
#endif
};

#ifdef WEFT_X86

/* The answers of CPUID and XGETBV that the levels depend on. */
typedef struct features {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint32_t leaf7_ecx;
    uint32_t extended_ecx;
    uint32_t saved_registers;
} features;

enum {
    LEAF1_AVX2 = bit_PCLMUL | bit_FMA | bit_POPCNT | bit_AES | bit_OSXSAVE | bit_AVX | bit_F16C,
    LEAF7_EBX_AVX2 = bit_BMI | bit_AVX2 | bit_BMI2,
    EXTENDED_AVX2 = bit_LZCNT,
    SAVED_AVX2 = 0x06,
    LEAF7_ECX_AVX512 = bit_AVX512VBMI | bit_AVX512VBMI2 | bit_GFNI | bit_VAES | bit_VPCLMULQDQ |
                       bit_AVX512BITALG | bit_AVX512VPOPCNTDQ,
    SAVED_AVX512 = 0xe6,
};
static const uint32_t LEAF7_EBX_AVX512 =
    (uint32_t)bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL | bit_AVX512IFMA;

static uint32_t saved_registers(void) {
    uint32_t low;
    uint32_t high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static features ask_processor(void) {
    features answer = {0};
    uint32_t eax = 0;
    uint32_t ebx = 0;
    uint32_t ecx = 0;
    uint32_t edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
        answer.leaf1_ecx = ecx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
        answer.leaf7_ebx = ebx;
        answer.leaf7_ecx = ecx;
    }
    if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) {
        answer.extended_ecx = ecx;
    }
    if ((answer.leaf1_ecx & bit_OSXSAVE) != 0) {
        answer.saved_registers = saved_registers();
    }
    return answer;
}

static bool has_all(uint32_t bits, uint32_t wanted) {
    return (bits & wanted) == wanted;
}

static weft_cpu find_best(void) {
    features has = ask_processor();
    bool avx2 = has_all(has.leaf1_ecx, LEAF1_AVX2) && has_all(has.leaf7_ebx, LEAF7_EBX_AVX2) &&
                has_all(has.extended_ecx, EXTENDED_AVX2) && has_all(has.saved_registers, SAVED_AVX2);
    bool avx512 = avx2 && has_all(has.leaf7_ebx, LEAF7_EBX_AVX512) &&
                  has_all(has.leaf7_ecx, LEAF7_ECX_AVX512) && has_all(has.saved_registers, SAVED_AVX512);
    if (avx512) {
        return WEFT_CPU_AVX512;
    }
    return avx2 ? WEFT_CPU_AVX2 : WEFT_CPU_PORTABLE;
}

#elif defined WEFT_ARM

/* The compiler knows AES, PMULL and SHA as one extension. */
static weft_cpu find_best(void) {
    enum { NEEDED = HWCAP_ASIMD | HWCAP_AES | HWCAP_PMULL | HWCAP_SHA1 | HWCAP_SHA2 };
    return (getauxval(AT_HWCAP) & NEEDED) == NEEDED ? WEFT_CPU_NEON : WEFT_CPU_PORTABLE;
}

#else

static weft_cpu find_best(void) {
    return WEFT_CPU_PORTABLE;
}

#endif

static void decide(void) {
    best_level = find_best();
    used_level = best_level;
    const char *wanted = getenv("WEFT_CPU");
    for (int level = WEFT_CPU_PORTABLE; wanted != NULL && level <= (int)best_level; level++) {
        if (strcmp(wanted, level_names[level]) == 0) {
            used_level = (weft_cpu)level;
        }
    }
}

weft_cpu weft_cpu_level(void) {
    pthread_once(&decided, decide);
    return used_level;
}

weft_cpu weft_cpu_best(void) {
    pthread_once(&decided, decide);
    return best_level;
}

const char *weft_cpu_name(void) {
    return level_names[weft_cpu_level()];
}
