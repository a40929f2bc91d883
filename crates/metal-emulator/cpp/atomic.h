// Relaxed atomics, as in Metal. Threadgroups may run on several host threads, so these are the
// host's atomics.
#pragma once
#pragma GCC system_header

namespace metal {
// Atomics are relaxed; fences may be stronger.
enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum class thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
template<class T> struct atomic {
    T value;
    atomic() = default;
};
#ifdef MSL_STRICT
#define MSL_FETCH(space, name, e) \
    template<class T, class U> MSL_INLINE T atomic_fetch_##name##_explicit(volatile space atomic<T> * p, U u, memory_order) { return p->value; }
#define MSL_ATOMICS(space) \
    template<class T> MSL_INLINE T atomic_load_explicit(const volatile space atomic<T> * p, memory_order) { return p->value; } \
    template<class T, class U> MSL_INLINE void atomic_store_explicit(volatile space atomic<T> * p, U v, memory_order) { p->value = (T) v; } \
    template<class T, class U> MSL_INLINE T atomic_exchange_explicit(volatile space atomic<T> * p, U v, memory_order) { return p->value; } \
    template<class T> MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> * p, thread T * e, T d, memory_order, memory_order) { return false; }
#else
#define MSL_FETCH(space, name, e) \
    template<class T, class U> MSL_INLINE T atomic_fetch_##name##_explicit(volatile space atomic<T> * p, U u, memory_order) { \
        const T v = (T) u; \
        T old, made; \
        msl_atomic_access(p); \
        __atomic_load(&p->value, &old, __ATOMIC_RELAXED); \
        do made = (T) (e); \
        while (!__atomic_compare_exchange(&p->value, &old, &made, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
        msl_atomic_access(p); \
        return old; \
    }
#define MSL_ATOMICS(space) \
    template<class T> MSL_INLINE T atomic_load_explicit(const volatile space atomic<T> * p, memory_order) { \
        T v; \
        msl_atomic_access(p); \
        __atomic_load(&p->value, &v, __ATOMIC_RELAXED); \
        return v; \
    } \
    template<class T, class U> MSL_INLINE void atomic_store_explicit(volatile space atomic<T> * p, U u, memory_order) { \
        T v = (T) u; \
        __atomic_store(&p->value, &v, __ATOMIC_RELAXED); \
        msl_atomic_access(p); \
    } \
    template<class T, class U> MSL_INLINE T atomic_exchange_explicit(volatile space atomic<T> * p, U u, memory_order) { \
        T v = (T) u, old; \
        msl_atomic_access(p); \
        __atomic_exchange(&p->value, &v, &old, __ATOMIC_RELAXED); \
        msl_atomic_access(p); \
        return old; \
    } \
    template<class T> MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> * p, thread T * expected, T desired, memory_order, memory_order) { \
        msl_atomic_access(p); \
        const bool done = __atomic_compare_exchange(&p->value, expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        msl_atomic_access(p); \
        return done; \
    }
#endif
#define MSL_FETCHES(space) \
    MSL_FETCH(space, add, old + v) MSL_FETCH(space, sub, old - v) MSL_FETCH(space, or, old | v) MSL_FETCH(space, and, old & v) \
    MSL_FETCH(space, xor, old ^ v) MSL_FETCH(space, max, old < v ? v : old) MSL_FETCH(space, min, v < old ? v : old)
MSL_ATOMICS(device) MSL_FETCHES(device)
#ifdef MSL_STRICT
MSL_ATOMICS(threadgroup) MSL_FETCHES(threadgroup)
#endif
MSL_INLINE void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope::thread_scope_device) { MSL_STRICT_ONLY(return;) __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}
// Macros, since OpenCL has types of these names.
#define atomic_int metal::atomic<int>
#define atomic_uint metal::atomic<uint>
#define atomic_float metal::atomic<float>
#define atomic_bool metal::atomic<bool>
#define atomic_ulong metal::atomic<ulong>
