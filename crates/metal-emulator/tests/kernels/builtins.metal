// Every builtin writes its results to a row of its own; tests/builtins.rs computes the same in
// Rust.
#include <metal_stdlib>
using namespace metal;

#define PUT(row, value) y[(row) * n + i] = (value);

kernel void unary(
        device const float * x [[buffer(0)]],
        device float * y [[buffer(1)]],
        constant uint & n [[buffer(2)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= n) return;
    const float v = x[i];
    PUT(0, sqrt(fabs(v))) PUT(1, rsqrt(fabs(v) + 0.5)) PUT(2, exp(v)) PUT(3, exp2(v)) PUT(4, exp10(v)) PUT(5, log(fabs(v) + 0.1))
    PUT(6, log2(fabs(v) + 0.1)) PUT(7, log10(fabs(v) + 0.1)) PUT(8, sin(v)) PUT(9, cos(v)) PUT(10, tan(v)) PUT(11, asin(v / 4))
    PUT(12, acos(v / 4)) PUT(13, atan(v)) PUT(14, sinh(v)) PUT(15, cosh(v)) PUT(16, tanh(v)) PUT(17, asinh(v)) PUT(18, acosh(fabs(v) + 1))
    PUT(19, atanh(v / 4)) PUT(20, floor(v)) PUT(21, ceil(v)) PUT(22, trunc(v)) PUT(23, round(v)) PUT(24, rint(v)) PUT(25, fract(v))
    PUT(26, sign(v)) PUT(27, saturate(v)) PUT(28, precise::exp(v)) PUT(29, fast::rsqrt(fabs(v) + 0.5)) PUT(30, abs(v))
    float c;
    PUT(31, sincos(v, c)) PUT(32, c) PUT(33, pow(fabs(v), 1.5f)) PUT(34, powr(2.0f, v)) PUT(35, fmod(v, 0.7f)) PUT(36, atan2(v, 2.0f))
    PUT(37, fma(v, v, 1.0f)) PUT(38, mix(1.0f, 3.0f, v)) PUT(39, step(0.5f, v)) PUT(40, smoothstep(-1.0f, 1.0f, v))
    PUT(41, copysign(2.0f, v)) PUT(42, fdim(v, 0.25f)) PUT(43, ldexp(v, 3)) PUT(44, fmax(v, 0.1f)) PUT(45, fmin(v, 0.1f))
    PUT(46, max(v, NAN)) PUT(47, min(NAN, v)) PUT(48, clamp(v, -0.5f, 0.5f)) PUT(49, precise::divide(v, 3.0f)) PUT(50, max3(v, 0.5f, 1.0f))
    PUT(51, median3(v, 0.5f, 1.0f)) PUT(52, float(isnan(v / 0.0f - v / 0.0f))) PUT(53, float(isinf(1.0f / (v - v)))) PUT(54, float(signbit(v)))
    int e;
    PUT(55, frexp(v, e)) PUT(56, float(e)) PUT(57, modf(v, c)) PUT(58, c)
}

kernel void small_floats(
        device const half * x [[buffer(0)]],
        device half * y [[buffer(1)]],
        device const bfloat * bx [[buffer(2)]],
        device bfloat * by [[buffer(3)]],
        constant uint & n [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= n) return;
    const half v = x[i], w = x[(i + 1) % n];
    PUT(0, v + w) PUT(1, v * w) PUT(2, v - w) PUT(3, v / w) PUT(4, max(v, w)) PUT(5, half(float(v) * 3.0f)) PUT(6, sqrt(fabs(v)))
    PUT(7, v * w + 1.0h) PUT(8, -v) PUT(9, v < w ? v : w) PUT(10, fma(v, w, v)) PUT(11, half2(v, w).yx.x)
    const bfloat a = bx[i], b = bx[(i + 1) % n];
    by[i] = a + b;
    by[n + i] = a * b;
    by[2 * n + i] = bfloat(float(a) * 3.0f);
    bfloat c = a;
    c += 1.0f;
    by[3 * n + i] = c;
    bfloat4 d = bfloat4(a, b, bfloat(1.0f), 2.0bf);
    by[4 * n + i] = (d * d).y;
    by[5 * n + i] = bfloat(max(a, b));
}

kernel void integers(
        device const uint * x [[buffer(0)]],
        device uint * y [[buffer(1)]],
        constant uint & n [[buffer(2)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= n) return;
    const uint v = x[i], w = x[(i + 1) % n];
    PUT(0, popcount(v)) PUT(1, clz(v)) PUT(2, ctz(v)) PUT(3, reverse_bits(v)) PUT(4, rotate(v, w)) PUT(5, extract_bits(v, 3, 7))
    PUT(6, insert_bits(v, w, 5, 9)) PUT(7, mulhi(v, w)) PUT(8, as_type<uint>(mulhi(int(v), int(w)))) PUT(9, addsat(v, w))
    PUT(10, subsat(v, w)) PUT(11, as_type<uint>(addsat(int(v), int(w)))) PUT(12, as_type<uint>(subsat(int(v), int(w))))
    PUT(13, absdiff(v, w)) PUT(14, absdiff(int(v), int(w))) PUT(15, min(v, w)) PUT(16, max(v, w)) PUT(17, clamp(v, 100u, 200u))
    PUT(18, as_type<uint>(extract_bits(int(v), 3, 7))) PUT(19, uint(popcount(uchar(v)))) PUT(20, uint(clz(ushort(v)))) PUT(21, mul24(v, w))
    PUT(22, as_type<uint>(float(v))) PUT(23, as_type<uint>(half2(uchar2(as_type<uchar4>(v).xy)))) PUT(24, as_type<uint>(as_type<char4>(v) + char4(1)))
    PUT(25, as_type<uint>(ushort2(v & 0xffff, w >> 16) * ushort2(3))) PUT(26, select(v, w, (v & 1) == 1)) PUT(27, uint(char(v)))
    PUT(28, as_type<uint>(int(short(v)) >> 2)) PUT(29, abs(int(v) / 2)) PUT(30, uint(numeric_limits<short>::max()))
    PUT(31, as_type<uint>(numeric_limits<float>::infinity())) PUT(32, as_type<uint>(uint2(v, w).y)) PUT(33, uint(ulong(v) * ulong(w) >> 32))
}

kernel void vectors(
        device const float4 * x [[buffer(0)]],
        device float * y [[buffer(1)]],
        device const packed_float3 * p [[buffer(2)]],
        device packed_float3 * q [[buffer(3)]],
        constant uint & n [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    static_assert(sizeof(float3) == 16 && sizeof(packed_float3) == 12 && alignof(packed_half4) == 2 && sizeof(half3) == 8, "layouts");
    static_assert(sizeof(bool3) == 4 && alignof(ulong4) == 32 && sizeof(float4x4) == 64 && sizeof(float3x3) == 48, "layouts");
    if (i >= n) return;
    float4 v = x[i];
    PUT(0, dot(v, v.wzyx)) PUT(1, length(v.xy)) PUT(2, v.zyx.x) PUT(3, v.xxyy.z) PUT(4, v.ww.y)
    float4 w = v;
    w.xz = v.yw;
    w.y += 2;
    w.zw *= 3.0f;
    PUT(5, w.x) PUT(6, w.y) PUT(7, w.z) PUT(8, w.w)
    PUT(9, select(v, w, v < 0.0f).x) PUT(10, float(any(v > 0.5f))) PUT(11, float(all(v > -0.5f))) PUT(12, (2.0f - v / 4).y) PUT(13, max(v, 0.25f).z)
    PUT(14, float4(half4(v)).x) PUT(15, float4(uchar4(abs(v) * 100)).y) PUT(16, float(int4(v * 10)[2])) PUT(17, clamp(v, -0.1f, 0.1f).w)
    PUT(18, cross(v.xyz, w.xyz).y) PUT(19, normalize(v).x) PUT(20, mix(v, w, 0.5f).y) PUT(21, fma(v, w, v).z) PUT(22, exp(v).w)
    PUT(23, float3(v.xy, 5).z) PUT(24, float4(1, v.yz, 2).y) PUT(25, (-v).x) PUT(26, as_type<float2>(as_type<uint2>(v.zw)).y)
    PUT(27, v[i % 4])
    float3 t = p[i];
    t *= 2;
    q[i] = t;
    PUT(28, p[i].y) PUT(29, (p[i] * 3.0f).z)
    float2x2 m = float2x2(float2(v.x, v.y), float2(v.z, v.w));
    PUT(30, (m * float2(1, 2)).x) PUT(31, (m * m)[1].y) PUT(32, transpose(m)[0].y)
    v.x++;
    PUT(33, v.x) PUT(34, float((ushort4(1, 2, 3, 4) << 2).z)) PUT(35, unpack_unorm4x8_to_float(0xff804020u).z)
    PUT(36, float(pack_float_to_unorm4x8(float4(0, 0.5, 1, 2)))) PUT(37, float((uint4(5) >= uint4(4, 5, 6, 7)).z))
    half4 h = half4(v);
    h.xy = h.yx + 1;
    PUT(38, h.x) PUT(39, float(dot(h, h)))
}

#undef PUT
#define PUT(row, value) y[(row) * n + t] = (value);
// One threadgroup of n threads: its last simdgroup may be incomplete.
kernel void simdgroups(
        device const float * x [[buffer(0)]],
        device float * y [[buffer(1)]],
        uint t [[thread_position_in_threadgroup]],
        uint n [[threads_per_threadgroup]],
        ushort lane [[thread_index_in_simdgroup]]) {
    const float v = x[t];
    const uint first = t - lane, width = min(32u, n - first);
    const int k = int(v * 8);
    PUT(0, simd_sum(v)) PUT(1, simd_max(v)) PUT(2, simd_min(v)) PUT(3, simd_product(1 + v / 8)) PUT(4, float(simd_and(k))) PUT(5, float(simd_or(k)))
    PUT(6, float(simd_xor(k))) PUT(7, simd_prefix_inclusive_sum(v)) PUT(8, simd_prefix_exclusive_sum(v)) PUT(9, simd_prefix_inclusive_product(1 + v / 8))
    PUT(10, simd_broadcast(v, ushort(min(3u, width - 1)))) PUT(11, simd_broadcast_first(v)) PUT(12, simd_shuffle(v, ushort((lane * 7 + 3) % width)))
    PUT(13, simd_shuffle_xor(v, lane + 1 == width && width % 2 == 1 ? 0 : 1)) PUT(14, simd_shuffle_up(v, 2))
    PUT(15, simd_shuffle_down(v, lane + 2 < width ? 2 : 0)) PUT(16, simd_shuffle_rotate_up(v, lane == 0 ? 0 : 1))
    PUT(17, float(ulong(simd_ballot(v > 0)) & 0xffffffu)) PUT(18, float(simd_any(v > 0.9f))) PUT(19, float(simd_all(v > -0.9f)))
    PUT(20, float(simd_is_first())) PUT(21, float(ctz(uint(ulong(simd_active_threads_mask())))))
    const float4 wide = simd_sum(float4(v, v * 2, 1, v * v));
    PUT(22, wide.x) PUT(23, wide.y) PUT(24, wide.z) PUT(25, wide.w)
    PUT(26, float(simd_max(half(v)))) PUT(27, float(simd_sum(uchar(lane)))) PUT(28, simd_shuffle(float4(v), ushort(0)).w)
    // Loops whose length differs between simdgroups, and a reduction of some lanes after the others
    // have finished.
    float s = 0;
    for (uint r = 0; r <= first / 32; r++) s += simd_sum(v);
    PUT(29, s)
    if (lane >= 16) return;
    PUT(30, simd_sum(v))
}

kernel void quads(
        device const float * x [[buffer(0)]],
        device float * y [[buffer(1)]],
        uint t [[thread_position_in_threadgroup]],
        uint n [[threads_per_threadgroup]]) {
    const float v = x[t];
    PUT(0, quad_sum(v)) PUT(1, quad_max(v)) PUT(2, quad_min(v)) PUT(3, quad_broadcast(v, 2)) PUT(4, quad_shuffle(v, (t + 1) & 3))
    PUT(5, quad_shuffle_xor(v, 3)) PUT(6, quad_shuffle_up(v, 1)) PUT(7, quad_shuffle_down(v, 1)) PUT(8, quad_prefix_inclusive_sum(v))
    PUT(9, float(quad_any(v > 0.5f))) PUT(10, float(quad_all(v > -0.5f))) PUT(11, quad_broadcast_first(v)) PUT(12, quad_shuffle_rotate_down(v, 1))
    PUT(13, quad_product(1 + v)) PUT(14, quad_prefix_exclusive_sum(v))
}

// d = a * b + c of 8x8 in type T, through device and threadgroup memory with strides, origins and
// transposes.
template<typename T>
kernel void matrices(
        device const T * a [[buffer(0)]],
        device const T * b [[buffer(1)]],
        device T * d [[buffer(2)]],
        constant uint & stride [[buffer(3)]],
        ushort lane [[thread_index_in_simdgroup]]) {
    threadgroup T shared[8 * 12];
    simdgroup_matrix<T, 8, 8> ma, mb, mt, sum = make_filled_simdgroup_matrix<T, 8, 8>(T(0.5f));
    simdgroup_float8x8 wide = make_filled_simdgroup_matrix<float, 8>(1.0f);
    simdgroup_load(ma, a + 1, stride);
    simdgroup_load(mb, b, stride, ulong2(2, 1));
    simdgroup_load(mt, b, stride, 0, true);
    simdgroup_multiply_accumulate(sum, ma, mb, sum);
    simdgroup_store(sum, d, 8);
    simdgroup_multiply_accumulate(wide, ma, mt, wide);
    simdgroup_store(ma, shared + 1, 12);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort e = lane; e < 64; e += 32) d[64 + e] = shared[1 + e / 8 * 12 + e % 8] * T(2.0f);
    simdgroup_multiply(mt, ma, simdgroup_matrix<T, 8, 8>(T(3.0f)));
    simdgroup_store(mt, d, 8, ulong2(0, 16), true);
    threadgroup float out[64];
    simdgroup_store(wide, out);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort e = lane; e < 64; e += 32) d[192 + e] = T(out[e]);
}
typedef decltype(matrices<float>) matrices_t;
template [[host_name("matrices_float")]] kernel void matrices<float>(device const float *, device const float *, device float *, constant uint &, ushort);
template [[host_name("matrices_half")]] kernel void matrices<half>(device const half *, device const half *, device half *, constant uint &, ushort);
template [[host_name("matrices_bfloat")]] kernel void matrices<bfloat>(device const bfloat *, device const bfloat *, device bfloat *, constant uint &, ushort);
