// Instantiates a kernel template under the host's name: INSTANTIATE(linear_q4_0_gemv_1,
// linear_gemv<Q4_0, 1>).
#pragma once

#define HOST_NAME(name) #name
#define INSTANTIATE(name, ...)                \
    typedef decltype(__VA_ARGS__) name##_type; \
    template [[host_name(HOST_NAME(name))]] kernel name##_type __VA_ARGS__;
