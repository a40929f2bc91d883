// Repeats steps of packed products as the device launches them. Every pass must return the same
// bits. Usage: chain CUBIN_FOLDER ROWS [FLAGS [TILE [PASSES]]]. Flags: p no programmatic launches,
// s no parts of K, x neither. TILE -1: as the device chooses.
#include "driver.h"
#include "gemm/types.h"
struct uint4 { unsigned x, y, z, w; };
#include "gemm/arguments.h"
#include <map>
static std::string folder;
static std::map<std::string, Module> modules;
static bool g_pdl = true;
static CUfunction kernel(const std::string &file, const std::string &name, int shared) {
    static std::map<std::string, CUfunction> all;
    CUfunction &f = all[name];
    if (!f) {
        if (!modules[file].m && !modules[file].load(folder + "/" + file + ".cubin")) exit(1);
        f = modules[file].function(name, shared > 49152 ? shared : 0);
    }
    return f;
}
template <class A> static void start(CUfunction f, int x, int threads, int shared, const A &a) {
    void *p[] = {(void *)&a};
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig c = {};
    c.gridDimX = x, c.gridDimY = c.gridDimZ = 1, c.blockDimX = threads, c.blockDimY = c.blockDimZ = 1, c.sharedMemBytes = shared;
    c.hStream = gpu.stream, c.attrs = &attribute, c.numAttrs = g_pdl;
    CHECK(cuLaunchKernelEx(&c, f, p, nullptr));
}
struct Tile { bool wgmma; int width; };
static const Tile TILES[] = {{false, 8}, {true, 16}, {true, 32}, {true, 64}, {true, 96}, {true, 128}, {true, 160}, {true, 192}, {true, 256}};
static int shared_of(Tile t) {
    const int stage = t.width * 128 + 2 * 2304;
    if (t.wgmma) {
        const int rest = 2048 + 2 * 32 * 68 * 4, s = (stage + 1023) / 1024 * 1024;
        return std::min((232448 - rest) / s, 12) * s + rest;
    }
    return (stage * 4 <= 98304 ? 4 : 3) * stage + 16;
}
static int g_tile = -1;
static bool g_split = true;
static void product(GemmArguments a) {
    long best = 1l << 60;
    int tile = 0, splits = 1, blocks = 1;
    for (int i = 0; i < 9; i++) {
        if (g_tile >= 0 && i != g_tile) continue;
        const int w = TILES[i].width, tiles = (a.n_rows + w - 1) / w * ((a.n_out + 127) / 128);
        int most = tiles < gpu.n_sm ? std::min(gpu.n_sm / tiles, gpu.n_sm * 128 * 128 / (tiles * 128 * w)) : 1;
        if (!g_split) most = 1;
        most = std::max(1, std::min(most, (int)a.k_tiles / 2));
        for (int s = 1; s <= most; s++) {
            const long waves = (tiles * s + gpu.n_sm - 1) / gpu.n_sm, k = 2 * ((a.k_tiles / 2 + s - 1) / s), join = s > 1 ? 300 + 5 * s * w / 2 : 0;
            const long cost = waves * (k * std::max(w, TILES[i].wgmma ? 96 : 80) + 600 + 4 * w + join);
            if (cost < best) best = cost, tile = i, splits = s, blocks = std::min(tiles * s, gpu.n_sm * (TILES[i].wgmma ? 1 : 2));
        }
    }
    a.n_splits = splits;
    const Tile t = TILES[tile];
    const std::string family = t.wgmma ? "wgmma" : "mma";
    start(kernel(family + "_q4", "gemm_" + family + "_q4_" + std::to_string(t.width), shared_of(t)), blocks, t.wgmma ? 384 : 256, shared_of(t), a);
}
static CUdeviceptr packed(int n, int k) {
    const size_t tiles = (size_t)((n + 63) / 64) * 2 * ((k + 127) / 128);
    std::vector<unsigned char> v(tiles * 2304), one(2304 * 64);
    for (size_t i = 0; i < one.size(); i += 4) {
        const unsigned r = rnd();
        memcpy(&one[i], &r, 4);
    }
    for (size_t t = 0; t < 64; t++)
        for (int i = 0; i < 128; i++) {
            const uint16_t h = host_half((0.5f + uniform()) / sqrtf(k) / 4.6f);
            memcpy(&one[t * 2304 + 2048 + 2 * i], &h, 2);
        }
    for (size_t at = 0; at < v.size(); at += one.size()) memcpy(&v[at], one.data(), std::min(one.size(), v.size() - at));
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, v.size()));
    CHECK(cuMemcpyHtoD(p, v.data(), v.size()));
    return p;
}
static CUdeviceptr take(size_t bytes, int fill) {
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, bytes));
    CHECK(cuMemsetD8(p, fill, bytes));
    return p;
}
int main(int argc, char **argv) {
    folder = argv[1];
    const int m = atoi(argv[2]), H = 2048, F = 8192, L = 4, passes = argc > 5 ? atoi(argv[5]) : 60;
    if (argc > 3) g_pdl = !strchr(argv[3], 'p'), g_split = !strchr(argv[3], 's');
    if (argc > 4) g_tile = atoi(argv[4]);
    gpu.open();
    const int groups = (m + 7) / 8;
    std::vector<CUdeviceptr> qkv, o, gate, down;
    for (int i = 0; i < L; i++) qkv.push_back(packed(3072, H)), o.push_back(packed(H, H)), gate.push_back(packed(2 * F, H)), down.push_back(packed(H, F));
    const CUdeviceptr x = take((size_t)m * H * 4, 0), q = take((size_t)m * H * 4, 0xff), k = take(m * 512 * 4, 0xff), v = take(m * 512 * 4, 0xff), act = take((size_t)m * F * 4, 0xff);
    const CUdeviceptr scratch = take((size_t)groups * 8 * F * 2, 0xff), scales = take(m * 4, 0), sums = take(4ull * gpu.n_sm * 128 * 128, 0xff), counters = take(4 * gpu.n_sm, 0);
    std::vector<float> first((size_t)m * H), norm(H, 1.0f);
    for (float &f : first) f = normal();
    const CUdeviceptr x0 = take(first.size() * 4, 0), w = take(H * 4, 0);
    CHECK(cuMemcpyHtoD(x0, first.data(), first.size() * 4));
    CHECK(cuMemcpyHtoD(w, norm.data(), H * 4));
    std::vector<float> want, got(first.size());
    int bad = 0;
    for (int pass = 0; pass < passes; pass++) {
        CHECK(cuMemcpyDtoDAsync(x, x0, first.size() * 4, gpu.stream));
        auto one = [&](CUdeviceptr from, int cols, bool normed, CUdeviceptr weights, int n, int epilogue, CUdeviceptr y, int stride) {
            InputArguments in = {};
            in.n_rows = m, in.n_cols = cols, in.x = (float *)from, in.weight = normed ? (float *)w : nullptr, in.out = (uchar *)scratch, in.scales = (float *)scales, in.k_tiles = cols / 64, in.row_groups = groups, in.has_norm = normed, in.eps = 1e-5f;
            start(kernel("input", "rows_input", 0), m, 256, 0, in);
            GemmArguments a = {};
            a.n_rows = m, a.n_out = n, a.weights = (uchar *)weights, a.x = (uchar *)scratch, a.y = (float *)y, a.residual = epilogue == EPILOGUE_ADD ? (float *)y : nullptr, a.x_scales = (float *)scales;
            a.partials = (float *)sums, a.counters = (uint *)counters, a.k_tiles = cols / 64, a.row_groups = groups, a.y_stride = stride, a.epilogue = epilogue;
            if (n == 3072) a.y1 = (float *)k, a.y2 = (float *)v, a.first1 = 2048, a.first2 = 2560, a.y_stride1 = a.y_stride2 = 512;
            product(a);
        };
        for (int i = 0; i < L; i++) {
            one(x, H, true, qkv[i], 3072, EPILOGUE_STORE, q, H);
            one(q, H, false, o[i], H, EPILOGUE_ADD, x, H);
            one(x, H, true, gate[i], 2 * F, EPILOGUE_GATE, act, F);
            one(act, F, false, down[i], H, EPILOGUE_ADD, x, H);
        }
        CHECK(cuMemcpyDtoHAsync(got.data(), x, got.size() * 4, gpu.stream));
        gpu.wait();
        if (pass == 0) want = got;
        size_t n = 0, nan = 0;
        for (size_t i = 0; i < got.size(); i++) n += memcmp(&got[i], &want[i], 4) != 0, nan += got[i] != got[i];
        if (n || nan) {
            if (bad++ < 4) {
                size_t i = 0;
                while (i + 1 < got.size() && memcmp(&got[i], &want[i], 4) == 0 && got[i] == got[i]) i++;
                printf("pass %d: %zu of %zu differ, %zu NaN, first row %zu column %zu\n", pass, n, got.size(), nan, i / H, i % H);
            }
        }
    }
    printf("%s rows %d pdl %d split %d tile %d: %d of %d passes differ\n", bad ? "FAILED" : "ok", m, g_pdl, g_split, g_tile, bad, passes);
    return bad != 0;
}
