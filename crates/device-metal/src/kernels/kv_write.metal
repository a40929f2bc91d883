// Stores keys and values of the step's rows in the KV pages of a layer.
//
// A SIMD-group stores one head of one row: heads 0 to n_kv_heads - 1 are keys, the next n_kv_heads
// are values. If values are keys, there are no heads of values.
//
// Buffers: 0 KvWriteArguments, 1 step, 2 k (tokens, n_kv_heads * head_dim), 3 v (like k), 4
// positions (tokens), 5 row_spans (tokens), 6 page_tables. Constants: FC_KV_TYPE. Grid: (2 *
// n_kv_heads, or n_kv_heads if values are keys; tokens) threadgroups of 32. Q8_0 needs head_dim to
// be a multiple of 32. Moves 4 bytes an element and the stored bytes.
#include <metal_stdlib>
using namespace metal;
#include "constants.h"
#include "kv_store.h"

constant uint KIND [[function_constant(FC_KV_TYPE)]];

kernel void kv_write(
        constant KvWriteArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *k [[buffer(2)]],
        device const float *v [[buffer(3)]],
        device const uint *positions [[buffer(4)]],
        device const uint *row_spans [[buffer(5)]],
        device const Page *page_tables [[buffer(6)]],
        uint2 place [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    const uint row = place.y;
    if (row >= step->n_rows) return;
    const uint n_heads = args.pages.n_kv_heads;
    const uint head_dim = args.pages.head_dim;
    const uint position = positions[row];
    const uint table = page_table_of(*step, row_spans[row], args.pages.group);
    device uchar *page = page_tables[table + position / args.pages.page_len].bytes;
    device uchar *vector = page + vector_offset(KIND, args.pages, place.x, position);
    const bool is_value = place.x >= n_heads;
    device const float *from = (is_value ? v : k) + (row * n_heads + place.x % n_heads) * head_dim;
    for (uint first = 0; first < head_dim; first += 32) {
        const uint column = first + lane;
        const bool inside = column < head_dim;
        store_column(KIND, vector, column, lane, inside, inside ? from[column] : 0.0f);
    }
}
