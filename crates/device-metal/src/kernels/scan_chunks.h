// The scans of scan.h by 16 positions at a time, as matrix products. For a head, S the state before
// the chunk, L[t] the sum of rate * step up to t in the chunk, and n its positions:
//
//     A[t][s] = scale * exp(L[t] - L[s]) q[t].k[s] for s <= t        T[t][s] = -beta[t] exp(L[t] - L[s]) k[t].k[s] for s < t
//     U       solves (1 - T) U = beta * (V - exp(L) K S) in the delta rule; step * X in the selective scan
//     out     = scale * exp(L) Q S + A U + skip * X
//     S       = exp(L[n-1]) S + K^T (exp(L[n-1] - L) U)
//
// (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024; Dao and Gu,
// "Transformers are SSMs", 2024.) No exponent is positive, so nothing overflows. All operands are
// floats.
//
// The contract is scan.h's. A SIMD-group has eight columns of S, as matrices in its registers, from
// the first position of a span to the last, and the same columns of U and of the output. What
// columns share goes through threadgroup memory: K, Q by at most 128 columns, and 8 x 8 blocks of A
// and T, each computed by one SIMD-group. The system is solved by blocks: for a block t on the
// diagonal of T, the inverse of 1 - t is (1 + t^4)(1 + t^2)(1 + t), since t^8 = 0.
//
// Sums: rows of S ascending by 8, then positions ascending by 8; within 8 as the matrix unit does
// it. Logarithms of decays in the order of simd_prefix_inclusive_sum.
//
// Spans of fewer than args.least_chunk rows are computed position by position, as a chunk costs the
// same however full it is.
#pragma once
#include "scan.h"

// Positions of a chunk.
#define SCAN_CHUNK 16
// SIMD-groups of a threadgroup, at most.
#define SCAN_CHUNK_SIMDGROUPS 8

// Floats from one row of K to the next, and of Q, of which min(16 N, 128) columns are there at
// once. The eight rows of a matrix lie in different banks.
#define SCAN_KEY_STRIDE(N) (16 * (N) + 4)
#define SCAN_QUERY_STRIDE(N) (16 * ((N) < 8 ? (N) : 8) + 4)

// Blocks of T and A in threadgroup memory, 64 floats each. The scan has only those of A.
#define SCAN_T 0 // (0, 0), (1, 1), (1, 0)
#define SCAN_A 3 // (0, 0), (1, 1), (1, 0)
#define SCAN_BLOCKS 6

// Of each position.
#define SCAN_LOG 0    // L
#define SCAN_DECAY 16 // exp(L)
#define SCAN_LEFT 32  // exp(L[n-1] - L)
#define SCAN_SIZE 48  // beta, or step
#define SCAN_NUMBERS 64

// A kernel's threadgroup memory, for up to 16 N rows.
#define SCAN_CHUNK_MEMORY(N)                                                                        \
    threadgroup float4 key_memory[SCAN_CHUNK * SCAN_KEY_STRIDE(N) / 4];                             \
    threadgroup float4 query_memory[SCAN_CHUNK * SCAN_QUERY_STRIDE(N) / 4];                         \
    threadgroup float block_memory[SCAN_BLOCKS * 64];                                               \
    threadgroup float number_memory[SCAN_NUMBERS];                                                  \
    threadgroup float strip_memory[SCAN_CHUNK_SIMDGROUPS * SCAN_CHUNK * SCAN_COLUMNS]
#define SCAN_CHUNK_PARTS                                                                            \
    (threadgroup float *) key_memory, (threadgroup float *) query_memory, block_memory, number_memory, \
        strip_memory + sg * (SCAN_CHUNK * SCAN_COLUMNS)

// Columns first .. first + 4 fours of n vectors that lie `apart` floats from each other, zeros
// after the end of each and of all.
static inline void scan_stage(threadgroup float *to, ushort stride, device const float *from, ulong apart, uint n, uint first,
                              uint fours, uint cols, uint tid, uint n_threads) {
    for (uint i = tid; i < SCAN_CHUNK * fours; i += n_threads) {
        const uint t = i / fours, column = first + i % fours * 4;
        float4 v = float4(0.0f);
        if (t < n) v = scan_four(from + t * apart, column, cols);
        *(threadgroup float4 *) (to + t * stride + column - first) = v;
    }
}

// Eight rows of `a` times eight of `b`, so many eights of columns, into a block, or with `more`
// added to it.
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

// Dot products of positions t_0 + 0..8 and s_0 + 0..8 become elements of T, or of A.
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

// A block t of the diagonal of T becomes the inverse of 1 - t.
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

// The 16 by 8 numbers of a SIMD-group's strip.
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

// A span of one head, eight columns of it. DELTA: the delta rule.
template<ushort N, bool DELTA>
static inline void scan_chunks(constant ScanArguments &args, ScanBuffers b, device const Span &span, ScanLane mine, uint shared,
                               float skip, threadgroup float *keys, threadgroup float *queries, threadgroup float *blocks,
                               threadgroup float *numbers, threadgroup float *strip, ushort sg, ushort n_sg, ushort lane) {
    const ushort key_stride = SCAN_KEY_STRIDE(N), query_stride = SCAN_QUERY_STRIDE(N);
    const ushort piece_eights = N < 8 ? 2 * N : 16; // of Q
    const uint tid = 32 * sg + lane, n_threads = 32 * n_sg;
    const uint eights = (args.rows + 7) / 8;
    // Those without columns help with what all share.
    const uint first_column = mine.column - lane % SCAN_COLUMNS;
    const bool has_columns = first_column < args.cols;
    const ulong apart = ulong(args.n_shared) * args.rows;
    const float rate = b.rates[mine.head];

    simdgroup_float8x8 s[2 * N];
    const ulong head_place = ulong(mine.head) * args.rows * args.cols;
    device const float *state_from = b.states + (span.state_from == STATE_NONE ? 0 : ulong(span.state_from) * args.state_stride) + head_place;
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < 2 * N; i++) {
        s[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        if (has_columns && i < eights && span.state_from != STATE_NONE) {
            for (ushort e = lane; e < 64; e += 32) {
                const uint row = 8 * i + e / 8, column = first_column + e % 8;
                float value = 0.0f;
                if (row < args.rows && column < args.cols) value = state_from[row * args.cols + column];
                strip[e] = value;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_load(s[i], strip, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }

    const uint end = span.first_row + span.n_rows;
    for (uint first = span.first_row; first < end; first += SCAN_CHUNK) {
        const uint n = min(end - first, uint(SCAN_CHUNK));
        device const float *first_key = b.keys + first * apart + shared * args.rows;
        device const float *first_query = b.queries + first * apart + shared * args.rows;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == 0) {
            // Positions after the last change nothing: no step, beta 0, keys 0.
            float size = 0.0f, beta = 0.0f;
            if (lane < n) {
                const ulong at = ulong(first + lane) * args.n_heads + mine.head;
                size = b.steps[at];
                if (DELTA) beta = b.other[at];
            }
            // exp of less is 0 all the same; the sums of later positions stay fine, and -inf - -inf
            // is NaN.
            const float log = simd_prefix_inclusive_sum(max(rate * size, -110.0f));
            const float last = simd_broadcast(log, ushort(SCAN_CHUNK - 1));
            if (lane < SCAN_CHUNK) {
                numbers[SCAN_LOG + lane] = log;
                numbers[SCAN_DECAY + lane] = precise::exp(log);
                numbers[SCAN_LEFT + lane] = precise::exp(last - log);
                numbers[SCAN_SIZE + lane] = DELTA ? beta : size;
            }
        }
        scan_stage(keys, key_stride, first_key, apart, n, 0, 2 * eights, args.rows, tid, n_threads);

        simdgroup_float8x8 known[2], out[2]; // K S, Q S
        #pragma clang loop unroll(full)
        for (ushort h = 0; h < 2; h++) {
            known[h] = make_filled_simdgroup_matrix<float, 8>(0.0f);
            out[h] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        }
        #pragma clang loop unroll(full)
        for (ushort done = 0; done < 2 * N; done += piece_eights) {
            if (done < eights) {
                const uint here = min(eights - done, uint(piece_eights));
                if (done > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
                scan_stage(queries, query_stride, first_query, apart, n, 8 * done, 2 * here, args.rows, tid, n_threads);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                #pragma clang loop unroll(full)
                for (ushort i = 0; i < piece_eights; i++) {
                    if (has_columns && i < here) {
                        simdgroup_float8x8 m;
                        #pragma clang loop unroll(full)
                        for (ushort h = 0; h < 2; h++) {
                            if (DELTA) {
                                simdgroup_load(m, keys + 8 * h * key_stride + 8 * (done + i), key_stride, ulong2(0, 0), false);
                                simdgroup_multiply_accumulate(known[h], m, s[done + i], known[h]);
                            }
                            simdgroup_load(m, queries + 8 * h * query_stride + 8 * i, query_stride, ulong2(0, 0), false);
                            simdgroup_multiply_accumulate(out[h], m, s[done + i], out[h]);
                        }
                    }
                }
                // Blocks (0, 0), (1, 1), (1, 0) of T, then of A.
                for (ushort block = DELTA ? sg : SCAN_A + sg; block < SCAN_BLOCKS; block += n_sg) {
                    const bool of_t = block < SCAN_A;
                    const ushort t_0 = block % 3 > 0 ? 8 : 0, s_0 = block % 3 == 1 ? 8 : 0;
                    threadgroup float *to = blocks + 64 * block;
                    if (of_t) {
                        if (done > 0) continue;
                        scan_block(to, keys + t_0 * key_stride, key_stride, keys + s_0 * key_stride, key_stride, eights, false);
                    } else {
                        scan_block(to, queries + t_0 * query_stride, query_stride, keys + s_0 * key_stride + 8 * done, key_stride,
                                   here, done > 0);
                        if (done + here < eights) continue;
                    }
                    scan_weigh(to, numbers, t_0, s_0, of_t, args.scale, lane);
                    if (of_t && t_0 == s_0) scan_invert(to);
                }
            }
        }

        simdgroup_float8x8 u[2];
        if (has_columns) {
            // What U solves the system for, and what the output has without U.
            float values[4];
            if (DELTA) scan_put(known, strip);
            #pragma clang loop unroll(full)
            for (ushort e = 0; e < 4; e++) {
                const ushort at = lane + 32 * e, t = at / 8;
                const uint column = first_column + at % 8;
                values[e] = 0.0f;
                if (t < n && column < args.cols) values[e] = b.x[(ulong(first + t) * args.n_heads + mine.head) * args.cols + column];
                float in = values[e];
                if (DELTA) in -= numbers[SCAN_DECAY + t] * strip[at];
                strip[at] = numbers[SCAN_SIZE + t] * in;
            }
            scan_get(u, strip);
            scan_put(out, strip);
            #pragma clang loop unroll(full)
            for (ushort e = 0; e < 4; e++) {
                const ushort at = lane + 32 * e, t = at / 8;
                strip[at] = fma(args.scale * numbers[SCAN_DECAY + t], strip[at], skip * values[e]);
            }
            scan_get(out, strip);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (!has_columns) continue;

        simdgroup_float8x8 m;
        if (DELTA) {
            threadgroup const float *t = blocks + 64 * SCAN_T;
            simdgroup_load(m, t, 8, ulong2(0, 0), false);
            simdgroup_multiply(u[0], m, u[0]);
            simdgroup_load(m, t + 128, 8, ulong2(0, 0), false);
            simdgroup_multiply_accumulate(u[1], m, u[0], u[1]);
            simdgroup_load(m, t + 64, 8, ulong2(0, 0), false);
            simdgroup_multiply(u[1], m, u[1]);
        }
        threadgroup const float *a = blocks + 64 * SCAN_A;
        simdgroup_load(m, a, 8, ulong2(0, 0), false);
        simdgroup_multiply_accumulate(out[0], m, u[0], out[0]);
        simdgroup_load(m, a + 128, 8, ulong2(0, 0), false);
        simdgroup_multiply_accumulate(out[1], m, u[0], out[1]);
        simdgroup_load(m, a + 64, 8, ulong2(0, 0), false);
        simdgroup_multiply_accumulate(out[1], m, u[1], out[1]);
        scan_put(out, strip);
        #pragma clang loop unroll(full)
        for (ushort e = 0; e < 4; e++) {
            const ushort at = lane + 32 * e, t = at / 8;
            const uint column = first_column + at % 8;
            if (t < n && column < args.cols) b.out[(ulong(first + t) * args.n_heads + mine.head) * args.cols + column] = strip[at];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);

        // The state after the chunk.
        scan_put(u, strip);
        #pragma clang loop unroll(full)
        for (ushort e = 0; e < 4; e++) {
            const ushort at = lane + 32 * e;
            strip[at] *= numbers[SCAN_LEFT + at / 8];
        }
        scan_get(u, strip);
        const simdgroup_float8x8 decay = simdgroup_float8x8(numbers[SCAN_DECAY + SCAN_CHUNK - 1]);
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < 2 * N; i++) {
            if (i < eights) {
                simdgroup_multiply(s[i], decay, s[i]);
                #pragma clang loop unroll(full)
                for (ushort h = 0; h < 2; h++) {
                    simdgroup_load(m, keys + 8 * h * key_stride + 8 * i, key_stride, ulong2(0, 0), true);
                    simdgroup_multiply_accumulate(s[i], m, u[h], s[i]);
                }
            }
        }
    }

    if (!has_columns) return;
    device float *state_to = b.states + ulong(span.state_to) * args.state_stride + head_place;
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < 2 * N; i++) {
        if (i < eights) {
            simdgroup_store(s[i], strip, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (ushort e = lane; e < 64; e += 32) {
                const uint row = 8 * i + e / 8, column = first_column + e % 8;
                if (row < args.rows && column < args.cols) state_to[row * args.cols + column] = strip[e];
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}
