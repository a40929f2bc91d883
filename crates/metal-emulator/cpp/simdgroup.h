// Barriers and the functions in which lanes of a simdgroup (32) or quadgroup (4) read each other's
// values.
//
// Only lanes that make the same call are active in it. Reductions add in one fixed order, a
// butterfly by halves (lane i with i + 16, then i + 8, ...), so that results do not depend on the
// order in which lanes run; Apple's order is not published.
#pragma once
#pragma GCC system_header

// Lane functions do not access the kernel's memory, so they are not checked; one copy per type
// keeps compilation fast.
#ifdef MSL_REGISTERS
#define MSL_TOGETHER static inline __attribute__((always_inline))
#else
#define MSL_TOGETHER static __attribute__((noinline, no_sanitize("address", "undefined", "thread")))
#endif
#define MSL_ALWAYS __attribute__((always_inline))

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8, mem_object_data = 16 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags) ((int) a | (int) b); }

MSL_INLINE void threadgroup_barrier(mem_flags flags, MSL_SITE) {
    MSL_HERE;
    msl_threadgroup_barrier(&site, ((int) flags & (int) mem_flags::mem_device) != 0);
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, MSL_SITE) {
    MSL_HERE;
    msl_slots s;
    msl_exchange(MSL_BARRIER, 0, 0, &site, &s);
    if (((int) flags & (int) mem_flags::mem_device) != 0) msl_simdgroup_ordered();
}

// One exchange of values.
template<class T> struct msl_lanes {
    msl_slots s;
    msl_site site;
    MSL_ALWAYS msl_lanes(unsigned operation, const T & v, msl_site where) : site(where) {
        static_assert(!is_same<T, bfloat>::value, "Metal 3.1 has no simdgroup functions of bfloat");
        static_assert(sizeof(T) <= MSL_SLOT, "a value of a simdgroup function is at most 32 bytes");
        T t = v;
        msl_exchange(operation, &t, sizeof(T), &site, &s);
    }
    MSL_ALWAYS bool active(unsigned i) const { return i < 32 && (s.active >> i & 1); }
    MSL_ALWAYS T at(unsigned i) const {
        T t;
        __builtin_memcpy(&t, s.data + MSL_SLOT * i, sizeof(T));
        return t;
    }
    // The value of a lane that must be active.
    MSL_ALWAYS T read(unsigned i) {
        if (!active(i)) msl_inactive_lane(i, &site);
        return at(i);
    }
};
template<class T, class F> MSL_INLINE T msl_reduce(const msl_lanes<T> & l, F f, unsigned first, unsigned n) {
    T r;
    const unsigned index = n == 32 ? 0 : first / 4;
    if (msl_result_get(&r, sizeof r, index)) return r;
    T v[32];
    bool on[32];
    for (unsigned i = 0; i < n; i++) {
        on[i] = l.active(first + i);
        if (on[i]) v[i] = l.at(first + i);
    }
    for (unsigned w = n / 2; w; w /= 2)
        for (unsigned i = 0; i < w; i++) {
            if (on[i] && on[i + w]) v[i] = f(v[i], v[i + w]);
            else if (on[i + w]) {
                v[i] = v[i + w];
                on[i] = true;
            }
        }
    r = v[0];
    msl_result_put(&r, sizeof r, index);
    return r;
}
#define MSL_REDUCTION_OF(name, expression) \
    template<class T> MSL_TOGETHER T simd_##name(T v, MSL_SITE) { \
        MSL_HERE; \
        msl_lanes<T> l(MSL_REDUCTION, v, site); \
        return msl_reduce(l, [](T a, T b) MSL_ALWAYS { return (T) (expression); }, 0, 32); \
    } \
    template<class T> MSL_TOGETHER T quad_##name(T v, MSL_SITE) { \
        MSL_HERE; \
        msl_lanes<T> l(MSL_REDUCTION, v, site); \
        return msl_reduce(l, [](T a, T b) MSL_ALWAYS { return (T) (expression); }, l.s.lane & ~3u, 4); \
    }
MSL_REDUCTION_OF(sum, a + b) MSL_REDUCTION_OF(product, a * b) MSL_REDUCTION_OF(max, max(a, b)) MSL_REDUCTION_OF(min, min(a, b))
MSL_REDUCTION_OF(and, a & b) MSL_REDUCTION_OF(or, a | b) MSL_REDUCTION_OF(xor, a ^ b)

// `from` is the source lane; if `keep` is true, the lane keeps its own value.
#define MSL_SHUFFLE_OF(name, width, from, keep) \
    template<class T> MSL_TOGETHER T name(T v, ushort k, MSL_SITE) { \
        MSL_HERE; \
        msl_lanes<T> l(MSL_SHUFFLE, v, site); \
        const unsigned i = l.s.lane & (width - 1), base = l.s.lane & ~(width - 1u); \
        (void) i, (void) base; \
        if (keep) return v; \
        return l.read(from); \
    }
MSL_SHUFFLE_OF(simd_shuffle, 32, k, false) MSL_SHUFFLE_OF(simd_broadcast, 32, k, false) MSL_SHUFFLE_OF(simd_shuffle_xor, 32, i ^ k, false)
MSL_SHUFFLE_OF(simd_shuffle_up, 32, i - k, i < k) MSL_SHUFFLE_OF(simd_shuffle_down, 32, i + k, i + k >= 32)
MSL_SHUFFLE_OF(simd_shuffle_rotate_up, 32, (i - k) & 31, false) MSL_SHUFFLE_OF(simd_shuffle_rotate_down, 32, (i + k) & 31, false)
MSL_SHUFFLE_OF(quad_shuffle, 4, base + k, false) MSL_SHUFFLE_OF(quad_broadcast, 4, base + k, false)
MSL_SHUFFLE_OF(quad_shuffle_xor, 4, base + (i ^ k), false) MSL_SHUFFLE_OF(quad_shuffle_up, 4, base + i - k, i < k)
MSL_SHUFFLE_OF(quad_shuffle_down, 4, base + i + k, i + k >= 4) MSL_SHUFFLE_OF(quad_shuffle_rotate_up, 4, base + ((i - k) & 3), false)
MSL_SHUFFLE_OF(quad_shuffle_rotate_down, 4, base + ((i + k) & 3), false)
// Lanes past the end read `fill`, starting at its other end.
template<class T> MSL_TOGETHER T simd_shuffle_and_fill_down(T v, T fill, ushort k, MSL_SITE) {
    struct both { T v, fill; };
    MSL_HERE;
    msl_lanes<both> l(MSL_SHUFFLE, both{ v, fill }, site);
    const unsigned i = l.s.lane + k;
    if (i < 32) return l.read(i).v;
    return l.read(i - 32).fill;
}
template<class T> MSL_TOGETHER T simd_shuffle_and_fill_up(T v, T fill, ushort k, MSL_SITE) {
    struct both { T v, fill; };
    MSL_HERE;
    msl_lanes<both> l(MSL_SHUFFLE, both{ v, fill }, site);
    const unsigned i = l.s.lane;
    if (i >= k) return l.read(i - k).v;
    return l.read(32 + i - k).fill;
}
template<class T> MSL_TOGETHER T simd_broadcast_first(T v, MSL_SITE) {
    MSL_HERE;
    msl_lanes<T> l(MSL_SHUFFLE, v, site);
    return l.at((unsigned) __builtin_ctz(l.s.active));
}
template<class T> MSL_TOGETHER T quad_broadcast_first(T v, MSL_SITE) {
    MSL_HERE;
    msl_lanes<T> l(MSL_SHUFFLE, v, site);
    const unsigned base = l.s.lane & ~3u;
    return l.at(base + (unsigned) __builtin_ctz(l.s.active >> base));
}
// Prefix sums add from lane 0 upwards.
#define MSL_PREFIX_OF(group, first, name, op, identity) \
    template<class T> MSL_TOGETHER T group##_prefix_inclusive_##name(T v, MSL_SITE) { \
        MSL_HERE; \
        msl_lanes<T> l(MSL_REDUCTION, v, site); \
        T r = T(identity); \
        for (unsigned i = first; i <= l.s.lane; i++) \
            if (l.active(i)) r = (T) (r op l.at(i)); \
        return r; \
    } \
    template<class T> MSL_TOGETHER T group##_prefix_exclusive_##name(T v, MSL_SITE) { \
        MSL_HERE; \
        msl_lanes<T> l(MSL_REDUCTION, v, site); \
        T r = T(identity); \
        for (unsigned i = first; i < l.s.lane; i++) \
            if (l.active(i)) r = (T) (r op l.at(i)); \
        return r; \
    }
MSL_PREFIX_OF(simd, 0, sum, +, 0) MSL_PREFIX_OF(simd, 0, product, *, 1)
MSL_PREFIX_OF(quad, l.s.lane & ~3u, sum, +, 0) MSL_PREFIX_OF(quad, l.s.lane & ~3u, product, *, 1)

struct simd_vote {
    typedef ulong vote_t;
    vote_t bits;
    explicit simd_vote(vote_t v = 0) : bits(v) {}
    explicit operator vote_t() const { return bits; }
    bool all() const { return (bits & 0xffffffffu) == 0xffffffffu; }
    bool any() const { return bits != 0; }
};
MSL_TOGETHER simd_vote simd_ballot(bool p, MSL_SITE) {
    MSL_HERE;
    msl_lanes<bool> l(MSL_VOTE, p, site);
    ulong bits = 0;
    for (unsigned i = 0; i < 32; i++)
        if (l.active(i) && l.at(i)) bits |= 1ul << i;
    return simd_vote(bits);
}
MSL_TOGETHER bool simd_all(bool p, MSL_SITE) { return simd_ballot(!p, MSL_PASS).bits == 0; }
MSL_TOGETHER bool simd_any(bool p, MSL_SITE) { return simd_ballot(p, MSL_PASS).bits != 0; }
MSL_TOGETHER simd_vote simd_active_threads_mask(MSL_SITE) { return simd_ballot(true, MSL_PASS); }
MSL_TOGETHER bool simd_is_first(MSL_SITE) {
    MSL_HERE;
    msl_lanes<bool> l(MSL_VOTE, true, site);
    return l.s.lane == (unsigned) __builtin_ctz(l.s.active);
}
MSL_INLINE bool simd_is_helper_thread() { return false; }
MSL_TOGETHER bool quad_any(bool p, MSL_SITE) {
    MSL_HERE;
    msl_lanes<bool> l(MSL_VOTE, p, site);
    bool r = false;
    for (unsigned i = l.s.lane & ~3u, n = i + 4; i < n; i++) r |= l.active(i) && l.at(i);
    return r;
}
MSL_TOGETHER bool quad_all(bool p, MSL_SITE) { return !quad_any(!p, MSL_PASS); }
}
