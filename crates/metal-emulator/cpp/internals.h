// Names of Apple's library that other projects use after `#pragma METAL internals : enable`. The
// last argument of a mathematical function chooses between fast and precise; both are the same
// here.
#pragma once
#pragma GCC system_header

namespace metal {
template<class... B> struct _disjunction : false_type {};
template<class A, class... B> struct _disjunction<A, B...> : bool_constant<(bool) A::value || _disjunction<B...>::value> {};
}
enum { __METAL_PRECISE_MATH__, __METAL_FAST_MATH__, __METAL_MAYBE_FAST_MATH__ };
#define MSL_INTERNAL1(name) MSL_INLINE float __metal_##name(float x, int) { return metal::name(x); }
#define MSL_INTERNAL2(name) MSL_INLINE float __metal_##name(float x, float y, int) { return metal::name(x, y); }
MSL_INTERNAL1(fabs) MSL_INTERNAL1(trunc) MSL_INTERNAL1(tanpi) MSL_INTERNAL1(tanh) MSL_INTERNAL1(tan) MSL_INTERNAL1(sqrt)
MSL_INTERNAL1(sinpi) MSL_INTERNAL1(sinh) MSL_INTERNAL1(sin) MSL_INTERNAL1(rsqrt) MSL_INTERNAL1(round) MSL_INTERNAL1(rint)
MSL_INTERNAL1(log2) MSL_INTERNAL1(log10) MSL_INTERNAL1(log) MSL_INTERNAL1(fract) MSL_INTERNAL1(floor) MSL_INTERNAL1(exp2)
MSL_INTERNAL1(exp10) MSL_INTERNAL1(exp) MSL_INTERNAL1(cospi) MSL_INTERNAL1(cosh) MSL_INTERNAL1(cos) MSL_INTERNAL1(ceil)
MSL_INTERNAL1(atanh) MSL_INTERNAL1(atan) MSL_INTERNAL1(asinh) MSL_INTERNAL1(asin) MSL_INTERNAL1(acosh) MSL_INTERNAL1(acos)
MSL_INTERNAL2(fmin) MSL_INTERNAL2(fmax) MSL_INTERNAL2(fmod) MSL_INTERNAL2(pow) MSL_INTERNAL2(powr) MSL_INTERNAL2(divide)
MSL_INTERNAL2(atan2)
MSL_INLINE float __metal_nextafter(float x, float y) { return metal::nextafter(x, y); }
MSL_INLINE float __metal_fma(float x, float y, float z) { return metal::fma(x, y, z); }
MSL_INLINE float __metal_fmin3(float x, float y, float z, int) { return metal::min3(x, y, z); }
MSL_INLINE float __metal_fmax3(float x, float y, float z, int) { return metal::max3(x, y, z); }
MSL_INLINE float __metal_fmedian3(float x, float y, float z, int) { return metal::median3(x, y, z); }
MSL_INLINE float __metal_ldexp(float x, int n, int) { return metal::ldexp(x, n); }
MSL_INLINE float __metal_frexp(float x, thread int * n) { return metal::frexp(x, *n); }

template<class T> MSL_INLINE T __metal_get_simdgroup_size(T) { return 32; }
template<class T> MSL_INLINE T __metal_get_thread_index_in_simdgroup(T) { return (T) msl_lane(); }
#define MSL_INTERNAL_SIMD(name) \
    template<class T> MSL_INLINE T __metal_simd_##name(T v, MSL_SITE) { return metal::simd_##name(v, MSL_PASS); }
MSL_INTERNAL_SIMD(sum) MSL_INTERNAL_SIMD(product) MSL_INTERNAL_SIMD(max) MSL_INTERNAL_SIMD(min) MSL_INTERNAL_SIMD(xor)
MSL_INLINE float __metal_simd_xor(float v, MSL_SITE) { return as_type<float>(metal::simd_xor(as_type<uint>(v), MSL_PASS)); }
MSL_INTERNAL_SIMD(prefix_inclusive_sum) MSL_INTERNAL_SIMD(prefix_exclusive_sum) MSL_INTERNAL_SIMD(prefix_inclusive_product)
MSL_INTERNAL_SIMD(prefix_exclusive_product)
#define MSL_INTERNAL_SHUFFLE(name) \
    template<class T> MSL_INLINE T __metal_simd_##name(T v, ushort k, MSL_SITE) { return metal::simd_##name(v, k, MSL_PASS); }
MSL_INTERNAL_SHUFFLE(broadcast) MSL_INTERNAL_SHUFFLE(shuffle) MSL_INTERNAL_SHUFFLE(shuffle_up) MSL_INTERNAL_SHUFFLE(shuffle_down)
MSL_INTERNAL_SHUFFLE(shuffle_xor) MSL_INTERNAL_SHUFFLE(shuffle_rotate_up) MSL_INTERNAL_SHUFFLE(shuffle_rotate_down)
// Groups of fewer than 32 lanes are a fault.
#define MSL_INTERNAL_FILL(name) \
    template<class T> MSL_INLINE T __metal_simd_##name(T v, T fill, ushort k, ushort group, MSL_SITE) { \
        MSL_HERE; \
        if (group != 32) msl_inactive_lane(group, &site); \
        return metal::simd_##name(v, fill, k, MSL_PASS); \
    }
MSL_INTERNAL_FILL(shuffle_and_fill_up) MSL_INTERNAL_FILL(shuffle_and_fill_down)
