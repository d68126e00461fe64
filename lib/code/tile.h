/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.h: tiles of weights, sorted into classes by their exponents.
 *
 * A tile is a stretch of at most WEFT_TILE two-byte weights that stays in the first-level cache while it is
 * classified, ranked and searched. Pointers to weights have no alignment: a safetensors file may put them
 * anywhere.
 */
#ifndef WEFT_CODE_TILE_H
#define WEFT_CODE_TILE_H

#include "../base/cpu.h"

#include <stddef.h>
#include <stdint.h>

enum {
    WEFT_TILE = 4096,
    WEFT_TILE_BLOCKS = WEFT_TILE / 64,
    WEFT_CLASS_MAX = 8,
    WEFT_TILE_AHEAD = 3 * WEFT_TILE / 2,
    WEFT_KERNEL_SLACK = 64, /* entries that a kernel may write past the last one it counts */
};

/* Which weights of a tile belong to which class. Bit i of masks[c][b] stands for weight 64 b + i. */
typedef struct weft_tile {
    uint64_t masks[WEFT_CLASS_MAX][WEFT_TILE_BLOCKS];
    uint16_t before[WEFT_CLASS_MAX][WEFT_TILE_BLOCKS]; /* members of the class in earlier blocks */
    uint32_t counts[WEFT_CLASS_MAX];                   /* members in the tile */
    /* Where memory lies that is worked on next, or 0: `classify` asks for WEFT_TILE_AHEAD bytes of each on
     * its way, since its own work leaves the memory idle. Only so many requests can be under way at once,
     * so they go between its steps, and whoever works on the tile after it asks for the rest. */
    uintptr_t ahead[2];
} weft_tile;

typedef struct weft_tile_kernels {
    /* Sorts `count` weights (at most WEFT_TILE) into `classes` classes by exponent: the bits without the
     * sign, shifted right by `shift` (7 to 14). Class c holds those from cuts[c] up to, not including,
     * cuts[c + 1]; cuts[0] is 0. */
    void (*classify)(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                     unsigned classes, weft_tile *tile);
    /* The tile index of the member of class `class_index` with rank ranks[i] - first, for i from 0 up to
     * `count` or the first rank outside of the tile. Ranks ascend. Returns how many it found. */
    size_t (*select)(const weft_tile *tile, unsigned class_index, const uint32_t *ranks, size_t count,
                     uint32_t first, uint16_t *indices);
} weft_tile_kernels;

/* How many members of class `c` are before index `index` of the tile. */
static inline uint32_t weft_tile_rank_of(const weft_tile *tile, unsigned c, uint32_t index) {
    uint64_t below = tile->masks[c][index / 64] & (((uint64_t)1 << (index % 64)) - 1);
    return tile->before[c][index / 64] + (uint32_t)__builtin_popcountll(below);
}

/* Asks for one of `parts` parts of the `bytes` bytes at an address, which need not be anybody's. Work on a
 * tile leaves the memory idle, so the next tile is asked for meanwhile, and in parts, since only so many
 * requests can be under way at once. */
static inline void weft_prefetch_part(uintptr_t address, size_t bytes, unsigned part, unsigned parts) {
    size_t lines = bytes / 64;
    for (size_t i = lines * part / parts; i < lines * (part + 1) / parts; i++) {
        weft_cpu_fetch(address + 64 * i);
    }
}

/* Takes weights out of the classes of a classified tile: those at `count` indices, each given once. */
void weft_tile_leave_out(weft_tile *tile, unsigned classes, const uint16_t *indices, size_t count);

const weft_tile_kernels *weft_tile_kernels_for(weft_cpu level);

extern const weft_tile_kernels weft_tile_kernels_portable;
#ifdef WEFT_X86
extern const weft_tile_kernels weft_tile_kernels_avx2;
extern const weft_tile_kernels weft_tile_kernels_avx512;
#endif
#ifdef WEFT_ARM
extern const weft_tile_kernels weft_tile_kernels_neon;
#endif

#endif
