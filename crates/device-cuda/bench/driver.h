// Helpers of the benches: the driver API as the device crate uses it (modules from cubins,
// functions by name), random numbers, half precision on the host, medians.
#pragma once
#include <cuda.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

static char g_context[200] = ""; // what ran when something failed
#define CHECK(x)                                                                            \
    do {                                                                                    \
        CUresult r_ = (x);                                                                  \
        if (r_) {                                                                           \
            const char *s_;                                                                 \
            cuGetErrorString(r_, &s_);                                                      \
            printf("%s, line %d: %s (%s)\n", #x, __LINE__, s_, g_context);                                  \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static uint64_t g_seed = 0x9E3779B97F4A7C15ull;
static inline uint32_t rnd() {
    g_seed ^= g_seed << 13, g_seed ^= g_seed >> 7, g_seed ^= g_seed << 17;
    return (uint32_t)(g_seed >> 32);
}
static inline float uniform() { return (rnd() >> 8) * (1.0f / 16777216.0f); } // [0, 1)
static inline float normal() {
    float s = 0;
    for (int i = 0; i < 6; i++) s += uniform();
    return (s - 3.0f) * 1.41421356f;
}
static inline uint16_t host_half(float f) {
    _Float16 h = (_Float16)f;
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
}
static inline float host_float(uint16_t u) {
    _Float16 h;
    memcpy(&h, &u, 2);
    return (float)h;
}
static inline uint16_t host_bfloat(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float from_bfloat(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

struct Gpu {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    int n_sm;
    char name[100];
    void open() {
        CHECK(cuInit(0));
        CHECK(cuDeviceGet(&device, 0));
        CHECK(cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHECK(cuDeviceGetAttribute(&n_sm, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
        CHECK(cuDeviceGetName(name, 100, device));
        printf("%s, %d SMs\n", name, n_sm);
    }
    void wait() { CHECK(cuStreamSynchronize(stream)); }
};
static Gpu gpu;

struct Memory {
    CUdeviceptr p = 0;
    size_t n = 0;
    Memory() {}
    explicit Memory(size_t bytes, int fill = 0xff) { make(bytes, fill); }
    void make(size_t bytes, int fill = 0xff) {
        // In its place, where it fits: tables may hold the address.
        if (!p || n != bytes) {
            free();
            n = bytes;
            CHECK(cuMemAlloc(&p, bytes));
        }
        CHECK(cuMemsetD8Async(p, (unsigned char)fill, bytes, gpu.stream));
        gpu.wait();
    }
    template <class T> void put(const std::vector<T> &v) {
        make(v.size() * sizeof(T));
        // On the benches' own stream: the default stream's copy may still run when a kernel of a
        // non-blocking stream starts, and even when the memory is freed.
        CHECK(cuMemcpyHtoDAsync(p, v.data(), n, gpu.stream));
        gpu.wait();
    }
    template <class T> std::vector<T> get(size_t count) const {
        std::vector<T> v(count);
        gpu.wait();
        CHECK(cuMemcpyDtoHAsync(v.data(), p, count * sizeof(T), gpu.stream));
        gpu.wait();
        return v;
    }
    void poison() { CHECK(cuMemsetD8Async(p, 0xff, n, gpu.stream)); }
    void free() {
        if (p) cuMemFree(p);
        p = 0;
    }
    ~Memory() { free(); }
    Memory(const Memory &) = delete;
};

struct Module {
    CUmodule m = nullptr;
    bool load(const std::string &path) {
        FILE *f = fopen(path.c_str(), "rb");
        if (!f) {
            printf("no %s\n", path.c_str());
            return false;
        }
        std::vector<char> data;
        fseek(f, 0, SEEK_END);
        data.resize(ftell(f));
        rewind(f);
        if (fread(data.data(), 1, data.size(), f) != data.size()) return false;
        fclose(f);
        CHECK(cuModuleLoadData(&m, data.data()));
        return true;
    }
    CUfunction function(const std::string &name, int shared = 0) const {
        CUfunction f;
        CUresult r = cuModuleGetFunction(&f, m, name.c_str());
        if (r) {
            printf("no function %s\n", name.c_str());
            exit(1);
        }
        if (shared) CHECK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared));
        return f;
    }
    int constant(const std::string &name) const {
        CUdeviceptr p;
        size_t n;
        int v;
        CUresult r = cuModuleGetGlobal(&p, &n, m, name.c_str());
        if (r) {
            printf("no constant %s\n", name.c_str());
            exit(1);
        }
        CHECK(cuMemcpyDtoH(&v, p, 4));
        return v;
    }
};

template <class A> static void launch(CUfunction f, int gx, int gy, int gz, int threads, int shared, const A &arguments) {
    void *p[] = {(void *)&arguments};
    CHECK(cuLaunchKernel(f, gx, gy, gz, threads, 1, 1, shared, gpu.stream, p, nullptr));
}

// Median of `repeats` timings, in us, of `count` calls of f(i) each.
template <class F> static double time_us(int repeats, int count, F f) {
    CUevent a, b;
    cuEventCreate(&a, 0), cuEventCreate(&b, 0);
    for (int i = 0; i < count; i++) f(i);
    std::vector<float> times;
    for (int r = 0; r < repeats; r++) {
        cuEventRecord(a, gpu.stream);
        for (int i = 0; i < count; i++) f(i);
        cuEventRecord(b, gpu.stream);
        CHECK(cuEventSynchronize(b));
        float ms;
        cuEventElapsedTime(&ms, a, b);
        times.push_back(ms * 1e3f / count);
    }
    cuEventDestroy(a), cuEventDestroy(b);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}
