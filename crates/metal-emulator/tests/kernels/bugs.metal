// Each kernel has one fault.
#include <metal_stdlib>
using namespace metal;

kernel void past_the_end(device float * x [[buffer(0)]], uint t [[thread_position_in_grid]]) {
    x[t + 1] = t;
}
kernel void before_the_start(device const float * x [[buffer(0)]], device float * y [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    y[t] = x[int(t) - 1];
}
kernel void last_byte(device uchar * x [[buffer(0)]], constant uint & n [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    if (t == 0) x[n] = 1;
}
struct Block {
    half d;
    uchar q[16];
};
kernel void half_a_block(device const Block * x [[buffer(0)]], device float * y [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    Block b = x[t];
    float s = 0;
    for (int i = 0; i < 16; i++) s += b.q[i];
    y[t] = s * float(b.d);
}
kernel void far_away(device float * x [[buffer(0)]], device float * y [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    y[t] = x[0xffffffffu - t];
}
kernel void arguments_too_short(constant uint4 & a [[buffer(0)]], device uint * y [[buffer(1)]]) {
    y[0] = a.w;
}
kernel void into_the_neighbour(device float * x [[buffer(0)]], device float * y [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    y[t] = x[t];
    x[t + 32] = 2;
}
kernel void write(device float * x [[buffer(0)]], uint t [[thread_position_in_grid]]) {
    x[t] = t;
}
struct Chunk {
    device uint * words;
};
kernel void through_an_address(device const Chunk * table [[buffer(0)]], device uint * y [[buffer(1)]], constant uint3 & at [[buffer(2)]],
                               uint t [[thread_position_in_grid]]) {
    device uint * words = table[at.x].words;
    y[t] = words[at.y + t];
    if (at.z) words[at.y + t] = at.z;
}
kernel void threadgroup_overrun(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float a[32];
    threadgroup float b[32];
    threadgroup float * p = a;
    b[t] = 0;
    p[t + 1] = t;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[t] = a[t] + b[t];
}
kernel void argument_overrun(device float * x [[buffer(0)]], threadgroup float * a [[threadgroup(0)]], uint t [[thread_position_in_threadgroup]]) {
    a[t + 1] = t;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[t] = a[t];
}
kernel void uninitialised(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float s[32];
    if (t < 31) s[t] = 1.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[t] = s[t];
}
kernel void uninitialised_again(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
    threadgroup float s[32];
    if (g == 0) s[t] = 1.0f;
    x[t] = s[t];
}
kernel void too_much_memory(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float4 a[2048];
    threadgroup float b[1];
    a[t] = 0;
    b[0] = 0;
    x[t] = a[t].x + b[0];
}
kernel void divergent_barrier(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    if (t < 16) threadgroup_barrier(mem_flags::mem_threadgroup);
    x[t] = t;
}
kernel void two_barriers(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    if (t < 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    x[t] = t;
}
kernel void divergent_reduction(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    if (t & 1) x[t] = simd_sum(1.0f);
    else x[t] = simd_max(2.0f);
}
kernel void divergent_matrix(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8>(1.0f);
    if (t < 16) simdgroup_multiply(a, a, a);
    simdgroup_store(a, x);
}
kernel void inactive_lane(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = simd_shuffle(float(t), ushort(20));
}
kernel void misaligned(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    if (t == 0) *(device float4 *) (x + 1) = float4(1.0f);
}
kernel void misaligned_word(device uchar * x [[buffer(0)]]) {
    *(device uint *) (x + 6) = 1;
}
kernel void shift(device int * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = 1 << (t + 1);
}
kernel void division(device int * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = 7 / (int(t) - 3);
}
constant float table[4] = { 1, 2, 3, 4 };
kernel void index(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = table[t];
}
[[max_total_threads_per_threadgroup(64)]] kernel void limited(device float * x [[buffer(0)]]) {
    x[0] = 1;
}
kernel void aliased(device const float * a [[buffer(0)]], device float * b [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    b[t] = 2.0f * a[t];
    b[t] = 2.0f * b[t] + a[t];
}
kernel void in_place(device const float * a [[buffer(0)]], device float * b [[buffer(1)]], uint t [[thread_position_in_grid]]) {
    b[t] = 2.0f * a[t];
}
kernel void unordered(device float * x [[buffer(0)]], device float * y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = float(t);
#ifdef ORDERED
    threadgroup_barrier(mem_flags::mem_device);
#else
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    y[t] = x[63 - t];
}
kernel void unordered_in_simdgroup(device half * x [[buffer(0)]], device half * y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
    x[t] = half(t);
#ifdef ORDERED
    simdgroup_barrier(mem_flags::mem_device);
#else
    simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
    y[t] = x[t ^ 1];
}
kernel void too_much_in_a_branch(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float4 a[1536];
    a[t] = float4(1.0f);
    if (x[0] > 1.0f) {
        threadgroup float4 b[513];
        b[t] = a[t];
        x[t] = b[t].x;
    }
}
kernel void much_of_its_own(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float4 a[1280];
    a[t] = float4(1.0f);
    x[t] = a[t].y;
}
kernel void from_constant(constant ushort * x [[buffer(0)]], device uchar * y [[buffer(1)]]) { y[0] = x[0]; }
kernel void never_ends(device atomic_uint * x [[buffer(0)]]) {
    while (atomic_load_explicit(x, memory_order_relaxed) == 0) {
    }
}
kernel void never_ends_together(device atomic_uint * x [[buffer(0)]]) {
    do threadgroup_barrier(mem_flags::mem_none);
    while (atomic_load_explicit(x, memory_order_relaxed) == 0);
}
kernel void race(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float s[64];
    s[t] = t;
#ifdef WITH_BARRIER
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    x[t] = t > 0 && t < 63 ? s[t ^ 1] : 0.0f;
}
kernel void race_in_simdgroup(device float * x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
    threadgroup float s[32];
    s[t] = t;
#ifdef WITH_BARRIER
    simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
    x[t] = s[31 - t];
}
