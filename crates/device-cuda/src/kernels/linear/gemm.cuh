// y = x W^T for many rows on tensor cores. W is decoded to halves in shared memory. rows_f16 has
// made x halves, with each row divided by a power of two. Products are of halves, sums are f32.
//
// A block of 4 warps computes 64 columns of y (rows of W) for 64 rows, 32 columns of x at a time. A
// warp has a tile of 32 x 32, by mma.m16n8k16 (m16n8k8 before sm_80). The next part of W and x is
// loaded to registers meanwhile. W is the left operand: D (64 rows of W, 64 rows of x). With
// TAIL_GATE the rows of W are 32 of the gate and 32 of up.
//
// Bytes moved: W once for 64 rows, x once for 64 columns. Grid: (columns / 64, rows / 64).
#pragma once
#include "linear/float.cuh"

#define GEMM_THREADS 128
#define GEMM_TILE 64
// Halves from one row of a tile to the next in shared memory: 8 more than 32, so that ldmatrix
// reads its rows from different banks.
#define PITCH 40

__device__ __forceinline__ uint shared_address(const void *p) {
    return uint(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_matrices(uint (&r)[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

// d += a (16 x 16) b (16 x 8)
__device__ __forceinline__ void multiply(float (&d)[4], const uint (&a)[4], uint b0, uint b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Decodes half a group of a row of W from memory to 16 halves.
template <class T> struct FromBlocks {
    typename T::Raw raw;
    Row row;
    __device__ __forceinline__ void begin(const MatrixArguments &m, ulong index) { row = row_of(m, index); }
    __device__ __forceinline__ void load(uint g, uint) { T::load(raw, row, g); }
    __device__ __forceinline__ void store(ushort *to, uint g, uint half) const {
        const GroupScales scales = T::scales(raw, row, g);
        const int zero = T::zero(row);
        uint words[8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float w[4];
            // The compiler does not know `half`, so the code selects one of both words.
            const uint q = half == 0 ? raw.codes.word(k) : raw.codes.word(k + 4);
            const float s = half == 0 || !T::HALVES ? scales.s0 : scales.s1;
            const float b = half == 0 || !T::HALVES ? scales.b0 : scales.b1;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int code = int(q << (24 - 8 * i)) >> 24;
                w[i] = T::HAS_MIN ? __fmaf_rn(s, float(code - zero), b) : s * float(code - zero);
            }
            words[2 * k] = f16x2_of_f32(w[0], w[1]);
            words[2 * k + 1] = f16x2_of_f32(w[2], w[3]);
        }
        *(Word4 *)to = {words[0], words[1], words[2], words[3]};
        *(Word4 *)(to + 8) = {words[4], words[5], words[6], words[7]};
    }
};

template <class T> struct FromFloats {
    typename T::Raw raw[2];
    const uchar *row;
    __device__ __forceinline__ void begin(const MatrixArguments &m, ulong index) {
        row = m.weight.codes + index * m.weight.code_stride;
    }
    __device__ __forceinline__ void load(uint g, uint half) {
        T::load(raw[0], row, g * 32 + half * 16);
        T::load(raw[1], row, g * 32 + half * 16 + 8);
    }
    __device__ __forceinline__ void store(ushort *to, uint, uint) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float w[8];
            T::values(raw[i], w);
            *(Word4 *)(to + 8 * i) = {f16x2_of_f32(w[0], w[1]), f16x2_of_f32(w[2], w[3]), f16x2_of_f32(w[4], w[5]),
                                      f16x2_of_f32(w[6], w[7])};
        }
    }
};

// Adds the products of a warp's 32 rows of W, from `warp_w` on, and 32 rows of x, from `warp_x` on,
// over 32 columns. Element e of sums[i][j] is of row i * 16 + lane / 4 + 8 (e / 2) of W and row
// j * 8 + 2 (lane % 4) + e % 2 of x.
__device__ __forceinline__ void multiply_tiles(float (&sums)[2][4][4], const ushort *w, const ushort *x, uint warp_w, uint warp_x, uint lane) {
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
        uint left[2][4], right[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Matrices: rows 0-7 and 8-15 of columns 0-7, then of 8-15.
            load_matrices(left[i], w + (warp_w + i * 16 + (lane & 15)) * PITCH + k + (lane >> 4) * 8);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            // Columns 0-7 and 8-15 of 8 rows of x, then of the next 8.
            load_matrices(right[j], x + (warp_x + j * 16 + (lane & 7) + (lane >> 4) * 8) * PITCH + k +
                                        ((lane >> 3) & 1) * 8);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) multiply(sums[i][j], left[i], right[j / 2][(j & 1) * 2], right[j / 2][(j & 1) * 2 + 1]);
    }
}

// Stores gate(x) * up(x). The rows of up are another warp's, so they go through `others`, shared
// memory for (64 rows of x, 32 rows of up) f32.
__device__ __forceinline__ void store_gate(const LinearArguments &a, const float (&sums)[2][4][4], float *others, uint tile, uint x_first,
                                           uint warp_w, uint warp_x, uint lane) {
    __syncthreads();
    if (warp_w == 32) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint r = i * 16 + lane / 4 + 8 * (e / 2), c = warp_x + j * 8 + 2 * (lane & 3) + (e & 1);
                    others[c * 32 + r] = sums[i][j][e];
                }
    }
    __syncthreads();
    if (warp_w == 32) return;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint r = i * 16 + lane / 4 + 8 * (e / 2), c = warp_x + j * 8 + 2 * (lane & 3) + (e & 1);
                const uint out = tile * 32 + r, x_row = x_first + c;
                if (out >= a.m0.n_out || x_row >= a.n_rows) continue;
                const float scale = a.x_scales[x_row];
                const float gate = sums[i][j][e] * scale, up = others[c * 32 + r] * scale;
                a.out[ulong(x_row) * a.m0.n_out + out] = gated(a, out, gate, up);
            }
}

// Stores the columns of a matrix, with bias and residual.
__device__ __forceinline__ void store_columns(const LinearArguments &a, const MatrixArguments &mine, const float (&sums)[2][4][4], uint tile,
                                              uint x_first, uint warp_w, uint warp_x, uint lane) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint out = tile * GEMM_TILE + warp_w + i * 16 + lane / 4 + 8 * (e / 2);
                const uint x_row = x_first + warp_x + j * 8 + 2 * (lane & 3) + (e & 1);
                if (out >= mine.n_out || x_row >= a.n_rows) continue;
                float value = sums[i][j][e] * a.x_scales[x_row];
                if (mine.bias != nullptr) value += mine.bias[out];
                const ulong at = ulong(x_row) * mine.n_out + out;
                if (a.tail == TAIL_ADD) a.out[at] = a.residual[at] + value;
                else mine.out[at] = value;
            }
}

template <class Source> __device__ __forceinline__ void gemm(const LinearArguments &a) {
    __shared__ alignas(16) ushort w_tile[2][GEMM_TILE * PITCH];
    __shared__ alignas(16) ushort x_tile[2][GEMM_TILE * PITCH];
    begin();
    const uint thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const uint n_groups = (a.n_in + 31) / 32;
    const uint x_first = blockIdx.y * GEMM_TILE;
    // Finds the matrix of the tile; tiles do not cross from one matrix to the next.
    uint tile = blockIdx.x, index = 0;
    const bool gate = a.tail == TAIL_GATE;
    if (!gate) {
        while (index + 1 < a.n_matrices && tile >= (matrix(a, index).n_out + GEMM_TILE - 1) / GEMM_TILE) {
            tile -= (matrix(a, index).n_out + GEMM_TILE - 1) / GEMM_TILE;
            index++;
        }
    }
    // Two threads load a row of W, and a row of x.
    const uint row = thread / 2, half = thread & 1;
    const uint of_matrix = gate ? row / 32 : index;
    const uint w_row = gate ? tile * 32 + row % 32 : tile * GEMM_TILE + row;
    const MatrixArguments &m = matrix(a, of_matrix);
    Source source;
    source.begin(m, min(w_row, m.n_out - 1));
    const ushort *x = a.x_f16 + ulong(min(x_first + row, a.n_rows - 1)) * n_groups * 32 + half * 16;
    Word4 x_raw[2];
    source.load(0, half);
    x_raw[0] = *(const Word4 *)x;
    x_raw[1] = *(const Word4 *)(x + 8);

    const uint warp_w = (warp & 1) * 32, warp_x = (warp >> 1) * 32;
    float sums[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;

#pragma unroll 1
    for (uint g = 0; g < n_groups; g++) {
        ushort *w_now = w_tile[g & 1], *x_now = x_tile[g & 1];
        source.store(w_now + row * PITCH + half * 16, g, half);
        *(Word4 *)(x_now + row * PITCH + half * 16) = x_raw[0];
        *(Word4 *)(x_now + row * PITCH + half * 16 + 8) = x_raw[1];
        __syncthreads();
        if (g + 1 < n_groups) {
            source.load(g + 1, half);
            x_raw[0] = *(const Word4 *)(x + (g + 1) * 32);
            x_raw[1] = *(const Word4 *)(x + (g + 1) * 32 + 8);
        }
        multiply_tiles(sums, w_now, x_now, warp_w, warp_x, lane);
    }
    if (gate) store_gate(a, sums, (float *)w_tile, tile, x_first, warp_w, warp_x, lane);
    else store_columns(a, matrix(a, index), sums, tile, x_first, warp_w, warp_x, lane);
}
