// Bytes of a head's vector of keys or values in a page, by the type of pages (pages.cuh has their
// layouts).
#pragma once

__device__ constexpr unsigned vector_bytes_f16(unsigned head_dim) { return 2 * head_dim; }
__device__ constexpr unsigned vector_bytes_q8_0(unsigned head_dim) { return head_dim / 32 * 34; }
// One byte for each column, padded to whole words, then the scale.
__device__ constexpr unsigned vector_bytes_fp8(unsigned head_dim) { return ((head_dim + 3) & ~3u) + 4; }
