// Metal's standard library, for clang on Linux. Included before the rewritten source.
//
// Run mode (C++20): address spaces are erased and lanes are fibers of runtime.cpp. Strict mode (C++
// for OpenCL, -fsyntax-only): address spaces are real and checked; nothing here runs.
#pragma once
#pragma GCC system_header
#ifdef __OPENCL_CPP_VERSION__
#define MSL_STRICT 1
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_fp64 : disable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#include "runtime_calls.h"
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define MSL_STRICT_ONLY(...) __VA_ARGS__
#else
#include "runtime_calls.h"
typedef _Float16 half;
#define device
#define constant const
#define threadgroup
#define thread
#define MSL_STRICT_ONLY(...)
#endif
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define MSL_INLINE static inline __attribute__((always_inline))
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST __attribute__((const))
#define METAL_ASM

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define MAXFLOAT 3.40282346638528859812e+38f
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-07f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define HALF_MAX ((half) 65504.0f)
#define HALF_MIN ((half) 6.103515625e-05f)
#define HALF_EPSILON ((half) 9.765625e-04f)
#define MAXHALF HALF_MAX
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H ((half) M_PI_F)
#define CHAR_BIT 8
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615UL

#ifndef MSL_STRICT
// Library functions and vector operators are never contracted, whatever a source requests.
#pragma float_control(push)
#pragma clang fp contract(off)
#endif
#include "types.h"
#include "vectors.h"
#include "math.h"
#include "simdgroup.h"
#include "simdgroup_matrix.h"
#include "metal_tensor.h"
#include "atomic.h"
#include "internals.h"
#include "launch.h"
#ifndef MSL_STRICT
#pragma float_control(pop)
#endif

#ifdef MSL_STRICT
// Keywords of OpenCL that are ordinary names in Metal.
#define local msl_local
#define global msl_global
#define generic msl_generic
#define uniform msl_uniform
#define pipe msl_pipe
#define read_only msl_read_only
#define write_only msl_write_only
#define read_write msl_read_write
#endif
