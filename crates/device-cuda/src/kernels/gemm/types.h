// Fixed-width types, for kernels and for hosts in C++.
#pragma once
#if !defined(__CUDACC_RTC__)
#include <sys/types.h>
#else
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
#endif

typedef unsigned char uchar;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
