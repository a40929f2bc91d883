// simdgroup_matrix<T, 8, 8>: each lane holds two elements, in the layout that Apple's GPUs use.
// Products are summed in float in the order of k, and rounded to the destination's type once.
#pragma once
#pragma GCC system_header

namespace metal {
// The row and the first of the two columns that a lane holds.
#define MSL_ELEMENT(lane) const unsigned quad_ = (lane) / 4, row_ = (quad_ & 4) + ((lane) / 2) % 4, column_ = (quad_ & 2) * 2 + ((lane) % 2) * 2

template<class T, int C = 8, int R = 8> struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "simdgroup matrices are 8x8");
    static_assert(is_floating_point<T>::value, "simdgroup matrices are of half, bfloat or float");
    vec<T, 2> held;
    simdgroup_matrix() = default;
    // The two elements that a lane holds.
    thread vec<T, 2> & thread_elements() { return held; }
    // A diagonal matrix.
    explicit simdgroup_matrix(T v) {
        MSL_ELEMENT(msl_lane());
        held = vec<T, 2>(row_ == column_ ? v : T(0), row_ == column_ + 1 ? v : T(0));
    }
};
template<class T, int C, int R = C> MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, C, R> m;
    m.held = vec<T, 2>(v, v);
    return m;
}
template<class T, int C, int R = C> MSL_INLINE simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T v) { return simdgroup_matrix<T, C, R>(v); }

template<class P> struct msl_pointee;
#ifdef MSL_STRICT
template<class T> struct msl_pointee<T device *> { typedef T type; };
template<class T> struct msl_pointee<const T device *> { typedef T type; };
template<class T> struct msl_pointee<T threadgroup *> { typedef T type; };
template<class T> struct msl_pointee<const T threadgroup *> { typedef T type; };
#else
template<class T> struct msl_pointee<T *> { typedef T type; };
template<class T> struct msl_pointee<const T *> { typedef T type; };
template<class T> struct msl_pointee<volatile T *> { typedef T type; };
#endif
// Element (r, c) of the matrix is p[(origin.y + r) * stride + origin.x + c], or of its transpose.
template<class T, class P> MSL_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8> & m, P p, ulong stride = 8, vec<ulong, 2> origin = vec<ulong, 2>(0ul), bool transposed = false) {
    static_assert(is_same<T, typename msl_pointee<P>::type>::value, "simdgroup_load from memory of the matrix's own type");
    MSL_ELEMENT(msl_lane());
    p += origin.x + origin.y * stride;
    if (transposed) m.held = vec<T, 2>(p[column_ * stride + row_], p[(column_ + 1) * stride + row_]);
    else m.held = vec<T, 2>(p[row_ * stride + column_], p[row_ * stride + column_ + 1]);
}
template<class T, class P> MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P p, ulong stride = 8, vec<ulong, 2> origin = vec<ulong, 2>(0ul), bool transposed = false) {
    static_assert(is_same<T, typename msl_pointee<P>::type>::value, "simdgroup_store to memory of the matrix's own type");
    MSL_ELEMENT(msl_lane());
    p += origin.x + origin.y * stride;
    if (transposed) {
        p[column_ * stride + row_] = m.held.x;
        p[(column_ + 1) * stride + row_] = m.held.y;
    } else {
        p[row_ * stride + column_] = m.held.x;
        p[row_ * stride + column_ + 1] = m.held.y;
    }
}
// d = a * b + c
template<class D, class A, class B, class C> MSL_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> & d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_SITE) {
    MSL_HERE;
    const float in[6] = { (float) a.held.x, (float) a.held.y, (float) b.held.x, (float) b.held.y, (float) c.held.x, (float) c.held.y };
    float out[2];
    msl_matrix_multiply(in, &site, out);
    d.held = vec<D, 2>((D) out[0], (D) out[1]);
}
template<class D, class A, class B> MSL_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8> & d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, MSL_SITE) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>((D) 0.0f), MSL_PASS);
}
}
typedef metal::simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef metal::simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef metal::simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
namespace metal {
using ::simdgroup_float8x8;
using ::simdgroup_half8x8;
using ::simdgroup_bfloat8x8;
}
