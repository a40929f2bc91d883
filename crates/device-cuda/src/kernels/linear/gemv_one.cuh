// y = x W^T for one row, as in decode; W is of an integer type. The norm of x before it, and bias,
// residual or gate after it, are part of the kernel. With EXPERTS the matrices are those of the
// row's k experts:
//   x_per_pair 0: the columns are those of all k experts, one expert after the other; all read the
//   same x
//   x_per_pair 1: K is that of all k experts, one after the other, and y is the sum over experts:
//   each expert's x is multiplied by its pair_weights
//
// Latency, not bandwidth, decides the time of one row. So everything that does not depend on the
// previous kernel is loaded before `await`. Each multiprocessor has one block, with neighbouring
// columns. A team of k_parts warps computes a set of NR columns at a time. Each of its warps has L
// * 32 groups of 32 columns of K, one a lane and step. When x arrives, registers hold the weights
// of a team's first set, L * NR loads of at least 16 bytes a lane. Each register is loaded again,
// for the next set, as soon as it has been read.
//
// The block rounds x to 8 bits in groups of 32 columns: q = round(x w / d), d the largest magnitude
// / 127, w the norm's weight. The norm's 1 / sqrt(mean(x^2) + eps) multiplies the sums at the end,
// so no product waits for it. Order of accumulation: a lane's groups ascending, lanes by a
// butterfly, parts of K ascending. It depends on n_in and the launch, never on values.
//
// Host contract
//   parameter LinearArguments with k_parts; n_rows 1; L * 32 * k_parts groups cover K, k_parts at
//     most 16. With EXPERTS k is at most 64, there is no bias, and with x_per_pair each expert's
//     part of K is whole groups. Without EXPERTS k is 0
//   threads 512; grid: any number of blocks, one a multiprocessor
//   dynamic shared memory 40 bytes for each group, and 4 * k_parts for each column of the block
//     with the most columns
// Bytes moved: W once; x once a block, from L2.
// Measured, 25 November 2026, H100: 2.2 us for 2.4 MB, 8.7 for 18.9 MB of Q4_0, 95 for 279 MB of
// Q8_0; NOTES.md.
#pragma once
#include "linear/blocks.cuh"
#include "linear/product.cuh"

#define ONE_WARPS 16
#define ONE_THREADS 512

// The matrix and the row of a column. With TAIL_GATE, rows of the gate and of up alternate.
struct Column {
    uint matrix;
    uint row;
};

__device__ __forceinline__ Column column_of(const LinearArguments &a, uint column) {
    if (a.tail == TAIL_GATE) return {column & 1, column >> 1};
    if (column < a.m0.n_out) return {0, column};
    column -= a.m0.n_out;
    if (column < a.m1.n_out) return {1, column};
    return {2, column - a.m1.n_out};
}

__device__ __forceinline__ Row row_of_column(const LinearArguments &a, uint column) {
    const Column c = column_of(a, column);
    return row_of(matrix(a, c.matrix), c.row);
}

// 8 columns of a vector from column c on; columns past its end are 0.
__device__ __forceinline__ void eight_of(const float *x, uint c, uint n, float (&v)[8]) {
    if ((n & 7) == 0 && c < n) {
        const Vec4 low = *(const Vec4 *)(x + c), high = *(const Vec4 *)(x + c + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = c + i < n ? x[c + i] : 0.0f;
}

// Most experts of a row.
#define ONE_EXPERTS 64

// The product of a group: `words` are the codes of W's 32 columns, `x0` and `x1` those of x, and
// `sum0` and `sum1` the sums of the bytes of both halves of x. x's scale is not applied.
template <class T>
__device__ __forceinline__ float dot_of_group(const uint (&words)[8], const GroupScales &scales, int zero, const Word4 &x0, const Word4 &x1,
                                              int sum0, int sum1) {
    int dot0 = 0, dot1 = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) dot0 = __dp4a(int(words[k]), int(word_of(x0, k)), dot0);
#pragma unroll
    for (int k = 0; k < 4; k++) dot1 = __dp4a(int(words[4 + k]), int(word_of(x1, k)), dot1);
    float value;
    if (T::HALVES) {
        value = __fmaf_rn(scales.s0, float(dot0 - zero * sum0),
                          __fmul_rn(scales.s1, float(dot1 - zero * sum1)));
        if (T::HAS_MIN) {
            value = __fmaf_rn(scales.b0, float(sum0), __fmaf_rn(scales.b1, float(sum1), value));
        }
    } else {
        value = __fmul_rn(scales.s0, float(dot0 + dot1 - zero * (sum0 + sum1)));
        if (T::HAS_MIN) value = __fmaf_rn(scales.b0, float(sum0 + sum1), value);
    }
    return value;
}

// Adds the parts of K, multiplies by the norm's factor, and stores the block's columns.
template <bool EXPERTS>
__device__ __forceinline__ void store_one(const LinearArguments &a, const float *sums, const float *squares, uint first, uint n_mine,
                                              float residual) {
    float inverse = 1.0f;
    if (a.has_norm) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < ONE_WARPS; w++) sum += squares[w];
        inverse = rsqrtf(__fadd_rn(__fdiv_rn(sum, float(a.n_in)), a.eps));
    }
    const auto sum_of = [&](uint column) {
        float sum = sums[column];
        for (uint p = 1; p < a.k_parts; p++) sum += sums[p * n_mine + column];
        return sum * inverse;
    };
    if (a.tail == TAIL_GATE) {
        for (uint pair = threadIdx.x; pair < n_mine / 2; pair += ONE_THREADS) {
            const uint row = first / 2 + pair;
            a.out[row] = gated(a, row, sum_of(2 * pair), sum_of(2 * pair + 1));
        }
        return;
    }
    for (uint i = threadIdx.x; i < n_mine; i += ONE_THREADS) {
        const Column c = EXPERTS ? Column{0, first + i} : column_of(a, first + i);
        const MatrixArguments &m = matrix(a, c.matrix);
        float value = sum_of(i);
        if (m.bias != nullptr) value += m.bias[c.row];
        if (a.tail == TAIL_ADD) a.out[c.row] = value + (i == threadIdx.x ? residual : a.residual[c.row]);
        else m.out[c.row] = value;
    }
}

template <class T, int NR, int L, bool EXPERTS = false> __device__ __forceinline__ void gemv_one(const LinearArguments &a) {
    // One function: with the staging of x cut out, Q4_K's experts took 60 registers on sm_90a (56).
    extern __shared__ Word4 memory[];
    __shared__ float squares[ONE_WARPS];
    __shared__ uint experts[EXPERTS ? ONE_EXPERTS : 1];
    __shared__ float shares[EXPERTS ? ONE_EXPERTS : 1];
    announce();
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint n_groups = (a.n_in + 31) / 32, n_staged = a.k_parts * 32 * L;
    Word4 *low = memory, *high = low + n_staged; // columns 0 to 15 of each group, 16 to 31
    // x: d as f32 bits; y: the sums of the bytes of both halves, as two i16
    Word2 *scale = (Word2 *)(high + n_staged);
    float *sums = (float *)(scale + n_staged);   // (k_parts, columns of the block)
    // The columns of this block: whole sets, and whole pairs of gate and up.
    constexpr uint SET = NR < 2 ? 2 : NR;
    const uint n_columns = (EXPERTS && !a.x_per_pair ? a.k : 1) *
        (a.m0.n_out + (a.n_matrices > 1 ? a.m1.n_out : 0) + (a.n_matrices > 2 ? a.m2.n_out : 0));
    const uint n_all = (n_columns + SET - 1) / SET;
    const uint first = SET * uint(ulong(n_all) * blockIdx.x / gridDim.x);
    const uint n_mine = min(n_columns, SET * uint(ulong(n_all) * (blockIdx.x + 1) / gridDim.x)) - first;
    const uint n_sets = (n_mine + NR - 1) / NR;
    const uint n_teams = ONE_WARPS / a.k_parts, part = warp % a.k_parts, group = part * 32 * L + lane;
    // Warps without a team only prepare x.
    uint set = warp < n_teams * a.k_parts ? warp / a.k_parts : n_sets;
    typename T::Raw raw[L][NR];
    uint pair_group[L]; // EXPERTS, x_per_pair: a lane's group within its pair
    uint pair_of[L];    // the pair (place in the row's list of experts) of a lane's group
    if constexpr (EXPERTS) {
        // The previous kernel chooses the experts, but weights are constant.
        await();
        if (threadIdx.x < a.k) {
            experts[threadIdx.x] = a.ids[threadIdx.x];
            if (a.x_per_pair) shares[threadIdx.x] = a.pair_weights[threadIdx.x];
        }
        __syncthreads();
        const uint of_pair = a.x_per_pair ? n_groups / a.k : 1;
#pragma unroll
        for (int l = 0; l < L; l++) {
            pair_of[l] = min((group + 32 * l) / of_pair, a.k - 1);
            pair_group[l] = group + 32 * l - pair_of[l] * of_pair;
        }
    }
    const auto row_at = [&](uint column, int l) {
        if constexpr (EXPERTS) {
            if (a.x_per_pair) return row_of(a.m0, ulong(experts[pair_of[l]]) * a.m0.n_out + column);
            const uint each = a.tail == TAIL_GATE ? 2 * a.m0.n_out : a.m0.n_out, pair = column / each;
            const Column c = column_of(a, column - pair * each);
            return row_of(matrix(a, c.matrix), ulong(experts[pair]) * a.m0.n_out + c.row);
        } else {
            return row_of_column(a, column);
        }
    };
    // The group within its row: with x_per_pair each pair has rows of its own.
    const auto group_at = [&](int l) {
        if constexpr (EXPERTS) return a.x_per_pair ? pair_group[l] : group + 32 * l;
        else return group + 32 * l;
    };
    const auto fetch = [&](uint of_set, int l, int s) {
        const uint c = of_set * NR + s;
        if (of_set < n_sets && c < n_mine && group + 32 * l < n_groups) {
            T::load(raw[l][s], row_at(first + c, l), group_at(l));
        }
    };
#pragma unroll
    for (int l = 0; l < L; l++)
#pragma unroll
        for (int s = 0; s < NR; s++) fetch(set, l, s);
    // Stages x in shared memory: four lanes have a group, 8 columns each. As a function of its own
    // this would take more registers.
    const uint quarter = threadIdx.x & 3;
    const bool weighted = a.has_norm && a.norm != nullptr;
    float norm[8];
    if (weighted) eight_of(a.norm, threadIdx.x * 8, a.n_in, norm);
    if constexpr (!EXPERTS) await();
    const float residual = a.tail == TAIL_ADD && threadIdx.x < n_mine ? a.residual[first + threadIdx.x] : 0.0f;
    float square = 0.0f;
    for (uint at = threadIdx.x; at < 4 * n_staged; at += ONE_THREADS) {
        float v[8];
        eight_of(a.x, at * 8, a.n_in, v);
        if (a.has_norm) {
#pragma unroll
            for (int i = 0; i < 8; i++) square = __fmaf_rn(v[i], v[i], square);
        }
        if (weighted) {
            if (at >= ONE_THREADS) eight_of(a.norm, at * 8, a.n_in, norm);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] *= norm[i];
        }
        float most = 0.0f;
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            most = fmaxf(most, fabsf(v[i]));
            finite = finite && fabsf(v[i]) < INFINITY_F;
        }
        if (!finite) most = INFINITY_F;
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float to = most > 0.0f ? __fdividef(127.0f, most) : 0.0f;
        uint words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) words[i / 4] |= uint(__float2int_rn(v[i] * to) & 255) << (8 * (i & 3));
        int sum = __dp4a(int(words[0]), 0x01010101, __dp4a(int(words[1]), 0x01010101, 0));
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        const int other = __shfl_xor_sync(0xffffffffu, sum, 2);
        const uint g = at >> 2;
        Word2 *half = (Word2 *)(quarter < 2 ? low + g : high + g);
        half[quarter & 1] = {words[0], words[1]};
        // A NaN or infinite column makes the whole group's product NaN.
        float d = most < INFINITY_F ? most * (1.0f / 127.0f) : NAN_F;
        if constexpr (EXPERTS) {
            if (a.x_per_pair) d *= shares[min(g / (n_groups / a.k), a.k - 1)];
        }
        if (quarter == 0) scale[g] = {__float_as_uint(d), (uint(sum) & 0xffff) | (uint(other) << 16)};
    }
    if (a.has_norm) {
        square = warp_sum(square);
        if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
#pragma unroll 1
    while (set < n_sets) {
        const uint next = set + n_teams;
        float of_set[NR];
#pragma unroll
        for (int s = 0; s < NR; s++) of_set[s] = 0.0f;
#pragma unroll
        for (int l = 0; l < L; l++) {
            const uint g = group + 32 * l;
            const Word4 x0 = low[g], x1 = high[g];
            const Word2 of_x = scale[g];
            const int sum0 = int(of_x.y << 16) >> 16, sum1 = int(of_x.y) >> 16;
#pragma unroll
            for (int s = 0; s < NR; s++) {
                if (g >= n_groups || set * NR + s >= n_mine) continue;
                const Row row = row_at(first + set * NR + s, l);
                uint words[8];
#pragma unroll
                for (int k = 0; k < 8; k++) words[k] = raw[l][s].codes.word(k);
                const GroupScales scales = T::scales(raw[l][s], row, group_at(l));
                const int zero = T::zero(row);
                fetch(next, l, s);
                const float value = dot_of_group<T>(words, scales, zero, x0, x1, sum0, sum1);
                of_set[s] = __fmaf_rn(__uint_as_float(of_x.x), value, of_set[s]);
            }
        }
#pragma unroll
        for (int s = 0; s < NR; s++) {
            of_set[s] = warp_sum(of_set[s]);
            if (lane == uint(s) && set * NR + s < n_mine) sums[part * n_mine + set * NR + s] = of_set[s];
        }
        set = next;
    }
    __syncthreads();
    store_one<EXPERTS>(a, sums, squares, first, n_mine, residual);
}
