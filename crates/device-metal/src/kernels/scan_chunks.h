// The scans of scan.h by 16 positions at a time, as matrix products. For a head, S is the state
// before the chunk, L[t] the sum of rate * step up to position t of the chunk, and n the number of
// positions in the chunk:
//
//     A[t][s] = scale * exp(L[t] - L[s]) q[t].k[s]        for s <= t
//     T[t][s] = -beta[t] exp(L[t] - L[s]) k[t].k[s]       for s < t
//     U       solves (1 - T) U = beta * (V - exp(L) K S) in the delta rule;
//             U = step * X in the selective scan
//     out     = scale * exp(L) Q S + A U + skip * X
//     S       = exp(L[n-1]) S + K^T (exp(L[n-1] - L) U)
//
// (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024; Dao and Gu,
// "Transformers are SSMs", 2024.) No exponent is positive, so nothing overflows. All operands are
// floats.
//
// The host contract is that of scan.h. A SIMD-group keeps eight columns of S as matrices in
// registers, from the first position of a span to the last, with the same columns of U and of the
// output. All columns share K, Q and the 8 x 8 blocks of A and T, in threadgroup memory. At most
// 128 columns of Q are staged at a time, and each block is computed by one SIMD-group. The system
// is solved by blocks: for a diagonal block t of T, the inverse of 1 - t is
// (1 + t^4)(1 + t^2)(1 + t), because t^8 = 0.
//
// Sums: rows of S ascending by 8, then positions ascending by 8; within 8 in the order of the
// matrix unit. Logarithms of decays in the order of simd_prefix_inclusive_sum.
//
// Spans of fewer than args.least_chunk rows are computed position by position, because a chunk with
// few positions costs as much as a full one.
#pragma once
#include "scan.h"

// Positions of a chunk.
#define SCAN_CHUNK 16
// Maximum number of SIMD-groups of a threadgroup.
#define SCAN_CHUNK_SIMDGROUPS 8

// Floats between the starts of two rows of K, and of two rows of Q, of which min(16 N, 128) columns
// are staged at a time. The eight rows of a matrix are in different banks.
#define SCAN_KEY_STRIDE(N) (16 * (N) + 4)
#define SCAN_QUERY_STRIDE(N) (16 * ((N) < 8 ? (N) : 8) + 4)
// Groups of eight columns of Q that are staged at a time.
#define SCAN_QUERY_EIGHTS(N) ((N) < 8 ? 2 * (N) : 16)

// Indices of the blocks of T and A in threadgroup memory, 64 floats each. The selective scan uses
// only those of A.
#define SCAN_T 0 // (0, 0), (1, 1), (1, 0)
#define SCAN_A 3 // (0, 0), (1, 1), (1, 0)
#define SCAN_BLOCKS 6

// Offsets of the four numbers of each position.
#define SCAN_LOG 0    // L
#define SCAN_DECAY 16 // exp(L)
#define SCAN_LEFT 32  // exp(L[n-1] - L)
#define SCAN_SIZE 48  // beta, or step
#define SCAN_NUMBERS 64

// Threadgroup memory of a kernel, for up to 16 N rows.
#define SCAN_CHUNK_MEMORY(N)                                                                        \
    threadgroup float4 key_memory[SCAN_CHUNK * SCAN_KEY_STRIDE(N) / 4];                             \
    threadgroup float4 query_memory[SCAN_CHUNK * SCAN_QUERY_STRIDE(N) / 4];                         \
    threadgroup float block_memory[SCAN_BLOCKS * 64];                                               \
    threadgroup float number_memory[SCAN_NUMBERS];                                                  \
    threadgroup float strip_memory[SCAN_CHUNK_SIMDGROUPS * SCAN_CHUNK * SCAN_COLUMNS]
// Initialiser of a ScanMemory.
#define SCAN_CHUNK_PARTS                                                                            \
    {(threadgroup float *) key_memory, (threadgroup float *) query_memory, block_memory, number_memory, \
     strip_memory + sg * (SCAN_CHUNK * SCAN_COLUMNS)}

struct ScanMemory {
    threadgroup float *keys;    // (SCAN_CHUNK, SCAN_KEY_STRIDE)
    threadgroup float *queries; // (SCAN_CHUNK, SCAN_QUERY_STRIDE)
    threadgroup float *blocks;  // (SCAN_BLOCKS, 8, 8)
    threadgroup float *numbers; // (4, SCAN_CHUNK)
    threadgroup float *strip;   // (SCAN_CHUNK, SCAN_COLUMNS), the SIMD-group's own
};

struct ScanThread {
    ushort sg;
    ushort n_sg;
    ushort lane;
};

// Head and columns of a SIMD-group.
struct ScanHead {
    uint head;
    uint shared;       // head of keys and queries
    uint first_column; // the first of SCAN_COLUMNS
    bool has_columns;  // false: the SIMD-group only helps with what all columns share
    uint eights;       // groups of eight rows of the state
    ulong apart;       // floats between the keys (or queries) of two positions
    float rate;
    float skip;
};

// 16 positions of a span, or fewer.
struct ScanChunk {
    uint first; // row of x of the first position
    uint n;     // positions
};

// Stages columns first .. first + 4 * fours of n vectors, whose starts are `apart` floats apart.
// Columns after `cols` and vectors after n are 0.
static inline void scan_stage(threadgroup float *to, ushort stride, device const float *from, ulong apart, uint n, uint first,
                              uint fours, uint cols, uint tid, uint n_threads) {
    for (uint i = tid; i < SCAN_CHUNK * fours; i += n_threads) {
        const uint t = i / fours, column = first + i % fours * 4;
        float4 v = float4(0.0f);
        if (t < n) v = scan_four(from + t * apart, column, cols);
        *(threadgroup float4 *) (to + t * stride + column - first) = v;
    }
}

// Writes the dot products of eight rows of `a` and eight of `b`, of 8 * eights columns, to a block.
// With `more` they are added to it.
static inline void scan_block(threadgroup float *block, threadgroup const float *a, ushort a_stride, threadgroup const float *b,
                              ushort b_stride, uint eights, bool more) {
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.0f);
    if (more) simdgroup_load(sum, block, 8, ulong2(0, 0), false);
    for (uint i = 0; i < eights; i++) {
        simdgroup_float8x8 ma, mb;
        simdgroup_load(ma, a + 8 * i, a_stride, ulong2(0, 0), false);
        simdgroup_load(mb, b + 8 * i, b_stride, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(sum, ma, mb, sum);
    }
    simdgroup_store(sum, block, 8, ulong2(0, 0), false);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Converts dot products of positions t_0 + 0..8 and s_0 + 0..8 to elements of T (`of_t`) or of A.
static inline void scan_weigh(threadgroup float *block, threadgroup const float *numbers, uint t_0, uint s_0, bool of_t, float scale,
                              ushort lane) {
    for (ushort e = lane; e < 64; e += 32) {
        const uint t = t_0 + e / 8, s = s_0 + e % 8;
        const float factor = of_t ? -numbers[SCAN_SIZE + t] : scale;
        float value = 0.0f;
        if (s < t || (s == t && !of_t)) value = factor * precise::exp(numbers[SCAN_LOG + t] - numbers[SCAN_LOG + s]) * block[e];
        block[e] = value;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Replaces a diagonal block t of T by the inverse of 1 - t.
static inline void scan_invert(threadgroup float *block) {
    const simdgroup_float8x8 one = simdgroup_float8x8(1.0f);
    simdgroup_float8x8 power, sum;
    simdgroup_load(power, block, 8, ulong2(0, 0), false);
    simdgroup_multiply_accumulate(sum, power, one, one);
    simdgroup_multiply(power, power, power);
    simdgroup_multiply_accumulate(sum, power, sum, sum);
    simdgroup_multiply(power, power, power);
    simdgroup_multiply_accumulate(sum, power, sum, sum);
    simdgroup_store(sum, block, 8, ulong2(0, 0), false);
}

// Loads and stores the two matrices of a SIMD-group's strip.
static inline void scan_get(thread simdgroup_float8x8 *m, threadgroup const float *strip) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (ushort h = 0; h < 2; h++) simdgroup_load(m[h], strip + 64 * h, 8, ulong2(0, 0), false);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
static inline void scan_put(thread const simdgroup_float8x8 *m, threadgroup float *strip) {
    #pragma clang loop unroll(full)
    for (ushort h = 0; h < 2; h++) simdgroup_store(m[h], strip + 64 * h, 8, ulong2(0, 0), false);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

static inline ScanHead scan_head(constant ScanArguments &args, ScanBuffers b, ScanLane mine, uint shared, float skip, ushort lane) {
    ScanHead h;
    h.head = mine.head;
    h.shared = shared;
    h.first_column = mine.column - lane % SCAN_COLUMNS;
    h.has_columns = h.first_column < args.cols;
    h.eights = (args.rows + 7) / 8;
    h.apart = ulong(args.n_shared) * args.rows;
    h.rate = b.rates[mine.head];
    h.skip = skip;
    return h;
}

// Loads the SIMD-group's columns of a state; STATE_NONE is 0.
template<ushort N>
static inline void scan_load_matrices(thread simdgroup_float8x8 *s, constant ScanArguments &args, ScanBuffers b, ScanHead h,
                                      ScanMemory m, uint state, ushort lane) {
    device const float *from = b.states + (state == STATE_NONE ? 0 : ulong(state) * args.state_stride)
                               + ulong(h.head) * args.rows * args.cols;
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < 2 * N; i++) {
        s[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        if (h.has_columns && i < h.eights && state != STATE_NONE) {
            for (ushort e = lane; e < 64; e += 32) {
                const uint row = 8 * i + e / 8, column = h.first_column + e % 8;
                float value = 0.0f;
                if (row < args.rows && column < args.cols) value = from[row * args.cols + column];
                m.strip[e] = value;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_load(s[i], m.strip, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}

template<ushort N>
static inline void scan_store_matrices(thread const simdgroup_float8x8 *s, constant ScanArguments &args, ScanBuffers b, ScanHead h,
                                       ScanMemory m, uint state, ushort lane) {
    if (!h.has_columns) return;
    device float *to = b.states + ulong(state) * args.state_stride + ulong(h.head) * args.rows * args.cols;
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < 2 * N; i++) {
        if (i < h.eights) {
            simdgroup_store(s[i], m.strip, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (ushort e = lane; e < 64; e += 32) {
                const uint row = 8 * i + e / 8, column = h.first_column + e % 8;
                if (row < args.rows && column < args.cols) to[row * args.cols + column] = m.strip[e];
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}

// Writes the four numbers of each position. One SIMD-group calls it.
template<bool DELTA>
static inline void scan_write_numbers(constant ScanArguments &args, ScanBuffers b, ScanHead h, ScanMemory m, ScanChunk c,
                                      ushort lane) {
    // Positions after the last change nothing: their step, beta and keys are 0.
    float size = 0.0f, beta = 0.0f;
    if (lane < c.n) {
        const ulong at = ulong(c.first + lane) * args.n_heads + h.head;
        size = b.steps[at];
        if (DELTA) beta = b.other[at];
    }
    // Clamp: exp(-110) is 0 in f32, and -infinity would make the differences of later sums NaN.
    const float log = simd_prefix_inclusive_sum(max(h.rate * size, -110.0f));
    const float last = simd_broadcast(log, ushort(SCAN_CHUNK - 1));
    if (lane < SCAN_CHUNK) {
        m.numbers[SCAN_LOG + lane] = log;
        m.numbers[SCAN_DECAY + lane] = precise::exp(log);
        m.numbers[SCAN_LEFT + lane] = precise::exp(last - log);
        m.numbers[SCAN_SIZE + lane] = DELTA ? beta : size;
    }
}

// Adds the products with `here` eights of rows of the state, from `done` on: K S to `known`, Q S to
// `out`.
template<ushort N, bool DELTA>
static inline void scan_multiply_state(thread simdgroup_float8x8 *known, thread simdgroup_float8x8 *out,
                                       thread const simdgroup_float8x8 *s, ScanHead h, ScanMemory m, ushort done, uint here) {
    const ushort key_stride = SCAN_KEY_STRIDE(N), query_stride = SCAN_QUERY_STRIDE(N);
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < SCAN_QUERY_EIGHTS(N); i++) {
        if (h.has_columns && i < here) {
            simdgroup_float8x8 matrix;
            #pragma clang loop unroll(full)
            for (ushort half_chunk = 0; half_chunk < 2; half_chunk++) {
                if (DELTA) {
                    simdgroup_load(matrix, m.keys + 8 * half_chunk * key_stride + 8 * (done + i), key_stride, ulong2(0, 0), false);
                    simdgroup_multiply_accumulate(known[half_chunk], matrix, s[done + i], known[half_chunk]);
                }
                simdgroup_load(matrix, m.queries + 8 * half_chunk * query_stride + 8 * i, query_stride, ulong2(0, 0), false);
                simdgroup_multiply_accumulate(out[half_chunk], matrix, s[done + i], out[half_chunk]);
            }
        }
    }
}

// Adds the products of `here` eights of columns, from `done` on, to the SIMD-group's blocks of A,
// and completes a block with its last columns. Blocks of T are completed at once, in the first
// call.
template<ushort N, bool DELTA>
static inline void scan_write_blocks(constant ScanArguments &args, ScanHead h, ScanMemory m, ScanThread at, ushort done, uint here) {
    const ushort key_stride = SCAN_KEY_STRIDE(N), query_stride = SCAN_QUERY_STRIDE(N);
    // Blocks (0, 0), (1, 1), (1, 0) of T, then of A.
    for (ushort block = DELTA ? at.sg : SCAN_A + at.sg; block < SCAN_BLOCKS; block += at.n_sg) {
        const bool of_t = block < SCAN_A;
        const ushort t_0 = block % 3 > 0 ? 8 : 0, s_0 = block % 3 == 1 ? 8 : 0;
        threadgroup float *to = m.blocks + 64 * block;
        if (of_t) {
            if (done > 0) continue;
            scan_block(to, m.keys + t_0 * key_stride, key_stride, m.keys + s_0 * key_stride, key_stride, h.eights, false);
        } else {
            scan_block(to, m.queries + t_0 * query_stride, query_stride, m.keys + s_0 * key_stride + 8 * done, key_stride, here,
                       done > 0);
            if (done + here < h.eights) continue;
        }
        scan_weigh(to, m.numbers, t_0, s_0, of_t, args.scale, at.lane);
        if (of_t && t_0 == s_0) scan_invert(to);
    }
}

// Computes the right side of the system from K S (`known`), to `u`, and the output without A U from
// Q S (`out`), in place.
template<bool DELTA>
static inline void scan_right_sides(thread simdgroup_float8x8 *u, thread simdgroup_float8x8 *out, thread const simdgroup_float8x8 *known,
                                    constant ScanArguments &args, ScanBuffers b, ScanHead h, ScanMemory m, ScanChunk c, ushort lane) {
    float values[4];
    if (DELTA) scan_put(known, m.strip);
    #pragma clang loop unroll(full)
    for (ushort e = 0; e < 4; e++) {
        const ushort at = lane + 32 * e, t = at / 8;
        const uint column = h.first_column + at % 8;
        values[e] = 0.0f;
        if (t < c.n && column < args.cols) values[e] = b.x[(ulong(c.first + t) * args.n_heads + h.head) * args.cols + column];
        float in = values[e];
        if (DELTA) in -= m.numbers[SCAN_DECAY + t] * m.strip[at];
        m.strip[at] = m.numbers[SCAN_SIZE + t] * in;
    }
    scan_get(u, m.strip);
    scan_put(out, m.strip);
    #pragma clang loop unroll(full)
    for (ushort e = 0; e < 4; e++) {
        const ushort at = lane + 32 * e, t = at / 8;
        m.strip[at] = fma(args.scale * m.numbers[SCAN_DECAY + t], m.strip[at], h.skip * values[e]);
    }
    scan_get(out, m.strip);
}

// Solves (1 - T) U = `u` in place (with DELTA), and adds A U to `out`.
template<bool DELTA>
static inline void scan_solve(thread simdgroup_float8x8 *u, thread simdgroup_float8x8 *out, ScanMemory m) {
    simdgroup_float8x8 matrix;
    if (DELTA) {
        threadgroup const float *t = m.blocks + 64 * SCAN_T;
        simdgroup_load(matrix, t, 8, ulong2(0, 0), false);
        simdgroup_multiply(u[0], matrix, u[0]);
        simdgroup_load(matrix, t + 128, 8, ulong2(0, 0), false);
        simdgroup_multiply_accumulate(u[1], matrix, u[0], u[1]);
        simdgroup_load(matrix, t + 64, 8, ulong2(0, 0), false);
        simdgroup_multiply(u[1], matrix, u[1]);
    }
    threadgroup const float *a = m.blocks + 64 * SCAN_A;
    simdgroup_load(matrix, a, 8, ulong2(0, 0), false);
    simdgroup_multiply_accumulate(out[0], matrix, u[0], out[0]);
    simdgroup_load(matrix, a + 128, 8, ulong2(0, 0), false);
    simdgroup_multiply_accumulate(out[1], matrix, u[0], out[1]);
    simdgroup_load(matrix, a + 64, 8, ulong2(0, 0), false);
    simdgroup_multiply_accumulate(out[1], matrix, u[1], out[1]);
}

static inline void scan_write_out(thread const simdgroup_float8x8 *out, constant ScanArguments &args, ScanBuffers b, ScanHead h,
                                  ScanMemory m, ScanChunk c, ushort lane) {
    scan_put(out, m.strip);
    #pragma clang loop unroll(full)
    for (ushort e = 0; e < 4; e++) {
        const ushort at = lane + 32 * e, t = at / 8;
        const uint column = h.first_column + at % 8;
        if (t < c.n && column < args.cols) b.out[(ulong(c.first + t) * args.n_heads + h.head) * args.cols + column] = m.strip[at];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Replaces the state before the chunk by the state after it.
template<ushort N>
static inline void scan_advance(thread simdgroup_float8x8 *s, thread simdgroup_float8x8 *u, ScanHead h, ScanMemory m, ushort lane) {
    const ushort key_stride = SCAN_KEY_STRIDE(N);
    scan_put(u, m.strip);
    #pragma clang loop unroll(full)
    for (ushort e = 0; e < 4; e++) {
        const ushort at = lane + 32 * e;
        m.strip[at] *= m.numbers[SCAN_LEFT + at / 8];
    }
    scan_get(u, m.strip);
    const simdgroup_float8x8 decay = simdgroup_float8x8(m.numbers[SCAN_DECAY + SCAN_CHUNK - 1]);
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < 2 * N; i++) {
        if (i < h.eights) {
            simdgroup_multiply(s[i], decay, s[i]);
            #pragma clang loop unroll(full)
            for (ushort half_chunk = 0; half_chunk < 2; half_chunk++) {
                simdgroup_float8x8 matrix;
                simdgroup_load(matrix, m.keys + 8 * half_chunk * key_stride + 8 * i, key_stride, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(s[i], matrix, u[half_chunk], s[i]);
            }
        }
    }
}

// Computes eight columns of one head for a span. DELTA: the delta rule, otherwise the selective
// scan.
template<ushort N, bool DELTA>
static inline void scan_chunks(constant ScanArguments &args, ScanBuffers b, device const Span &span, ScanHead h, ScanMemory m,
                               ScanThread at) {
    const uint tid = 32 * at.sg + at.lane, n_threads = 32 * at.n_sg;
    simdgroup_float8x8 s[2 * N];
    scan_load_matrices<N>(s, args, b, h, m, span.state_from, at.lane);
    const uint end = span.first_row + span.n_rows;
    for (uint first = span.first_row; first < end; first += SCAN_CHUNK) {
        const ScanChunk c = {first, min(end - first, uint(SCAN_CHUNK))};
        device const float *first_key = b.keys + first * h.apart + h.shared * args.rows;
        device const float *first_query = b.queries + first * h.apart + h.shared * args.rows;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (at.sg == 0) scan_write_numbers<DELTA>(args, b, h, m, c, at.lane);
        scan_stage(m.keys, SCAN_KEY_STRIDE(N), first_key, h.apart, c.n, 0, 2 * h.eights, args.rows, tid, n_threads);

        simdgroup_float8x8 known[2], out[2]; // K S, Q S
        #pragma clang loop unroll(full)
        for (ushort half_chunk = 0; half_chunk < 2; half_chunk++) {
            known[half_chunk] = make_filled_simdgroup_matrix<float, 8>(0.0f);
            out[half_chunk] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        }
        #pragma clang loop unroll(full)
        for (ushort done = 0; done < 2 * N; done += SCAN_QUERY_EIGHTS(N)) {
            if (done < h.eights) {
                const uint here = min(h.eights - done, uint(SCAN_QUERY_EIGHTS(N)));
                if (done > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
                scan_stage(m.queries, SCAN_QUERY_STRIDE(N), first_query, h.apart, c.n, 8 * done, 2 * here, args.rows, tid, n_threads);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                scan_multiply_state<N, DELTA>(known, out, s, h, m, done, here);
                scan_write_blocks<N, DELTA>(args, h, m, at, done, here);
            }
        }

        simdgroup_float8x8 u[2];
        if (h.has_columns) scan_right_sides<DELTA>(u, out, known, args, b, h, m, c, at.lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (!h.has_columns) continue;
        scan_solve<DELTA>(u, out, m);
        scan_write_out(out, args, b, h, m, c, at.lane);
        scan_advance<N>(s, u, h, m, at.lane);
    }
    scan_store_matrices<N>(s, args, b, h, m, span.state_to, at.lane);
}
