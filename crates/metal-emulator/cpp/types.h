// Scalar types, traits and limits.
#pragma once
#pragma GCC system_header

namespace metal {
template<class T, T V> struct integral_constant {
    enum : T { value = V };
    typedef T value_type;
    constexpr operator T() const { return V; }
};
template<> struct integral_constant<bool, true> {
    enum : bool { value = true };
    constexpr operator bool() const { return true; }
};
template<> struct integral_constant<bool, false> {
    enum : bool { value = false };
    constexpr operator bool() const { return false; }
};
template<bool V> using bool_constant = integral_constant<bool, V>;
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template<class A, class B> struct is_same : false_type {};
template<class A> struct is_same<A, A> : true_type {};
template<bool B, class T, class F> struct conditional { typedef T type; };
template<class T, class F> struct conditional<false, T, F> { typedef F type; };
template<bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template<bool B, class T = void> struct enable_if {};
template<class T> struct enable_if<true, T> { typedef T type; };
template<bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template<class T> struct remove_const { typedef T type; };
template<class T> struct remove_const<const T> { typedef T type; };
template<class T> struct remove_volatile { typedef T type; };
template<class T> struct remove_volatile<volatile T> { typedef T type; };
template<class T> struct remove_cv { typedef typename remove_volatile<typename remove_const<T>::type>::type type; };
template<class T> using remove_cv_t = typename remove_cv<T>::type;
template<class T> struct remove_reference { typedef T type; };
template<class T> struct remove_reference<T &> { typedef T type; };
template<class T> using remove_reference_t = typename remove_reference<T>::type;
template<class T> struct is_integral : false_type {};
#define MSL_INTEGRAL(t) template<> struct is_integral<t> : true_type {};
MSL_INTEGRAL(bool) MSL_INTEGRAL(char) MSL_INTEGRAL(signed char) MSL_INTEGRAL(uchar) MSL_INTEGRAL(short) MSL_INTEGRAL(ushort)
MSL_INTEGRAL(int) MSL_INTEGRAL(uint) MSL_INTEGRAL(long) MSL_INTEGRAL(ulong)
template<class A, class B> struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template<class T> struct is_pointer : bool_constant<__is_pointer(T)> {};
template<class T> struct is_void : bool_constant<__is_void(T)> {};
// Constants have the address space of constant memory in their type.
template<class T> struct remove_addrspace { typedef T type; };
#ifdef MSL_STRICT
template<class T> struct remove_addrspace<__constant T> { typedef T type; };
template<class T> struct remove_addrspace<__global T> { typedef T type; };
template<class T> struct remove_addrspace<__local T> { typedef T type; };
template<class T> struct remove_addrspace<__private T> { typedef T type; };
#endif
template<class T> using remove_addrspace_t = remove_cv_t<typename remove_addrspace<T>::type>;
}

// bfloat keeps 16 bits and computes in float: each operation is rounded to nearest even.
struct bfloat {
    ushort bits;
    bfloat() = default;
    // As in Metal, a float is not converted implicitly; an integer is.
    template<class F, metal::enable_if_t<metal::is_same<F, float>::value || metal::is_same<F, half>::value, int> = 0>
    constexpr explicit bfloat(F f) : bits(round(__builtin_bit_cast(uint, (float) f))) {}
    template<class I, metal::enable_if_t<metal::is_integral<I>::value, int> = 0> constexpr bfloat(I i) : bfloat((float) i) {}
    // A class that converts to bool, and not to bfloat itself.
    template<class C, metal::enable_if_t<__is_class(C) && __is_convertible(C, bool) && !__is_convertible(C, bfloat), int> = 0>
    constexpr explicit bfloat(C c) : bfloat((float) (bool) c) {}
    template<class C, metal::enable_if_t<__is_class(C) && __is_convertible(C, bool) && !__is_convertible(C, bfloat), int> = 0>
    bfloat & operator=(C c) { return *this = bfloat(c); }
    constexpr operator float() const { return __builtin_bit_cast(float, (uint) bits << 16); }
#ifdef MSL_STRICT
    bfloat(const __constant bfloat & o) : bits(o.bits) {}
    bfloat(const bfloat &) = default;
    bfloat & operator=(const bfloat &) = default;
    operator float() const __constant { return 0; }
#endif
    bfloat & operator+=(float x) { return *this = bfloat((float) *this + x); }
    bfloat & operator-=(float x) { return *this = bfloat((float) *this - x); }
    bfloat & operator*=(float x) { return *this = bfloat((float) *this * x); }
    bfloat & operator/=(float x) { return *this = bfloat((float) *this / x); }
private:
    static constexpr ushort round(uint u) {
        return (u & 0x7fffffffu) > 0x7f800000u ? (ushort) (u >> 16 | 0x40) : (ushort) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
};

namespace metal {
template<class T> struct is_floating_point : false_type {};
template<> struct is_floating_point<float> : true_type {};
template<> struct is_floating_point<half> : true_type {};
template<> struct is_floating_point<bfloat> : true_type {};
template<class T> struct is_unsigned : false_type {};
template<> struct is_unsigned<bool> : true_type {};
template<> struct is_unsigned<uchar> : true_type {};
template<> struct is_unsigned<ushort> : true_type {};
template<> struct is_unsigned<uint> : true_type {};
template<> struct is_unsigned<ulong> : true_type {};
template<class T> struct is_signed : bool_constant<(is_integral<T>::value || is_floating_point<T>::value) && !is_unsigned<T>::value> {};
template<class T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template<class A, class B> constexpr constant bool is_convertible_v = is_convertible<A, B>::value;
template<class T> constexpr constant bool is_pointer_v = is_pointer<T>::value;
template<class T> constexpr constant bool is_void_v = is_void<T>::value;
template<class A, class B> constexpr constant bool is_same_v = is_same<A, B>::value;
template<class T> constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
template<class T> constexpr constant bool is_integral_v = is_integral<T>::value;
template<class T> constexpr constant bool is_unsigned_v = is_unsigned<T>::value;
template<class T> constexpr constant bool is_signed_v = is_signed<T>::value;
template<class T> constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;

template<class T> struct numeric_limits;
#define MSL_LIMITS(T, is_int, digits_, max_, lowest_, min_, epsilon_) \
    template<> struct numeric_limits<T> { \
        enum : bool { is_specialized = true, is_integer = is_int, is_signed = metal::is_signed<T>::value, has_infinity = !is_int }; \
        enum : int { digits = digits_ }; \
        static constexpr T max() { return max_; } \
        static constexpr T lowest() { return lowest_; } \
        static constexpr T min() { return min_; } \
        static constexpr T epsilon() { return epsilon_; } \
        static constexpr T infinity() { return (T) (is_int ? 0 : INFINITY); } \
        static constexpr T quiet_NaN() { return (T) (is_int ? 0 : NAN); } \
    };
MSL_LIMITS(float, false, 24, FLT_MAX, -FLT_MAX, FLT_MIN, FLT_EPSILON)
MSL_LIMITS(half, false, 11, (half) 65504.0f, (half) -65504.0f, (half) 6.103515625e-05f, (half) 9.765625e-04f)
MSL_LIMITS(bfloat, false, 8, bfloat(3.38953138925153547590e+38f), bfloat(-3.38953138925153547590e+38f), bfloat(FLT_MIN), bfloat(0.0078125f))
MSL_LIMITS(char, true, 7, 127, -128, -128, 0)
MSL_LIMITS(signed char, true, 7, 127, -128, -128, 0)
MSL_LIMITS(uchar, true, 8, 255, 0, 0, 0)
MSL_LIMITS(short, true, 15, 32767, -32768, -32768, 0)
MSL_LIMITS(ushort, true, 16, 65535, 0, 0, 0)
MSL_LIMITS(int, true, 31, INT_MAX, INT_MIN, INT_MIN, 0)
MSL_LIMITS(uint, true, 32, UINT_MAX, 0, 0, 0)
MSL_LIMITS(long, true, 63, LONG_MAX, LONG_MIN, LONG_MIN, 0)
MSL_LIMITS(ulong, true, 64, ULONG_MAX, 0, 0, 0)

// A value that is the same in all threads; that it is, is not checked.
#ifdef MSL_STRICT
template<class T> using msl_uniform = T;
#else
template<class T> using uniform = T;
#endif
template<class T> MSL_INLINE constexpr T make_uniform(T v) { return v; }

template<class T, size_t N> struct array {
    T elements[N];
    static constexpr size_t size() { return N; }
    T & operator[](size_t i) { return elements[i]; }
    const T & operator[](size_t i) const { return elements[i]; }
};
}

// For two bfloats, or one and an integer: with any other type, the bfloat is converted to that
// type.
#define MSL_BFLOAT(op) \
    template<class B> MSL_INLINE constexpr metal::enable_if_t<metal::is_same<B, bfloat>::value, B> operator op(B a, B b) { return B((float) a op (float) b); } \
    template<class B, class I> MSL_INLINE constexpr metal::enable_if_t<metal::is_same<B, bfloat>::value && metal::is_integral<I>::value, B> operator op(B a, I b) { return a op B(b); } \
    template<class I, class B> MSL_INLINE constexpr metal::enable_if_t<metal::is_same<B, bfloat>::value && metal::is_integral<I>::value, B> operator op(I a, B b) { return B(a) op b; }
MSL_BFLOAT(+) MSL_BFLOAT(-) MSL_BFLOAT(*) MSL_BFLOAT(/)
template<class B> MSL_INLINE constexpr metal::enable_if_t<metal::is_same<B, bfloat>::value, B> operator-(B a) { return B(-(float) a); }
