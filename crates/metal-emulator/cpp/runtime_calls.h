// The runtime as kernels see it, and the source location of a call.
#pragma once
#pragma GCC system_header
#ifdef MSL_STRICT
// Only types matter here: nothing is called.
struct msl_site {
    int line;
};
struct msl_slots {
    unsigned active, lane;
    const unsigned char * data;
};
enum { MSL_SHUFFLE, MSL_REDUCTION, MSL_VOTE, MSL_MATRIX, MSL_BARRIER, MSL_SLOT = 32 };
void msl_exchange(unsigned operation, const void * value, unsigned size, const msl_site * site, msl_slots * out);
bool msl_result_get(void * out, unsigned size, unsigned index);
void msl_result_put(const void * value, unsigned size, unsigned index);
void msl_matrix_multiply(const float * in, const msl_site * site, float * out);
void msl_inactive_lane(unsigned lane, const msl_site * site);
void msl_threadgroup_barrier(const msl_site * site, bool device_memory);
void msl_simdgroup_ordered();
unsigned msl_lane();
#define MSL_SITE int msl_line = __builtin_LINE()
#define MSL_PASS msl_line
#define MSL_HERE msl_site site = { msl_line }
#else
#include "runtime.h"
#define MSL_SITE const char *msl_file = __builtin_FILE(), unsigned msl_line = __builtin_LINE(), unsigned msl_column = __builtin_COLUMN()
#define MSL_PASS msl_file, msl_line, msl_column
#define MSL_HERE const msl_site site = { msl_file, msl_line, msl_column }
#endif
