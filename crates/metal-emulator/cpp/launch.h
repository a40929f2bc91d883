// Helpers for the rewriter's output: function constants, threadgroup variables, and the mapping of
// a dispatch to parameters.
#pragma once
#pragma GCC system_header

#ifdef MSL_STRICT
struct msl_constant {
    int index;
#ifdef MSL_REGISTERS
    template<class T> constexpr operator T() const { return T(MSL_CONSTANTS); }
#else
    template<class T> operator T() const { return T{}; }
#endif
};
inline bool msl_constant_defined(int) { return true; }
#ifdef MSL_REGISTERS
MSL_OPAQUE threadgroup void * msl_threadgroup_storage() {
    unsigned long address;
    __asm__ volatile("mov.u64 %0, 64;" : "=l"(address));
    return (threadgroup void *) address;
}
#else
threadgroup void * msl_threadgroup_storage();
#endif
#define MSL_THREADGROUP(size, name) msl_threadgroup_storage()
#else
struct msl_constant {
    unsigned index;
    template<class T> operator T() const {
        T v{};
        msl_function_constant(index, &v, sizeof v);
        return v;
    }
};
static inline bool msl_constant_defined(unsigned index) {
    char none;
    return msl_function_constant(index, &none, 0);
}
#define MSL_THREADGROUP(size, name) \
    ({ \
        static char msl_key; \
        msl_threadgroup_variable(&msl_key, size, name); \
    })

// V names a variable of a kernel. Its size is recorded when the library is loaded, even if the
// declaration is never reached.
template<class V, msl_u64 size> struct msl_declared_ {
    static const bool noted;
};
template<class V, msl_u64 size> const bool msl_declared_<V, size>::noted = msl_static_variable(V::kernel(), V::name(), size);
#define MSL_DECLARE(key, kernel_, size, name_) \
    struct key { \
        static const void * kernel() { return (const void *) kernel_; } \
        static const char * name() { return name_; } \
    }; \
    (void) *(const volatile bool *) &msl_declared_<key, size>::noted;

template<int I, class F> struct msl_parameter_;
template<class A, class... R> struct msl_parameter_<0, void (*)(A, R...)> { typedef A type; };
template<int I, class A, class... R> struct msl_parameter_<I, void (*)(A, R...)> : msl_parameter_<I - 1, void (*)(R...)> {};
template<int I, class F> using msl_parameter = typename msl_parameter_<I, F>::type;
template<class P> struct msl_memory;
template<class T> struct msl_memory<T *> {
    static T * at(void * p) { return (T *) p; }
};
template<class T> struct msl_memory<T &> {
    static T & at(void * p) { return *(T *) p; }
};
// Not part of the kernel: it reads the runtime's memory, or runs outside lanes.
#define MSL_UNCHECKED __attribute__((no_sanitize("address", "undefined")))
template<class P, int N> static MSL_UNCHECKED P msl_position(const unsigned (&v)[N]) {
    constexpr int n = metal::components<P>::n;
    static_assert(n <= N, "a position has at most as many components as its grid");
    if constexpr (n == 1) {
        return (P) v[0];
    } else {
        P r;
        for (int i = 0; i < n; i++) r.d[i] = (typename P::element) v[i];
        return r;
    }
}
#endif
