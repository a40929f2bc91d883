// Stores vectors of heads in KV pages. The order is page, layer, keys then values, head, position,
// as in device::KvLayout.
#pragma once
#include "arguments.h"
#include "step.h"

#define KV_F32 0
#define KV_F16 1
#define KV_Q8_0 2

// Bytes of one head's vector.
static inline uint vector_bytes(uint kind, uint head_dim) {
    if (kind == KV_F32) return head_dim * 4;
    if (kind == KV_F16) return head_dim * 2;
    return head_dim / 32 * 34;
}

// Entry of a page table: the address of the page, in any buffer. The host writes it.
struct Page {
    device uchar *bytes;
};

// Offset of a head's vector in its page, in bytes. Heads of values follow those of keys.
static inline uint vector_offset(uint kind, constant PagesArguments &pages, uint head, uint position) {
    const uint vector = head * pages.page_len + position % pages.page_len;
    return pages.layer_offset + vector * vector_bytes(kind, pages.head_dim);
}

// Stores one value of a vector. Every lane of a SIMD-group must call it, with neighbouring columns;
// `inside` is false for lanes without a column. Q8_0: a block is the 32 columns of one call, and
// `d` is their largest magnitude / 127, rounded to half.
static inline void store_column(uint kind, device uchar *vector, uint column, uint lane, bool inside, float value) {
    if (kind == KV_F32) {
        if (inside) ((device float *) vector)[column] = value;
    } else if (kind == KV_F16) {
        if (inside) ((device half *) vector)[column] = half(value);
    } else {
        const float largest = simd_max(fabs(value));
        const half d = half(largest / 127.0f);
        const float inverse = float(d) > 0.0f ? 1.0f / float(d) : 0.0f;
        device uchar *block = vector + column / 32 * 34;
        if (lane == 0) *(device half *) block = d;
        ((device char *) (block + 2))[lane] = char(clamp(rint(value * inverse), -127.0f, 127.0f));
    }
}
