// The runtime as kernels see it, and the source location of a call.
#pragma once
#pragma GCC system_header
#ifdef MSL_STRICT
// Only the types matter here: nothing is called.
struct msl_site {
    int line;
};
struct msl_slots {
    unsigned active, lane;
    const unsigned char * data;
};
enum { MSL_SHUFFLE, MSL_REDUCTION, MSL_VOTE, MSL_MATRIX, MSL_BARRIER, MSL_SLOT = 32 };
#ifdef MSL_REGISTERS
// In code whose registers are counted, an operation of several threads is an opaque instruction
// with operands and results. Volatile accesses represent it, since the assembler removes unused
// values.
#define MSL_OPAQUE static inline __attribute__((always_inline))
MSL_OPAQUE void msl_exchange(unsigned, const void * value, unsigned size, const msl_site *, msl_slots * out) {
    for (unsigned i = 0; i < size / 4; i++) {
        float word;
        __builtin_memcpy(&word, (const char *) value + 4 * i, 4);
        __asm__ volatile("{ .reg .u32 a; mov.u32 a, 0; st.volatile.shared.f32 [a], %0; }" ::"f"(word));
    }
    out->active = 0xffffffffu;
    out->data = 0;
}
MSL_OPAQUE bool msl_result_get(void * out, unsigned size, unsigned) {
    for (unsigned i = 0; i < size / 4; i++) {
        float word;
        __asm__ volatile("{ .reg .u32 a; mov.u32 a, 0; ld.volatile.shared.f32 %0, [a]; }" : "=f"(word));
        __builtin_memcpy((char *) out + 4 * i, &word, 4);
    }
    return true;
}
MSL_OPAQUE void msl_result_put(const void *, unsigned, unsigned) {}
// Each thread holds two elements of each matrix.
MSL_OPAQUE void msl_matrix_multiply(const float * in, const msl_site *, float * out) {
    for (int i = 0; i < 2; i++) __asm__ volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(out[i]) : "f"(in[i]), "f"(in[2 + i]), "f"(in[4 + i]));
}
MSL_OPAQUE void msl_inactive_lane(unsigned, const msl_site *) {}
MSL_OPAQUE void msl_threadgroup_barrier(const msl_site *, bool) { __asm__ volatile("bar.sync 0;" ::: "memory"); }
MSL_OPAQUE void msl_simdgroup_ordered() {}
MSL_OPAQUE unsigned msl_lane() {
    unsigned lane;
    __asm__ volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
MSL_OPAQUE float msl_function(float x, float y = 0.0f) {
    float result;
    __asm__ volatile("add.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
}
#define __builtin_expf msl_function
#define __builtin_exp2f msl_function
#define __builtin_logf msl_function
#define __builtin_log2f msl_function
#define __builtin_log10f msl_function
#define __builtin_powf msl_function
#define __builtin_fmodf msl_function
#define __builtin_sinf msl_function
#define __builtin_cosf msl_function
#define __builtin_tanf msl_function
#define __builtin_asinf msl_function
#define __builtin_acosf msl_function
#define __builtin_atanf msl_function
#define __builtin_atan2f msl_function
#define __builtin_sinhf msl_function
#define __builtin_coshf msl_function
#define __builtin_tanhf msl_function
#define __builtin_asinhf msl_function
#define __builtin_acoshf msl_function
#define __builtin_atanhf msl_function
#else
void msl_exchange(unsigned operation, const void * value, unsigned size, const msl_site * site, msl_slots * out);
bool msl_result_get(void * out, unsigned size, unsigned index);
void msl_result_put(const void * value, unsigned size, unsigned index);
void msl_matrix_multiply(const float * in, const msl_site * site, float * out);
void msl_inactive_lane(unsigned lane, const msl_site * site);
void msl_tensor(unsigned simdgroups, const msl_site * site);
unsigned msl_tensor_thread(unsigned simdgroups);
void msl_undefined(const __constant char * what, const msl_site * site);
void msl_threadgroup_barrier(const msl_site * site, bool device_memory);
void msl_simdgroup_ordered();
unsigned msl_lane();
#endif
#define MSL_SITE int msl_line = __builtin_LINE()
#define MSL_PASS msl_line
#define MSL_HERE msl_site site = { msl_line }
#else
#include "runtime.h"
#define MSL_SITE const char *msl_file = __builtin_FILE(), unsigned msl_line = __builtin_LINE(), unsigned msl_column = __builtin_COLUMN()
#define MSL_PASS msl_file, msl_line, msl_column
#define MSL_HERE const msl_site site = { msl_file, msl_line, msl_column }
#endif
