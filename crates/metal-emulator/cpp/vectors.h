// Vectors (with swizzles), packed vectors and matrices.
//
// A vector is a class, not clang's ext_vector_type: that type rejects float4(a, b, c, d), and casts
// between vectors of the same size reinterpret their bits. Swizzles are clang properties
// (-fdeclspec): they take no storage, so a vector is a trivial type.
#pragma once
#pragma GCC system_header

namespace metal {
template<class T, int N> struct vec;
template<class T, int N> struct packed_vec;

#define MSL_GET2(a, b, i, j) \
    vec<T, 2> get_##a##b() const { return vec<T, 2>(d[i], d[j]); } \
    MSL_STRICT_ONLY(vec<T, 2> get_##a##b() const __constant { return vec<T, 2>(d[i], d[j]); })
#define MSL_GET3(a, b, c, i, j, k) \
    vec<T, 3> get_##a##b##c() const { return vec<T, 3>(d[i], d[j], d[k]); } \
    MSL_STRICT_ONLY(vec<T, 3> get_##a##b##c() const __constant { return vec<T, 3>(d[i], d[j], d[k]); })
#define MSL_GET4(a, b, c, e, i, j, k, l) \
    vec<T, 4> get_##a##b##c##e() const { return vec<T, 4>(d[i], d[j], d[k], d[l]); } \
    MSL_STRICT_ONLY(vec<T, 4> get_##a##b##c##e() const __constant { return vec<T, 4>(d[i], d[j], d[k], d[l]); })
// A component that occurs twice can be read but not written.
#define MSL_R2(a, b, i, j) MSL_GET2(a, b, i, j) __declspec(property(get = get_##a##b)) vec<T, 2> a##b;
#define MSL_W2(a, b, i, j) MSL_GET2(a, b, i, j) \
    void put_##a##b(vec<T, 2> v) { d[i] = v.d[0]; d[j] = v.d[1]; } \
    __declspec(property(get = get_##a##b, put = put_##a##b)) vec<T, 2> a##b;
#define MSL_R3(a, b, c, i, j, k) MSL_GET3(a, b, c, i, j, k) __declspec(property(get = get_##a##b##c)) vec<T, 3> a##b##c;
#define MSL_W3(a, b, c, i, j, k) MSL_GET3(a, b, c, i, j, k) \
    void put_##a##b##c(vec<T, 3> v) { d[i] = v.d[0]; d[j] = v.d[1]; d[k] = v.d[2]; } \
    __declspec(property(get = get_##a##b##c, put = put_##a##b##c)) vec<T, 3> a##b##c;
#define MSL_R4(a, b, c, e, i, j, k, l) MSL_GET4(a, b, c, e, i, j, k, l) __declspec(property(get = get_##a##b##c##e)) vec<T, 4> a##b##c##e;
#define MSL_W4(a, b, c, e, i, j, k, l) MSL_GET4(a, b, c, e, i, j, k, l) \
    void put_##a##b##c##e(vec<T, 4> v) { d[i] = v.d[0]; d[j] = v.d[1]; d[k] = v.d[2]; d[l] = v.d[3]; } \
    __declspec(property(get = get_##a##b##c##e, put = put_##a##b##c##e)) vec<T, 4> a##b##c##e;

template<class T, int N> struct vec_store;
template<class T> struct vec_store<T, 2> {
    union {
        T d[2];
        struct { T x, y; };
        struct { T r, g; };
    };
    MSL_R2(x, x, 0, 0) MSL_W2(x, y, 0, 1) MSL_W2(y, x, 1, 0) MSL_R2(y, y, 1, 1)
    MSL_R3(x, x, x, 0, 0, 0) MSL_R3(x, x, y, 0, 0, 1) MSL_R3(x, y, x, 0, 1, 0) MSL_R3(x, y, y, 0, 1, 1) MSL_R3(y, x, x, 1, 0, 0)
    MSL_R3(y, x, y, 1, 0, 1) MSL_R3(y, y, x, 1, 1, 0) MSL_R3(y, y, y, 1, 1, 1)
    MSL_R4(x, x, x, x, 0, 0, 0, 0) MSL_R4(x, x, x, y, 0, 0, 0, 1) MSL_R4(x, x, y, x, 0, 0, 1, 0) MSL_R4(x, x, y, y, 0, 0, 1, 1)
    MSL_R4(x, y, x, x, 0, 1, 0, 0) MSL_R4(x, y, x, y, 0, 1, 0, 1) MSL_R4(x, y, y, x, 0, 1, 1, 0) MSL_R4(x, y, y, y, 0, 1, 1, 1)
    MSL_R4(y, x, x, x, 1, 0, 0, 0) MSL_R4(y, x, x, y, 1, 0, 0, 1) MSL_R4(y, x, y, x, 1, 0, 1, 0) MSL_R4(y, x, y, y, 1, 0, 1, 1)
    MSL_R4(y, y, x, x, 1, 1, 0, 0) MSL_R4(y, y, x, y, 1, 1, 0, 1) MSL_R4(y, y, y, x, 1, 1, 1, 0) MSL_R4(y, y, y, y, 1, 1, 1, 1)
};
template<class T> struct vec_store<T, 3> {
    union {
        T d[3];
        struct { T x, y, z; };
        struct { T r, g, b; };
    };
    MSL_R2(x, x, 0, 0) MSL_W2(x, y, 0, 1) MSL_W2(x, z, 0, 2) MSL_W2(y, x, 1, 0) MSL_R2(y, y, 1, 1) MSL_W2(y, z, 1, 2)
    MSL_W2(z, x, 2, 0) MSL_W2(z, y, 2, 1) MSL_R2(z, z, 2, 2)
    MSL_R3(x, x, x, 0, 0, 0) MSL_R3(x, x, y, 0, 0, 1) MSL_R3(x, x, z, 0, 0, 2) MSL_R3(x, y, x, 0, 1, 0) MSL_R3(x, y, y, 0, 1, 1)
    MSL_W3(x, y, z, 0, 1, 2) MSL_R3(x, z, x, 0, 2, 0) MSL_W3(x, z, y, 0, 2, 1) MSL_R3(x, z, z, 0, 2, 2) MSL_R3(y, x, x, 1, 0, 0)
    MSL_R3(y, x, y, 1, 0, 1) MSL_W3(y, x, z, 1, 0, 2) MSL_R3(y, y, x, 1, 1, 0) MSL_R3(y, y, y, 1, 1, 1) MSL_R3(y, y, z, 1, 1, 2)
    MSL_W3(y, z, x, 1, 2, 0) MSL_R3(y, z, y, 1, 2, 1) MSL_R3(y, z, z, 1, 2, 2) MSL_R3(z, x, x, 2, 0, 0) MSL_W3(z, x, y, 2, 0, 1)
    MSL_R3(z, x, z, 2, 0, 2) MSL_W3(z, y, x, 2, 1, 0) MSL_R3(z, y, y, 2, 1, 1) MSL_R3(z, y, z, 2, 1, 2) MSL_R3(z, z, x, 2, 2, 0)
    MSL_R3(z, z, y, 2, 2, 1) MSL_R3(z, z, z, 2, 2, 2)
    MSL_R4(x, x, x, x, 0, 0, 0, 0) MSL_R4(x, x, x, y, 0, 0, 0, 1) MSL_R4(x, x, x, z, 0, 0, 0, 2) MSL_R4(x, x, y, x, 0, 0, 1, 0)
    MSL_R4(x, x, y, y, 0, 0, 1, 1) MSL_R4(x, x, y, z, 0, 0, 1, 2) MSL_R4(x, x, z, x, 0, 0, 2, 0) MSL_R4(x, x, z, y, 0, 0, 2, 1)
    MSL_R4(x, x, z, z, 0, 0, 2, 2) MSL_R4(x, y, x, x, 0, 1, 0, 0) MSL_R4(x, y, x, y, 0, 1, 0, 1) MSL_R4(x, y, x, z, 0, 1, 0, 2)
    MSL_R4(x, y, y, x, 0, 1, 1, 0) MSL_R4(x, y, y, y, 0, 1, 1, 1) MSL_R4(x, y, y, z, 0, 1, 1, 2) MSL_R4(x, y, z, x, 0, 1, 2, 0)
    MSL_R4(x, y, z, y, 0, 1, 2, 1) MSL_R4(x, y, z, z, 0, 1, 2, 2) MSL_R4(x, z, x, x, 0, 2, 0, 0) MSL_R4(x, z, x, y, 0, 2, 0, 1)
    MSL_R4(x, z, x, z, 0, 2, 0, 2) MSL_R4(x, z, y, x, 0, 2, 1, 0) MSL_R4(x, z, y, y, 0, 2, 1, 1) MSL_R4(x, z, y, z, 0, 2, 1, 2)
    MSL_R4(x, z, z, x, 0, 2, 2, 0) MSL_R4(x, z, z, y, 0, 2, 2, 1) MSL_R4(x, z, z, z, 0, 2, 2, 2) MSL_R4(y, x, x, x, 1, 0, 0, 0)
    MSL_R4(y, x, x, y, 1, 0, 0, 1) MSL_R4(y, x, x, z, 1, 0, 0, 2) MSL_R4(y, x, y, x, 1, 0, 1, 0) MSL_R4(y, x, y, y, 1, 0, 1, 1)
    MSL_R4(y, x, y, z, 1, 0, 1, 2) MSL_R4(y, x, z, x, 1, 0, 2, 0) MSL_R4(y, x, z, y, 1, 0, 2, 1) MSL_R4(y, x, z, z, 1, 0, 2, 2)
    MSL_R4(y, y, x, x, 1, 1, 0, 0) MSL_R4(y, y, x, y, 1, 1, 0, 1) MSL_R4(y, y, x, z, 1, 1, 0, 2) MSL_R4(y, y, y, x, 1, 1, 1, 0)
    MSL_R4(y, y, y, y, 1, 1, 1, 1) MSL_R4(y, y, y, z, 1, 1, 1, 2) MSL_R4(y, y, z, x, 1, 1, 2, 0) MSL_R4(y, y, z, y, 1, 1, 2, 1)
    MSL_R4(y, y, z, z, 1, 1, 2, 2) MSL_R4(y, z, x, x, 1, 2, 0, 0) MSL_R4(y, z, x, y, 1, 2, 0, 1) MSL_R4(y, z, x, z, 1, 2, 0, 2)
    MSL_R4(y, z, y, x, 1, 2, 1, 0) MSL_R4(y, z, y, y, 1, 2, 1, 1) MSL_R4(y, z, y, z, 1, 2, 1, 2) MSL_R4(y, z, z, x, 1, 2, 2, 0)
    MSL_R4(y, z, z, y, 1, 2, 2, 1) MSL_R4(y, z, z, z, 1, 2, 2, 2) MSL_R4(z, x, x, x, 2, 0, 0, 0) MSL_R4(z, x, x, y, 2, 0, 0, 1)
    MSL_R4(z, x, x, z, 2, 0, 0, 2) MSL_R4(z, x, y, x, 2, 0, 1, 0) MSL_R4(z, x, y, y, 2, 0, 1, 1) MSL_R4(z, x, y, z, 2, 0, 1, 2)
    MSL_R4(z, x, z, x, 2, 0, 2, 0) MSL_R4(z, x, z, y, 2, 0, 2, 1) MSL_R4(z, x, z, z, 2, 0, 2, 2) MSL_R4(z, y, x, x, 2, 1, 0, 0)
    MSL_R4(z, y, x, y, 2, 1, 0, 1) MSL_R4(z, y, x, z, 2, 1, 0, 2) MSL_R4(z, y, y, x, 2, 1, 1, 0) MSL_R4(z, y, y, y, 2, 1, 1, 1)
    MSL_R4(z, y, y, z, 2, 1, 1, 2) MSL_R4(z, y, z, x, 2, 1, 2, 0) MSL_R4(z, y, z, y, 2, 1, 2, 1) MSL_R4(z, y, z, z, 2, 1, 2, 2)
    MSL_R4(z, z, x, x, 2, 2, 0, 0) MSL_R4(z, z, x, y, 2, 2, 0, 1) MSL_R4(z, z, x, z, 2, 2, 0, 2) MSL_R4(z, z, y, x, 2, 2, 1, 0)
    MSL_R4(z, z, y, y, 2, 2, 1, 1) MSL_R4(z, z, y, z, 2, 2, 1, 2) MSL_R4(z, z, z, x, 2, 2, 2, 0) MSL_R4(z, z, z, y, 2, 2, 2, 1)
    MSL_R4(z, z, z, z, 2, 2, 2, 2)
    MSL_W3(r, g, b, 0, 1, 2) MSL_W2(r, g, 0, 1)
};
template<class T> struct vec_store<T, 4> {
    union {
        T d[4];
        struct { T x, y, z, w; };
        struct { T r, g, b, a; };
    };
    MSL_R2(x, x, 0, 0) MSL_W2(x, y, 0, 1) MSL_W2(x, z, 0, 2) MSL_W2(x, w, 0, 3) MSL_W2(y, x, 1, 0) MSL_R2(y, y, 1, 1)
    MSL_W2(y, z, 1, 2) MSL_W2(y, w, 1, 3) MSL_W2(z, x, 2, 0) MSL_W2(z, y, 2, 1) MSL_R2(z, z, 2, 2) MSL_W2(z, w, 2, 3)
    MSL_W2(w, x, 3, 0) MSL_W2(w, y, 3, 1) MSL_W2(w, z, 3, 2) MSL_R2(w, w, 3, 3)
    MSL_R3(x, x, x, 0, 0, 0) MSL_R3(x, x, y, 0, 0, 1) MSL_R3(x, x, z, 0, 0, 2) MSL_R3(x, x, w, 0, 0, 3) MSL_R3(x, y, x, 0, 1, 0)
    MSL_R3(x, y, y, 0, 1, 1) MSL_W3(x, y, z, 0, 1, 2) MSL_W3(x, y, w, 0, 1, 3) MSL_R3(x, z, x, 0, 2, 0) MSL_W3(x, z, y, 0, 2, 1)
    MSL_R3(x, z, z, 0, 2, 2) MSL_W3(x, z, w, 0, 2, 3) MSL_R3(x, w, x, 0, 3, 0) MSL_W3(x, w, y, 0, 3, 1) MSL_W3(x, w, z, 0, 3, 2)
    MSL_R3(x, w, w, 0, 3, 3) MSL_R3(y, x, x, 1, 0, 0) MSL_R3(y, x, y, 1, 0, 1) MSL_W3(y, x, z, 1, 0, 2) MSL_W3(y, x, w, 1, 0, 3)
    MSL_R3(y, y, x, 1, 1, 0) MSL_R3(y, y, y, 1, 1, 1) MSL_R3(y, y, z, 1, 1, 2) MSL_R3(y, y, w, 1, 1, 3) MSL_W3(y, z, x, 1, 2, 0)
    MSL_R3(y, z, y, 1, 2, 1) MSL_R3(y, z, z, 1, 2, 2) MSL_W3(y, z, w, 1, 2, 3) MSL_W3(y, w, x, 1, 3, 0) MSL_R3(y, w, y, 1, 3, 1)
    MSL_W3(y, w, z, 1, 3, 2) MSL_R3(y, w, w, 1, 3, 3) MSL_R3(z, x, x, 2, 0, 0) MSL_W3(z, x, y, 2, 0, 1) MSL_R3(z, x, z, 2, 0, 2)
    MSL_W3(z, x, w, 2, 0, 3) MSL_W3(z, y, x, 2, 1, 0) MSL_R3(z, y, y, 2, 1, 1) MSL_R3(z, y, z, 2, 1, 2) MSL_W3(z, y, w, 2, 1, 3)
    MSL_R3(z, z, x, 2, 2, 0) MSL_R3(z, z, y, 2, 2, 1) MSL_R3(z, z, z, 2, 2, 2) MSL_R3(z, z, w, 2, 2, 3) MSL_W3(z, w, x, 2, 3, 0)
    MSL_W3(z, w, y, 2, 3, 1) MSL_R3(z, w, z, 2, 3, 2) MSL_R3(z, w, w, 2, 3, 3) MSL_R3(w, x, x, 3, 0, 0) MSL_W3(w, x, y, 3, 0, 1)
    MSL_W3(w, x, z, 3, 0, 2) MSL_R3(w, x, w, 3, 0, 3) MSL_W3(w, y, x, 3, 1, 0) MSL_R3(w, y, y, 3, 1, 1) MSL_W3(w, y, z, 3, 1, 2)
    MSL_R3(w, y, w, 3, 1, 3) MSL_W3(w, z, x, 3, 2, 0) MSL_W3(w, z, y, 3, 2, 1) MSL_R3(w, z, z, 3, 2, 2) MSL_R3(w, z, w, 3, 2, 3)
    MSL_R3(w, w, x, 3, 3, 0) MSL_R3(w, w, y, 3, 3, 1) MSL_R3(w, w, z, 3, 3, 2) MSL_R3(w, w, w, 3, 3, 3)
    MSL_R4(x, x, x, x, 0, 0, 0, 0) MSL_R4(x, x, x, y, 0, 0, 0, 1) MSL_R4(x, x, x, z, 0, 0, 0, 2) MSL_R4(x, x, x, w, 0, 0, 0, 3)
    MSL_R4(x, x, y, x, 0, 0, 1, 0) MSL_R4(x, x, y, y, 0, 0, 1, 1) MSL_R4(x, x, y, z, 0, 0, 1, 2) MSL_R4(x, x, y, w, 0, 0, 1, 3)
    MSL_R4(x, x, z, x, 0, 0, 2, 0) MSL_R4(x, x, z, y, 0, 0, 2, 1) MSL_R4(x, x, z, z, 0, 0, 2, 2) MSL_R4(x, x, z, w, 0, 0, 2, 3)
    MSL_R4(x, x, w, x, 0, 0, 3, 0) MSL_R4(x, x, w, y, 0, 0, 3, 1) MSL_R4(x, x, w, z, 0, 0, 3, 2) MSL_R4(x, x, w, w, 0, 0, 3, 3)
    MSL_R4(x, y, x, x, 0, 1, 0, 0) MSL_R4(x, y, x, y, 0, 1, 0, 1) MSL_R4(x, y, x, z, 0, 1, 0, 2) MSL_R4(x, y, x, w, 0, 1, 0, 3)
    MSL_R4(x, y, y, x, 0, 1, 1, 0) MSL_R4(x, y, y, y, 0, 1, 1, 1) MSL_R4(x, y, y, z, 0, 1, 1, 2) MSL_R4(x, y, y, w, 0, 1, 1, 3)
    MSL_R4(x, y, z, x, 0, 1, 2, 0) MSL_R4(x, y, z, y, 0, 1, 2, 1) MSL_R4(x, y, z, z, 0, 1, 2, 2) MSL_W4(x, y, z, w, 0, 1, 2, 3)
    MSL_R4(x, y, w, x, 0, 1, 3, 0) MSL_R4(x, y, w, y, 0, 1, 3, 1) MSL_W4(x, y, w, z, 0, 1, 3, 2) MSL_R4(x, y, w, w, 0, 1, 3, 3)
    MSL_R4(x, z, x, x, 0, 2, 0, 0) MSL_R4(x, z, x, y, 0, 2, 0, 1) MSL_R4(x, z, x, z, 0, 2, 0, 2) MSL_R4(x, z, x, w, 0, 2, 0, 3)
    MSL_R4(x, z, y, x, 0, 2, 1, 0) MSL_R4(x, z, y, y, 0, 2, 1, 1) MSL_R4(x, z, y, z, 0, 2, 1, 2) MSL_W4(x, z, y, w, 0, 2, 1, 3)
    MSL_R4(x, z, z, x, 0, 2, 2, 0) MSL_R4(x, z, z, y, 0, 2, 2, 1) MSL_R4(x, z, z, z, 0, 2, 2, 2) MSL_R4(x, z, z, w, 0, 2, 2, 3)
    MSL_R4(x, z, w, x, 0, 2, 3, 0) MSL_W4(x, z, w, y, 0, 2, 3, 1) MSL_R4(x, z, w, z, 0, 2, 3, 2) MSL_R4(x, z, w, w, 0, 2, 3, 3)
    MSL_R4(x, w, x, x, 0, 3, 0, 0) MSL_R4(x, w, x, y, 0, 3, 0, 1) MSL_R4(x, w, x, z, 0, 3, 0, 2) MSL_R4(x, w, x, w, 0, 3, 0, 3)
    MSL_R4(x, w, y, x, 0, 3, 1, 0) MSL_R4(x, w, y, y, 0, 3, 1, 1) MSL_W4(x, w, y, z, 0, 3, 1, 2) MSL_R4(x, w, y, w, 0, 3, 1, 3)
    MSL_R4(x, w, z, x, 0, 3, 2, 0) MSL_W4(x, w, z, y, 0, 3, 2, 1) MSL_R4(x, w, z, z, 0, 3, 2, 2) MSL_R4(x, w, z, w, 0, 3, 2, 3)
    MSL_R4(x, w, w, x, 0, 3, 3, 0) MSL_R4(x, w, w, y, 0, 3, 3, 1) MSL_R4(x, w, w, z, 0, 3, 3, 2) MSL_R4(x, w, w, w, 0, 3, 3, 3)
    MSL_R4(y, x, x, x, 1, 0, 0, 0) MSL_R4(y, x, x, y, 1, 0, 0, 1) MSL_R4(y, x, x, z, 1, 0, 0, 2) MSL_R4(y, x, x, w, 1, 0, 0, 3)
    MSL_R4(y, x, y, x, 1, 0, 1, 0) MSL_R4(y, x, y, y, 1, 0, 1, 1) MSL_R4(y, x, y, z, 1, 0, 1, 2) MSL_R4(y, x, y, w, 1, 0, 1, 3)
    MSL_R4(y, x, z, x, 1, 0, 2, 0) MSL_R4(y, x, z, y, 1, 0, 2, 1) MSL_R4(y, x, z, z, 1, 0, 2, 2) MSL_W4(y, x, z, w, 1, 0, 2, 3)
    MSL_R4(y, x, w, x, 1, 0, 3, 0) MSL_R4(y, x, w, y, 1, 0, 3, 1) MSL_W4(y, x, w, z, 1, 0, 3, 2) MSL_R4(y, x, w, w, 1, 0, 3, 3)
    MSL_R4(y, y, x, x, 1, 1, 0, 0) MSL_R4(y, y, x, y, 1, 1, 0, 1) MSL_R4(y, y, x, z, 1, 1, 0, 2) MSL_R4(y, y, x, w, 1, 1, 0, 3)
    MSL_R4(y, y, y, x, 1, 1, 1, 0) MSL_R4(y, y, y, y, 1, 1, 1, 1) MSL_R4(y, y, y, z, 1, 1, 1, 2) MSL_R4(y, y, y, w, 1, 1, 1, 3)
    MSL_R4(y, y, z, x, 1, 1, 2, 0) MSL_R4(y, y, z, y, 1, 1, 2, 1) MSL_R4(y, y, z, z, 1, 1, 2, 2) MSL_R4(y, y, z, w, 1, 1, 2, 3)
    MSL_R4(y, y, w, x, 1, 1, 3, 0) MSL_R4(y, y, w, y, 1, 1, 3, 1) MSL_R4(y, y, w, z, 1, 1, 3, 2) MSL_R4(y, y, w, w, 1, 1, 3, 3)
    MSL_R4(y, z, x, x, 1, 2, 0, 0) MSL_R4(y, z, x, y, 1, 2, 0, 1) MSL_R4(y, z, x, z, 1, 2, 0, 2) MSL_W4(y, z, x, w, 1, 2, 0, 3)
    MSL_R4(y, z, y, x, 1, 2, 1, 0) MSL_R4(y, z, y, y, 1, 2, 1, 1) MSL_R4(y, z, y, z, 1, 2, 1, 2) MSL_R4(y, z, y, w, 1, 2, 1, 3)
    MSL_R4(y, z, z, x, 1, 2, 2, 0) MSL_R4(y, z, z, y, 1, 2, 2, 1) MSL_R4(y, z, z, z, 1, 2, 2, 2) MSL_R4(y, z, z, w, 1, 2, 2, 3)
    MSL_W4(y, z, w, x, 1, 2, 3, 0) MSL_R4(y, z, w, y, 1, 2, 3, 1) MSL_R4(y, z, w, z, 1, 2, 3, 2) MSL_R4(y, z, w, w, 1, 2, 3, 3)
    MSL_R4(y, w, x, x, 1, 3, 0, 0) MSL_R4(y, w, x, y, 1, 3, 0, 1) MSL_W4(y, w, x, z, 1, 3, 0, 2) MSL_R4(y, w, x, w, 1, 3, 0, 3)
    MSL_R4(y, w, y, x, 1, 3, 1, 0) MSL_R4(y, w, y, y, 1, 3, 1, 1) MSL_R4(y, w, y, z, 1, 3, 1, 2) MSL_R4(y, w, y, w, 1, 3, 1, 3)
    MSL_W4(y, w, z, x, 1, 3, 2, 0) MSL_R4(y, w, z, y, 1, 3, 2, 1) MSL_R4(y, w, z, z, 1, 3, 2, 2) MSL_R4(y, w, z, w, 1, 3, 2, 3)
    MSL_R4(y, w, w, x, 1, 3, 3, 0) MSL_R4(y, w, w, y, 1, 3, 3, 1) MSL_R4(y, w, w, z, 1, 3, 3, 2) MSL_R4(y, w, w, w, 1, 3, 3, 3)
    MSL_R4(z, x, x, x, 2, 0, 0, 0) MSL_R4(z, x, x, y, 2, 0, 0, 1) MSL_R4(z, x, x, z, 2, 0, 0, 2) MSL_R4(z, x, x, w, 2, 0, 0, 3)
    MSL_R4(z, x, y, x, 2, 0, 1, 0) MSL_R4(z, x, y, y, 2, 0, 1, 1) MSL_R4(z, x, y, z, 2, 0, 1, 2) MSL_W4(z, x, y, w, 2, 0, 1, 3)
    MSL_R4(z, x, z, x, 2, 0, 2, 0) MSL_R4(z, x, z, y, 2, 0, 2, 1) MSL_R4(z, x, z, z, 2, 0, 2, 2) MSL_R4(z, x, z, w, 2, 0, 2, 3)
    MSL_R4(z, x, w, x, 2, 0, 3, 0) MSL_W4(z, x, w, y, 2, 0, 3, 1) MSL_R4(z, x, w, z, 2, 0, 3, 2) MSL_R4(z, x, w, w, 2, 0, 3, 3)
    MSL_R4(z, y, x, x, 2, 1, 0, 0) MSL_R4(z, y, x, y, 2, 1, 0, 1) MSL_R4(z, y, x, z, 2, 1, 0, 2) MSL_W4(z, y, x, w, 2, 1, 0, 3)
    MSL_R4(z, y, y, x, 2, 1, 1, 0) MSL_R4(z, y, y, y, 2, 1, 1, 1) MSL_R4(z, y, y, z, 2, 1, 1, 2) MSL_R4(z, y, y, w, 2, 1, 1, 3)
    MSL_R4(z, y, z, x, 2, 1, 2, 0) MSL_R4(z, y, z, y, 2, 1, 2, 1) MSL_R4(z, y, z, z, 2, 1, 2, 2) MSL_R4(z, y, z, w, 2, 1, 2, 3)
    MSL_W4(z, y, w, x, 2, 1, 3, 0) MSL_R4(z, y, w, y, 2, 1, 3, 1) MSL_R4(z, y, w, z, 2, 1, 3, 2) MSL_R4(z, y, w, w, 2, 1, 3, 3)
    MSL_R4(z, z, x, x, 2, 2, 0, 0) MSL_R4(z, z, x, y, 2, 2, 0, 1) MSL_R4(z, z, x, z, 2, 2, 0, 2) MSL_R4(z, z, x, w, 2, 2, 0, 3)
    MSL_R4(z, z, y, x, 2, 2, 1, 0) MSL_R4(z, z, y, y, 2, 2, 1, 1) MSL_R4(z, z, y, z, 2, 2, 1, 2) MSL_R4(z, z, y, w, 2, 2, 1, 3)
    MSL_R4(z, z, z, x, 2, 2, 2, 0) MSL_R4(z, z, z, y, 2, 2, 2, 1) MSL_R4(z, z, z, z, 2, 2, 2, 2) MSL_R4(z, z, z, w, 2, 2, 2, 3)
    MSL_R4(z, z, w, x, 2, 2, 3, 0) MSL_R4(z, z, w, y, 2, 2, 3, 1) MSL_R4(z, z, w, z, 2, 2, 3, 2) MSL_R4(z, z, w, w, 2, 2, 3, 3)
    MSL_R4(z, w, x, x, 2, 3, 0, 0) MSL_W4(z, w, x, y, 2, 3, 0, 1) MSL_R4(z, w, x, z, 2, 3, 0, 2) MSL_R4(z, w, x, w, 2, 3, 0, 3)
    MSL_W4(z, w, y, x, 2, 3, 1, 0) MSL_R4(z, w, y, y, 2, 3, 1, 1) MSL_R4(z, w, y, z, 2, 3, 1, 2) MSL_R4(z, w, y, w, 2, 3, 1, 3)
    MSL_R4(z, w, z, x, 2, 3, 2, 0) MSL_R4(z, w, z, y, 2, 3, 2, 1) MSL_R4(z, w, z, z, 2, 3, 2, 2) MSL_R4(z, w, z, w, 2, 3, 2, 3)
    MSL_R4(z, w, w, x, 2, 3, 3, 0) MSL_R4(z, w, w, y, 2, 3, 3, 1) MSL_R4(z, w, w, z, 2, 3, 3, 2) MSL_R4(z, w, w, w, 2, 3, 3, 3)
    MSL_R4(w, x, x, x, 3, 0, 0, 0) MSL_R4(w, x, x, y, 3, 0, 0, 1) MSL_R4(w, x, x, z, 3, 0, 0, 2) MSL_R4(w, x, x, w, 3, 0, 0, 3)
    MSL_R4(w, x, y, x, 3, 0, 1, 0) MSL_R4(w, x, y, y, 3, 0, 1, 1) MSL_W4(w, x, y, z, 3, 0, 1, 2) MSL_R4(w, x, y, w, 3, 0, 1, 3)
    MSL_R4(w, x, z, x, 3, 0, 2, 0) MSL_W4(w, x, z, y, 3, 0, 2, 1) MSL_R4(w, x, z, z, 3, 0, 2, 2) MSL_R4(w, x, z, w, 3, 0, 2, 3)
    MSL_R4(w, x, w, x, 3, 0, 3, 0) MSL_R4(w, x, w, y, 3, 0, 3, 1) MSL_R4(w, x, w, z, 3, 0, 3, 2) MSL_R4(w, x, w, w, 3, 0, 3, 3)
    MSL_R4(w, y, x, x, 3, 1, 0, 0) MSL_R4(w, y, x, y, 3, 1, 0, 1) MSL_W4(w, y, x, z, 3, 1, 0, 2) MSL_R4(w, y, x, w, 3, 1, 0, 3)
    MSL_R4(w, y, y, x, 3, 1, 1, 0) MSL_R4(w, y, y, y, 3, 1, 1, 1) MSL_R4(w, y, y, z, 3, 1, 1, 2) MSL_R4(w, y, y, w, 3, 1, 1, 3)
    MSL_W4(w, y, z, x, 3, 1, 2, 0) MSL_R4(w, y, z, y, 3, 1, 2, 1) MSL_R4(w, y, z, z, 3, 1, 2, 2) MSL_R4(w, y, z, w, 3, 1, 2, 3)
    MSL_R4(w, y, w, x, 3, 1, 3, 0) MSL_R4(w, y, w, y, 3, 1, 3, 1) MSL_R4(w, y, w, z, 3, 1, 3, 2) MSL_R4(w, y, w, w, 3, 1, 3, 3)
    MSL_R4(w, z, x, x, 3, 2, 0, 0) MSL_W4(w, z, x, y, 3, 2, 0, 1) MSL_R4(w, z, x, z, 3, 2, 0, 2) MSL_R4(w, z, x, w, 3, 2, 0, 3)
    MSL_W4(w, z, y, x, 3, 2, 1, 0) MSL_R4(w, z, y, y, 3, 2, 1, 1) MSL_R4(w, z, y, z, 3, 2, 1, 2) MSL_R4(w, z, y, w, 3, 2, 1, 3)
    MSL_R4(w, z, z, x, 3, 2, 2, 0) MSL_R4(w, z, z, y, 3, 2, 2, 1) MSL_R4(w, z, z, z, 3, 2, 2, 2) MSL_R4(w, z, z, w, 3, 2, 2, 3)
    MSL_R4(w, z, w, x, 3, 2, 3, 0) MSL_R4(w, z, w, y, 3, 2, 3, 1) MSL_R4(w, z, w, z, 3, 2, 3, 2) MSL_R4(w, z, w, w, 3, 2, 3, 3)
    MSL_R4(w, w, x, x, 3, 3, 0, 0) MSL_R4(w, w, x, y, 3, 3, 0, 1) MSL_R4(w, w, x, z, 3, 3, 0, 2) MSL_R4(w, w, x, w, 3, 3, 0, 3)
    MSL_R4(w, w, y, x, 3, 3, 1, 0) MSL_R4(w, w, y, y, 3, 3, 1, 1) MSL_R4(w, w, y, z, 3, 3, 1, 2) MSL_R4(w, w, y, w, 3, 3, 1, 3)
    MSL_R4(w, w, z, x, 3, 3, 2, 0) MSL_R4(w, w, z, y, 3, 3, 2, 1) MSL_R4(w, w, z, z, 3, 3, 2, 2) MSL_R4(w, w, z, w, 3, 3, 2, 3)
    MSL_R4(w, w, w, x, 3, 3, 3, 0) MSL_R4(w, w, w, y, 3, 3, 3, 1) MSL_R4(w, w, w, z, 3, 3, 3, 2) MSL_R4(w, w, w, w, 3, 3, 3, 3)
    MSL_W3(r, g, b, 0, 1, 2) MSL_W2(r, g, 0, 1)
};

template<class T> struct components { enum { n = 1 }; };
template<class T, int N> struct components<vec<T, N>> { enum { n = N }; };
template<class T, int N> struct components<packed_vec<T, N>> { enum { n = N }; };
#ifdef MSL_STRICT
// Metal converts from `constant` implicitly; C++ for OpenCL needs a conversion for each type.
template<class T> struct components<__constant T> : components<T> {};
#endif

#define MSL_OPERATOR(op) \
    friend vec operator op(vec a, vec b) { \
        vec r; \
        for (int i = 0; i < N; i++) r.d[i] = (T) (a.d[i] op b.d[i]); \
        return r; \
    } \
    vec & operator op##=(vec b) { \
        for (int i = 0; i < N; i++) this->d[i] = (T) (this->d[i] op b.d[i]); \
        return *this; \
    }
#define MSL_COMPARISON(op) \
    friend vec<bool, N> operator op(vec a, vec b) { \
        vec<bool, N> r; \
        for (int i = 0; i < N; i++) r.d[i] = a.d[i] op b.d[i]; \
        return r; \
    }
#define MSL_OPERATORS \
    MSL_OPERATOR(+) MSL_OPERATOR(-) MSL_OPERATOR(*) MSL_OPERATOR(/) MSL_OPERATOR(%) MSL_OPERATOR(&) MSL_OPERATOR(|) MSL_OPERATOR(^) \
    MSL_OPERATOR(<<) MSL_OPERATOR(>>) \
    MSL_COMPARISON(<) MSL_COMPARISON(>) MSL_COMPARISON(<=) MSL_COMPARISON(>=) MSL_COMPARISON(==) MSL_COMPARISON(!=) \
    MSL_COMPARISON(&&) MSL_COMPARISON(||)

template<class T, int N> struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : vec_store<T, N> {
    typedef T element;
    vec() = default;
    vec(const vec &) = default;
    vec & operator=(const vec &) = default;
    constexpr vec(T s) {
        for (int i = 0; i < N; i++) this->d[i] = s;
    }
    template<class U> explicit constexpr vec(const vec<U, N> & o) {
        for (int i = 0; i < N; i++) this->d[i] = (T) o.d[i];
    }
    constexpr vec(const packed_vec<T, N> & o) {
        for (int i = 0; i < N; i++) this->d[i] = o.d[i];
    }
    template<class U> explicit constexpr vec(const packed_vec<U, N> & o) {
        for (int i = 0; i < N; i++) this->d[i] = (T) o.d[i];
    }
    template<class A, class B, class... R> constexpr vec(const A & a, const B & b, const R &... r) {
        static_assert((int) components<A>::n + (int) components<B>::n + (0 + ... + (int) components<R>::n) == N, "as many components as the vector has");
        int k = 0;
        put(k, a);
        put(k, b);
        (put(k, r), ...);
    }
#ifdef MSL_STRICT
    vec(const __constant vec & o) {
        for (int i = 0; i < N; i++) this->d[i] = o.d[i];
    }
    vec(const __constant packed_vec<T, N> & o) {
        for (int i = 0; i < N; i++) this->d[i] = o.d[i];
    }
    template<class U> explicit vec(const __constant vec<U, N> & o) {
        for (int i = 0; i < N; i++) this->d[i] = (T) o.d[i];
    }
    T operator[](int i) const __constant { return this->d[i]; }
#endif
    T & operator[](int i) { return this->d[i]; }
    T operator[](int i) const { return this->d[i]; }
    MSL_OPERATORS
    vec & operator++() { return *this += vec(T(1)); }
    vec & operator--() { return *this -= vec(T(1)); }
    vec operator++(int) { vec r = *this; *this += vec(T(1)); return r; }
    vec operator--(int) { vec r = *this; *this -= vec(T(1)); return r; }
    vec operator+() const { return *this; }
    vec operator-() const {
        vec r;
        for (int i = 0; i < N; i++) r.d[i] = -this->d[i];
        return r;
    }
    vec operator~() const {
        vec r;
        for (int i = 0; i < N; i++) r.d[i] = ~this->d[i];
        return r;
    }
    vec<bool, N> operator!() const {
        vec<bool, N> r;
        for (int i = 0; i < N; i++) r.d[i] = !this->d[i];
        return r;
    }
    // A braced list of fewer numbers than components; the others are 0.
    template<class... A> static constexpr vec braced(A... a) {
        vec r(T(0));
        int k = 0;
        (r.put(k, a), ...);
        return r;
    }

private:
    template<class A> constexpr void put(int & k, const A & a) { this->d[k++] = (T) a; }
    template<class U, int M> constexpr void put(int & k, const vec<U, M> & a) {
        for (int i = 0; i < M; i++) this->d[k++] = (T) a.d[i];
    }
    template<class U, int M> constexpr void put(int & k, const packed_vec<U, M> & a) {
        for (int i = 0; i < M; i++) this->d[k++] = (T) a.d[i];
    }
#ifdef MSL_STRICT
    template<class U, int M> void put(int & k, const __constant vec<U, M> & a) { k += M; }
    template<class U, int M> void put(int & k, const __constant packed_vec<U, M> & a) { k += M; }
#endif
};

template<class T, int N> struct packed_store;
template<class T> struct packed_store<T, 2> {
    union {
        T d[2];
        struct { T x, y; };
        struct { T r, g; };
    };
};
template<class T> struct packed_store<T, 3> {
    union {
        T d[3];
        struct { T x, y, z; };
        struct { T r, g, b; };
    };
};
template<class T> struct packed_store<T, 4> {
    union {
        T d[4];
        struct { T x, y, z, w; };
        struct { T r, g, b, a; };
    };
};
// Aligned like its element. Arithmetic is done on the vector that it converts to.
template<class T, int N> struct packed_vec : packed_store<T, N> {
    typedef vec<T, N> V;
    packed_vec() = default;
    packed_vec(const packed_vec &) = default;
    packed_vec & operator=(const packed_vec &) = default;
    constexpr packed_vec(const V & o) {
        for (int i = 0; i < N; i++) this->d[i] = o.d[i];
    }
    constexpr packed_vec(T s) : packed_vec(V(s)) {}
    template<class A, class B, class... R> constexpr packed_vec(const A & a, const B & b, const R &... r) : packed_vec(V(a, b, r...)) {}
#ifdef MSL_STRICT
    packed_vec(const __constant packed_vec & o) {
        for (int i = 0; i < N; i++) this->d[i] = o.d[i];
    }
    T operator[](int i) const __constant { return this->d[i]; }
#endif
    T & operator[](int i) { return this->d[i]; }
    T operator[](int i) const { return this->d[i]; }
#define MSL_PACKED(op) \
    friend V operator op(const packed_vec & a, const packed_vec & b) { return V(a) op V(b); } \
    friend V operator op(const packed_vec & a, T b) { return V(a) op V(b); } \
    friend V operator op(T a, const packed_vec & b) { return V(a) op V(b); } \
    packed_vec & operator op##=(V b) { return *this = packed_vec(V(*this) op b); }
    MSL_PACKED(+) MSL_PACKED(-) MSL_PACKED(*) MSL_PACKED(/)
};

// Column major: m[c][r].
template<class T, int C, int R> struct matrix {
    vec<T, R> c[C];
    matrix() = default;
    matrix(const matrix &) = default;
    matrix & operator=(const matrix &) = default;
    explicit matrix(T s) {
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++) c[i].d[j] = i == j ? s : T(0);
    }
    template<class U> explicit matrix(const matrix<U, C, R> & o) {
        for (int i = 0; i < C; i++) c[i] = vec<T, R>(o.c[i]);
    }
    template<class A, class B, class... X> matrix(const A & a, const B & b, const X &... x) : c{ vec<T, R>(a), vec<T, R>(b), vec<T, R>(x)... } {
        static_assert(sizeof...(X) + 2 == C, "as many columns as the matrix has");
    }
#ifdef MSL_STRICT
    matrix(const __constant matrix & o) {
        for (int i = 0; i < C; i++) c[i] = vec<T, R>(o.c[i]);
    }
    vec<T, R> operator[](int i) const __constant { return vec<T, R>(c[i]); }
#endif
    vec<T, R> & operator[](int i) { return c[i]; }
    const vec<T, R> & operator[](int i) const { return c[i]; }
    friend matrix operator*(T s, matrix m) {
        for (int i = 0; i < C; i++) m.c[i] *= s;
        return m;
    }
    friend matrix operator*(matrix m, T s) { return s * m; }
    friend matrix operator+(matrix a, const matrix & b) {
        for (int i = 0; i < C; i++) a.c[i] += b.c[i];
        return a;
    }
    friend matrix operator-(matrix a, const matrix & b) {
        for (int i = 0; i < C; i++) a.c[i] -= b.c[i];
        return a;
    }
    friend vec<T, R> operator*(const matrix & m, const vec<T, C> & v) {
        vec<T, R> r(T(0));
        for (int i = 0; i < C; i++) r += m.c[i] * v.d[i];
        return r;
    }
    friend vec<T, C> operator*(const vec<T, R> & v, const matrix & m) {
        vec<T, C> r(T(0));
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++) r.d[i] += v.d[j] * m.c[i].d[j];
        return r;
    }
};
template<class T, int K, int R, int C> matrix<T, C, R> operator*(const matrix<T, K, R> & a, const matrix<T, C, K> & b) {
    matrix<T, C, R> r;
    for (int i = 0; i < C; i++) r.c[i] = a * b.c[i];
    return r;
}
template<class T, int C, int R> matrix<T, R, C> transpose(const matrix<T, C, R> & m) {
    matrix<T, R, C> t;
    for (int i = 0; i < C; i++)
        for (int j = 0; j < R; j++) t.c[j].d[i] = m.c[i].d[j];
    return t;
}
}

#define MSL_VECTORS(t) \
    typedef metal::vec<t, 2> t##2; \
    typedef metal::vec<t, 3> t##3; \
    typedef metal::vec<t, 4> t##4; \
    typedef metal::packed_vec<t, 2> packed_##t##2; \
    typedef metal::packed_vec<t, 3> packed_##t##3; \
    typedef metal::packed_vec<t, 4> packed_##t##4; \
    namespace metal { \
    using ::t##2; \
    using ::t##3; \
    using ::t##4; \
    using ::packed_##t##2; \
    using ::packed_##t##3; \
    using ::packed_##t##4; \
    }
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(bfloat) MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(short) MSL_VECTORS(ushort)
MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(long) MSL_VECTORS(ulong)
typedef metal::vec<bool, 2> bool2;
typedef metal::vec<bool, 3> bool3;
typedef metal::vec<bool, 4> bool4;
#define MSL_MATRIX_TYPE(t, c, r) \
    typedef metal::matrix<t, c, r> t##c##x##r; \
    namespace metal { \
    using ::t##c##x##r; \
    }
#define MSL_MATRICES(t) \
    MSL_MATRIX_TYPE(t, 2, 2) MSL_MATRIX_TYPE(t, 2, 3) MSL_MATRIX_TYPE(t, 2, 4) MSL_MATRIX_TYPE(t, 3, 2) MSL_MATRIX_TYPE(t, 3, 3) \
    MSL_MATRIX_TYPE(t, 3, 4) MSL_MATRIX_TYPE(t, 4, 2) MSL_MATRIX_TYPE(t, 4, 3) MSL_MATRIX_TYPE(t, 4, 4)
MSL_MATRICES(float) MSL_MATRICES(half)
namespace metal {
using ::uchar;
using ::ushort;
using ::uint;
using ::ulong;
using ::bfloat;
using ::bool2;
using ::bool3;
using ::bool4;
}
