// Forms of the language that headers alone cannot provide, and idioms of real kernels.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>

using namespace metal;

#define TILE 8
#define FOR_UNROLL(x) _Pragma("clang loop unroll(full)") for (x)

constant uint WIDTH [[function_constant(TILE + 2)]];
constant bool SECOND [[function_constant(11)]];
constant float SCALE [[function_constant(12)]];
constant float SCALE_OR_ONE = is_function_constant_defined(SCALE) ? SCALE : 1.0;

constant float table[16] = { 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0 };
constant constexpr uint four = 4;
static constant uchar masks[4] = { 1, 2, 4, 8 };

enum class Kind : uint { first, second };

struct Arguments {
    uint n;
    float eps;
    packed_float3 offset;
    uint kind;
};

namespace detail {
template<typename T, int N>
struct Accumulator {
    T values[N];
    void clear() thread { for (int i = 0; i < N; i++) values[i] = T(0); }
    T total() const thread {
        T s = T(0);
        for (int i = 0; i < N; i++) s += values[i];
        return s;
    }
    static METAL_FUNC T square(T x) { return x * x; }
};
}

template<typename T>
METAL_FUNC T lookup(device const uchar * q, uint i) {
    return T(table[(q[i / 2] >> (4 * (i % 2))) & 15]);
}

inline float from_threadgroup(threadgroup const float4 * t, uint i) {
    return t[i / 4][i % 4];
}

kernel void constants(
        device uint * y [[buffer(0)]],
        device const uint * extra [[buffer(1), function_constant(SECOND)]],
        uint i [[thread_position_in_grid]]) {
    y[i] = WIDTH * i + (SECOND ? extra[i] : 0u) + uint(SCALE_OR_ONE * 1000.0);
}

template<typename T, short ROWS, bool NEGATE>
[[max_total_threads_per_threadgroup(64)]] kernel void tile(
        constant Arguments & a [[buffer(0)]],
        device const uchar * q [[buffer(1)]],
        device float * y [[buffer(2)]],
        threadgroup T * scratch [[threadgroup(0)]],
        uint2 group [[threadgroup_position_in_grid]],
        ushort2 at [[thread_position_in_threadgroup]],
        ushort2 size [[threads_per_threadgroup]],
        uint index [[thread_index_in_threadgroup]]) {
    threadgroup float4 rows[ROWS][TILE / 4 + 1], spare;
    threadgroup uint count;
    detail::Accumulator<T, four> sum;
    sum.clear();
    if (index == 0) {
        count = 0;
        spare = float4(a.offset, 1.0f);
    }
    for (uint r = index; r < ROWS * (TILE / 4 + 1); r += size.x * size.y) rows[r / (TILE / 4 + 1)][r % (TILE / 4 + 1)] = float4(r);
    scratch[index] = lookup<T>(q, (index + group.x) % a.n);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    FOR_UNROLL (short k = 0; k < short(four); ++k) {
        sum.values[k] = scratch[(index + k) % (size.x * size.y)];
    }
    T total = sum.total();
    if (NEGATE) total = -total;
    const Kind kind = (Kind) a.kind;
    switch (kind) {
        case Kind::first: total += T(spare.x); break;
        case Kind::second: total += T(spare.w) * T(masks[at.x & 3]); break;
    }
    auto add = [&](float v) { return v + from_threadgroup(&rows[0][0], 1) + float(detail::Accumulator<T, 1>::square(T(2))); };
    y[group.x * size.x * size.y + at.y * size.x + at.x] = add(float(total));
}
template [[host_name("tile_float")]] kernel void tile<float, 3, false>(
        constant Arguments & a [[buffer(0)]], device const uchar * q [[buffer(1)]], device float * y [[buffer(2)]],
        threadgroup float * scratch [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
        ushort2 at [[thread_position_in_threadgroup]], ushort2 size [[threads_per_threadgroup]],
        uint index [[thread_index_in_threadgroup]]);
typedef decltype(tile<half, 5, true>) tile_t;
template [[host_name("tile_half")]] kernel tile_t tile<half, 5, true>;

[[kernel]] void positions(
        device uint * y [[buffer(0)]],
        uint3 grid [[thread_position_in_grid]],
        uint3 grids [[threads_per_grid]],
        uint3 group [[threadgroup_position_in_grid]],
        uint3 groups [[threadgroups_per_grid]],
        ushort3 local [[thread_position_in_threadgroup]],
        uint3 locals [[threads_per_threadgroup]],
        ushort index [[thread_index_in_threadgroup]],
        ushort lane [[thread_index_in_simdgroup]],
        ushort simdgroup [[simdgroup_index_in_threadgroup]],
        ushort simdgroups [[simdgroups_per_threadgroup]],
        ushort width [[threads_per_simdgroup]],
        ushort quad [[quadgroup_index_in_threadgroup]],
        ushort in_quad [[thread_index_in_quadgroup]]) {
    device uint * to = y + 12 * (grid.x + grids.x * (grid.y + grids.y * grid.z));
    to[0] = grid.x | grid.y << 8 | grid.z << 16;
    to[1] = grids.x | grids.y << 8 | grids.z << 16;
    to[2] = group.x | group.y << 8 | group.z << 16;
    to[3] = groups.x | groups.y << 8 | groups.z << 16;
    to[4] = local.x | uint(local.y) << 8 | uint(local.z) << 16;
    to[5] = locals.x | locals.y << 8 | locals.z << 16;
    to[6] = index;
    to[7] = lane;
    to[8] = simdgroup;
    to[9] = simdgroups | uint(width) << 16;
    to[10] = quad;
    to[11] = in_quad;
}

kernel void histogram(
        device const uchar * x [[buffer(0)]],
        device atomic_uint * counts [[buffer(1)]],
        device atomic_float * sum [[buffer(2)]],
        device atomic_int * extremes [[buffer(3)]],
        constant uint & n [[buffer(4)]],
        uint i [[thread_position_in_grid]],
        uint t [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint local[16];
    if (t < 16) atomic_store_explicit(&local[t], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < n) {
        atomic_fetch_add_explicit(&local[x[i] & 15], 1u, memory_order_relaxed);
        atomic_fetch_add_explicit(sum, float(x[i]), memory_order_relaxed);
        atomic_fetch_max_explicit(&extremes[0], int(x[i]), memory_order_relaxed);
        atomic_fetch_min_explicit(&extremes[1], int(x[i]), memory_order_relaxed);
        atomic_fetch_or_explicit(&extremes[2], int(x[i]), memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (t < 16) {
        uint v = atomic_load_explicit(&local[t], memory_order_relaxed);
        uint expected = atomic_load_explicit(&counts[t], memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&counts[t], &expected, expected + v, memory_order_relaxed, memory_order_relaxed)) {
        }
    }
}
