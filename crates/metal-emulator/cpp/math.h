// Scalar and vector functions. Halves are computed in float and rounded once. fast:: and precise::
// are the same functions.
//
// As in Apple's library of Metal 3.1, functions of bfloat are missing: the argument becomes a
// float, and so does the result. A scalar where a vector is expected is converted, whatever its
// type.
#pragma once
#pragma GCC system_header

template<class D, class S> MSL_INLINE D as_type(S s) {
    static_assert(sizeof(D) == sizeof(S), "as_type between types of one size");
    D d;
    __builtin_memcpy(&d, &s, sizeof d);
    return d;
}
namespace metal {
using ::as_type;

// Moves a result by `msl_ulp` units in the last place, up or down depending on the argument, within
// Metal's error bounds.
MSL_INLINE float msl_inexact(float argument, float result) {
#ifndef MSL_STRICT
    if (__builtin_expect(msl_ulp == 0, true)) return result;
    const uint bits = ::as_type<uint>(result), exponent = bits >> 23 & 255;
    if (exponent < 2 || exponent > 253) return result;
    const bool up = (::as_type<uint>(argument) * 2654435761u >> 31) != 0;
    return ::as_type<float>(up ? bits + msl_ulp : bits - msl_ulp);
#else
    return result;
#endif
}

// A type from which no template argument is deduced.
template<class T> struct msl_same {
    typedef T type;
};
template<class T, int N> using msl_any = typename msl_same<vec<T, N>>::type;
// A vector and a scalar.
#define MSL_MIXED(name) \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, msl_any<T, N> b) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i], b.d[i]); \
        return a; \
    } \
    template<class T, int N> MSL_INLINE vec<T, N> name(msl_any<T, N> a, vec<T, N> b) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i], b.d[i]); \
        return a; \
    }

// ---- one argument
#define MSL_F1(name, expression) \
    MSL_INLINE float name(float x) { return expression; } \
    MSL_INLINE half name(half h) { float x = (float) h; return (half) (expression); } \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i]); \
        return a; \
    }
// ---- two arguments
#define MSL_F2(name, expression) \
    MSL_INLINE float name(float x, float y) { return expression; } \
    MSL_INLINE half name(half h, half k) { float x = (float) h, y = (float) k; return (half) (expression); } \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i], b.d[i]); \
        return a; \
    } \
    MSL_MIXED(name)
#define MSL_FUNCTIONS \
    MSL_F1(sqrt, __builtin_sqrtf(x)) MSL_F1(rsqrt, msl_inexact(x, 1.0f / __builtin_sqrtf(x))) \
    MSL_F1(exp, msl_inexact(x, __builtin_expf(x))) MSL_F1(exp2, msl_inexact(x, __builtin_exp2f(x))) MSL_F1(exp10, msl_inexact(x, __builtin_powf(10.0f, x))) \
    MSL_F1(log, __builtin_logf(x)) MSL_F1(log2, __builtin_log2f(x)) MSL_F1(log10, __builtin_log10f(x)) \
    MSL_F1(sin, msl_inexact(x, __builtin_sinf(x))) MSL_F1(cos, msl_inexact(x, __builtin_cosf(x))) MSL_F1(tan, __builtin_tanf(x)) \
    MSL_F1(sinpi, __builtin_sinf(M_PI_F * x)) MSL_F1(cospi, __builtin_cosf(M_PI_F * x)) MSL_F1(tanpi, __builtin_tanf(M_PI_F * x)) \
    MSL_F1(asin, __builtin_asinf(x)) MSL_F1(acos, __builtin_acosf(x)) MSL_F1(atan, __builtin_atanf(x)) \
    MSL_F1(sinh, __builtin_sinhf(x)) MSL_F1(cosh, __builtin_coshf(x)) MSL_F1(tanh, __builtin_tanhf(x)) \
    MSL_F1(asinh, __builtin_asinhf(x)) MSL_F1(acosh, __builtin_acoshf(x)) MSL_F1(atanh, __builtin_atanhf(x)) \
    MSL_F1(floor, __builtin_floorf(x)) MSL_F1(ceil, __builtin_ceilf(x)) MSL_F1(trunc, __builtin_truncf(x)) \
    MSL_F1(round, __builtin_roundf(x)) MSL_F1(rint, __builtin_rintf(x)) MSL_F1(fabs, __builtin_fabsf(x)) \
    MSL_F1(fract, __builtin_fminf(x - __builtin_floorf(x), 0.99999994f)) \
    MSL_F1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x != x ? 0.0f : x) MSL_F1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f)) \
    MSL_F2(pow, __builtin_powf(x, y)) MSL_F2(powr, __builtin_powf(x, y)) MSL_F2(fmod, __builtin_fmodf(x, y)) \
    MSL_F2(atan2, __builtin_atan2f(x, y)) MSL_F2(fmax, __builtin_fmaxf(x, y)) MSL_F2(fmin, __builtin_fminf(x, y)) \
    MSL_F2(copysign, __builtin_copysignf(x, y)) MSL_F2(fdim, __builtin_fdimf(x, y)) MSL_F2(divide, x / y) \
    MSL_F2(step, y < x ? 0.0f : 1.0f) \
    MSL_INLINE float sincos(float x, thread float & c) { \
        c = msl_inexact(x, __builtin_cosf(x)); \
        return msl_inexact(x, __builtin_sinf(x)); \
    }
MSL_FUNCTIONS
namespace fast {
MSL_FUNCTIONS
}
namespace precise {
MSL_FUNCTIONS
}

MSL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_INLINE half fma(half a, half b, half c) { return (half) __builtin_fmaf((float) a, (float) b, (float) c); }
MSL_INLINE float mad(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_INLINE float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
MSL_INLINE half ldexp(half x, int n) { return (half) __builtin_ldexpf((float) x, n); }
MSL_INLINE float frexp(float x, thread int & n) { int k; float r = __builtin_frexpf(x, &k); n = k; return r; }
MSL_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
MSL_INLINE int ilogb(float x) { return __builtin_ilogbf(x); }
MSL_INLINE float modf(float x, thread float & whole) { whole = __builtin_truncf(x); return __builtin_copysignf(__builtin_isinf(x) ? 0.0f : x - whole, x); }
template<class T, int N> MSL_INLINE vec<T, N> fma(vec<T, N> a, msl_any<T, N> b, msl_any<T, N> c) {
    for (int i = 0; i < N; i++) a.d[i] = fma(a.d[i], b.d[i], c.d[i]);
    return a;
}
template<int N> MSL_INLINE vec<float, N> ldexp(vec<float, N> a, vec<int, N> n) {
    for (int i = 0; i < N; i++) a.d[i] = ldexp(a.d[i], n.d[i]);
    return a;
}

// ---- classes of numbers
#define MSL_CLASS(name, expression) \
    MSL_INLINE bool name(float x) { return expression; } \
    MSL_INLINE bool name(half h) { float x = (float) h; return expression; } \
    template<class T, int N> MSL_INLINE vec<bool, N> name(vec<T, N> a) { \
        vec<bool, N> r; \
        for (int i = 0; i < N; i++) r.d[i] = name(a.d[i]); \
        return r; \
    }
MSL_CLASS(isnan, x != x)
MSL_CLASS(isinf, __builtin_isinf(x) != 0)
MSL_CLASS(isfinite, __builtin_isfinite(x) != 0)
MSL_CLASS(signbit, (::as_type<uint>(x) >> 31) != 0)

// ---- min, max, clamp, select for every type
#define MSL_ORDERED(T) \
    MSL_INLINE T min(T a, T b) { return b < a ? b : a; } \
    MSL_INLINE T max(T a, T b) { return a < b ? b : a; } \
    MSL_INLINE T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); } \
    MSL_INLINE T select(T a, T b, bool c) { return c ? b : a; }
// If one argument is NaN, the result is the other, as in fmin and fmax.
#define MSL_MINMAX(T) \
    MSL_INLINE T min(T a, T b) { return (T) __builtin_fminf((float) a, (float) b); } \
    MSL_INLINE T max(T a, T b) { return (T) __builtin_fmaxf((float) a, (float) b); } \
    MSL_INLINE T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); } \
    MSL_INLINE T select(T a, T b, bool c) { return c ? b : a; }
#define MSL_FLOAT_MINMAX MSL_MINMAX(float) MSL_MINMAX(half)
MSL_FLOAT_MINMAX
MSL_ORDERED(char) MSL_ORDERED(uchar) MSL_ORDERED(short) MSL_ORDERED(ushort) MSL_ORDERED(int) MSL_ORDERED(uint) MSL_ORDERED(long) MSL_ORDERED(ulong)
#define MSL_VECTOR2(name) \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i], b.d[i]); \
        return a; \
    } \
    MSL_MIXED(name)
#define MSL_VECTOR_CLAMP \
    template<class T, int N> MSL_INLINE vec<T, N> clamp(vec<T, N> x, msl_any<T, N> lo, msl_any<T, N> hi) { \
        for (int i = 0; i < N; i++) x.d[i] = clamp(x.d[i], lo.d[i], hi.d[i]); \
        return x; \
    }
MSL_VECTOR2(min) MSL_VECTOR2(max) MSL_VECTOR_CLAMP
namespace fast {
MSL_FLOAT_MINMAX
MSL_VECTOR2(min) MSL_VECTOR2(max) MSL_VECTOR_CLAMP
}
namespace precise {
MSL_FLOAT_MINMAX
MSL_VECTOR2(min) MSL_VECTOR2(max) MSL_VECTOR_CLAMP
}
template<class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
    for (int i = 0; i < N; i++) a.d[i] = c.d[i] ? b.d[i] : a.d[i];
    return a;
}
template<class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, bool c) { return c ? b : a; }
template<class T> MSL_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); }
template<class T> MSL_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); }
template<class T> MSL_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }

MSL_INLINE float mix(float a, float b, float t) { return a + (b - a) * t; }
MSL_INLINE half mix(half a, half b, half t) { return a + (b - a) * t; }
template<class T, int N> MSL_INLINE vec<T, N> mix(vec<T, N> a, vec<T, N> b, msl_any<T, N> t) { return a + (b - a) * t; }
MSL_INLINE float smoothstep(float lo, float hi, float x) {
    const float t = saturate((x - lo) / (hi - lo));
    return t * t * (3.0f - 2.0f * t);
}

// ---- geometry
template<class T, int N> MSL_INLINE T dot(vec<T, N> a, vec<T, N> b) {
    T s = a.d[0] * b.d[0];
    for (int i = 1; i < N; i++) s = s + a.d[i] * b.d[i];
    return s;
}
template<class T, int N> MSL_INLINE T length_squared(vec<T, N> a) { return dot(a, a); }
template<class T, int N> MSL_INLINE T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template<class T, int N> MSL_INLINE T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template<class T, int N> MSL_INLINE vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template<class T> MSL_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
    return vec<T, 3>(a.d[1] * b.d[2] - a.d[2] * b.d[1], a.d[2] * b.d[0] - a.d[0] * b.d[2], a.d[0] * b.d[1] - a.d[1] * b.d[0]);
}

// ---- relational
template<int N> MSL_INLINE bool any(vec<bool, N> a) {
    bool r = false;
    for (int i = 0; i < N; i++) r |= a.d[i];
    return r;
}
template<int N> MSL_INLINE bool all(vec<bool, N> a) {
    bool r = true;
    for (int i = 0; i < N; i++) r &= a.d[i];
    return r;
}

// ---- integers
MSL_INLINE float abs(float x) { return __builtin_fabsf(x); }
MSL_INLINE half abs(half x) { return (half) __builtin_fabsf((float) x); }
#define MSL_INTEGERS(T, U, bits) \
    MSL_INLINE T abs(T x) { return (T) (x < 0 ? -x : x); } \
    MSL_INLINE U abs(U x) { return x; } \
    MSL_INLINE U absdiff(T a, T b) { return a < b ? (U) ((U) b - (U) a) : (U) ((U) a - (U) b); } \
    MSL_INLINE U absdiff(U a, U b) { return (U) (a < b ? b - a : a - b); } \
    MSL_INTEGER(T, U, bits) MSL_INTEGER(U, U, bits)
#define MSL_INTEGER(T, U, bits) \
    MSL_INLINE T popcount(T x) { return (T) __builtin_popcountl((ulong) (U) x); } \
    MSL_INLINE T clz(T x) { return (T) ((U) x ? __builtin_clzl((ulong) (U) x) - (64 - bits) : bits); } \
    MSL_INLINE T ctz(T x) { return (T) ((U) x ? __builtin_ctzl((ulong) (U) x) : bits); } \
    MSL_INLINE T rotate(T x, T by) { \
        const uint k = (uint) by & (bits - 1); \
        return k ? (T) (U) (((U) x << k) | ((U) x >> (bits - k))) : x; \
    } \
    MSL_INLINE T reverse_bits(T x) { \
        U r = 0; \
        for (int i = 0; i < bits; i++) r = (U) (r | (U) (((U) x >> i & 1) << (bits - 1 - i))); \
        return (T) r; \
    } \
    MSL_INLINE T extract_bits(T x, uint offset, uint n) { \
        if (n == 0) return 0; \
        return (T) ((T) (U) ((U) x << (bits - n - offset)) >> (bits - n)); \
    } \
    MSL_INLINE T insert_bits(T base, T insert, uint offset, uint n) { \
        const U mask = n == 0 ? (U) 0 : (U) ((U) (~(U) 0 >> (bits - n)) << offset); \
        return (T) (((U) base & (U) ~mask) | ((U) ((U) insert << offset) & mask)); \
    } \
    MSL_INLINE T addsat(T a, T b) { \
        T r; \
        if (!__builtin_add_overflow(a, b, &r)) return r; \
        return b < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max(); \
    } \
    MSL_INLINE T subsat(T a, T b) { \
        T r; \
        if (!__builtin_sub_overflow(a, b, &r)) return r; \
        return b < 0 ? numeric_limits<T>::max() : numeric_limits<T>::min(); \
    }
MSL_INTEGERS(char, uchar, 8) MSL_INTEGERS(short, ushort, 16) MSL_INTEGERS(int, uint, 32) MSL_INTEGERS(long, ulong, 64)
MSL_INLINE int mulhi(int a, int b) { return (int) (((long) a * b) >> 32); }
MSL_INLINE uint mulhi(uint a, uint b) { return (uint) (((ulong) a * b) >> 32); }
MSL_INLINE int mul24(int a, int b) { return (int) ((uint) (a << 8 >> 8) * (uint) (b << 8 >> 8)); }
MSL_INLINE uint mul24(uint a, uint b) { return (a & 0xffffffu) * (b & 0xffffffu); }
MSL_INLINE int mad24(int a, int b, int c) { return mul24(a, b) + c; }
MSL_INLINE uint mad24(uint a, uint b, uint c) { return mul24(a, b) + c; }
#define MSL_VECTOR1(name) \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i]); \
        return a; \
    }
MSL_VECTOR1(abs) MSL_VECTOR1(popcount) MSL_VECTOR1(clz) MSL_VECTOR1(ctz) MSL_VECTOR1(reverse_bits)
#define MSL_VECTOR_PAIR(name) \
    template<class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
        for (int i = 0; i < N; i++) a.d[i] = name(a.d[i], b.d[i]); \
        return a; \
    }
MSL_VECTOR_PAIR(addsat) MSL_VECTOR_PAIR(subsat) MSL_VECTOR_PAIR(mulhi) MSL_VECTOR_PAIR(rotate)

// ---- packed normalised integers
MSL_INLINE vec<float, 4> unpack_unorm4x8_to_float(uint x) {
    return vec<float, 4>((float) (x & 255), (float) (x >> 8 & 255), (float) (x >> 16 & 255), (float) (x >> 24)) / 255.0f;
}
MSL_INLINE vec<half, 4> unpack_unorm4x8_to_half(uint x) { return vec<half, 4>(unpack_unorm4x8_to_float(x)); }
MSL_INLINE vec<float, 4> unpack_snorm4x8_to_float(uint x) {
    return max(vec<float, 4>((float) (char) x, (float) (char) (x >> 8), (float) (char) (x >> 16), (float) (char) (x >> 24)) / 127.0f, -1.0f);
}
MSL_INLINE uint pack_float_to_unorm4x8(vec<float, 4> v) {
    uint r = 0;
    for (int i = 0; i < 4; i++) r |= (uint) __builtin_rintf(saturate(v.d[i]) * 255.0f) << (8 * i);
    return r;
}
MSL_INLINE vec<float, 2> unpack_unorm2x16_to_float(uint x) { return vec<float, 2>((float) (x & 65535), (float) (x >> 16)) / 65535.0f; }
}
