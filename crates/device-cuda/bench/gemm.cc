// Checks and times the products of src/kernels/gemm against double precision. Usage: gemm
// CUBIN_FOLDER [check|time] Every check: fresh random blocks of the file's type, decoded here
// independently of the repack; poisoned outputs.
#include "blocks.h"
#include <map>

struct uint4 { unsigned x, y, z, w; };
#include "gemm/arguments.h"

static std::string folder;
static std::map<std::string, Module> modules;
static Module &module(const std::string &name) {
    Module &m = modules[name];
    if (!m.m && !m.load(folder + "/" + name + ".cubin")) exit(1);
    return m;
}
static int tile_bytes(const std::string &codec) {
    static const std::map<std::string, int> T = {{"q4", 2304}, {"q4m", 2560}, {"q5", 2816}, {"q5m", 3072}, {"q6", 3584}, {"q6m", 3584},
        {"q8", 4352}, {"q8m", 4608}, {"q2m", 2048}, {"q3", 2048}, {"q3m", 2048}, {"nl", 2304}, {"fp4", 2304}, {"fp4_16", 2560}, {"f16", 8192}};
    return T.at(codec);
}

struct Packed {
    Memory memory;
    u32 k_tiles;
    size_t bytes;
};
static void pack(Packed &out, const FileType &t, const std::vector<u8> &rows, int n, int k, const std::vector<u8> *up = nullptr) {
    out.k_tiles = 2 * ((k + 127) / 128);
    const int packed_rows = up ? 2 * n : n, blocks = (packed_rows + 63) / 64;
    out.bytes = (size_t)blocks * out.k_tiles * tile_bytes(t.codec);
    out.memory.make(out.bytes);
    Memory a, b;
    a.put(rows);
    if (up) b.put(*up);
    RepackArguments r = {};
    r.rows = (u8 *)a.p, r.up_rows = up ? (u8 *)b.p : nullptr, r.packed = (u8 *)out.memory.p;
    r.row_bytes = (u64)k / t.block * t.bytes, r.n_rows = n, r.n_cols = k, r.k_tiles = out.k_tiles;
    launch(module("repack").function(std::string("repack_") + t.name), out.k_tiles, blocks, 1, 128, 0, r);
    gpu.wait();
}

enum Kind { MMA, WGMMA, FEW };
static const char *const KINDS[] = {"mma", "wgmma", "few"};
struct Launch {
    Kind kind;
    int width, parts; // of K; FEW: slabs of 16 rows of a block
    int tile_rows() const { return kind == FEW ? 16 * parts : 128; }
    int splits() const { return kind == FEW ? 1 : parts; }
};
static void multiply(const Launch &l, const std::string &codec, GemmArguments a, int n_token_tiles) {
    char name[99], shared_name[99], slabs[9] = "";
    const char *kind = KINDS[l.kind];
    if (l.kind == FEW) snprintf(slabs, 9, "_%d", l.parts);
    Module &m = module(std::string(kind) + "_" + codec);
    snprintf(shared_name, 99, "gemm_%s_shared_%s_%d%s", kind, codec.c_str(), l.width, slabs);
    snprintf(name, 99, "gemm_%s_%s_%d%s", kind, codec.c_str(), l.width, slabs);
    static std::map<std::string, std::pair<CUfunction, int>> cache;
    auto it = cache.find(name);
    if (it == cache.end()) {
        const int shared = m.constant(shared_name);
        it = cache.emplace(name, std::make_pair(m.function(name, shared), shared)).first;
    }
    a.n_splits = l.splits();
    const int units = n_token_tiles * ((a.n_out + l.tile_rows() - 1) / l.tile_rows()) * l.splits();
    const int most = l.kind == WGMMA ? gpu.n_sm : l.kind == FEW ? 2 * gpu.n_sm : units;
    launch(it->second.first, std::min(units, most), 1, 1, l.kind == WGMMA ? 384 : 256, it->second.second, a);
}

static double act(int kind, double x) { return kind == ACTIVATION_SILU ? x / (1 + exp(-x)) : 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static int failures = 0;
static void report(const char *what, double err, double limit) {
    const bool ok = err < limit;
    if (!ok) failures++;
    printf("  %-58s %.2e %s\n", what, err, ok ? "ok" : "FAILED");
    fflush(stdout);
}

static void check(const FileType &t, int m, int n, int k, Launch l, int epilogue) {
    const bool gate = epilogue == EPILOGUE_GATE;
    std::vector<u8> rows = random_rows(t, n, k), up;
    if (gate) up = random_rows(t, n, k);
    Packed w;
    pack(w, t, rows, n, k, gate ? &up : nullptr);
    std::vector<float> x((size_t)m * k), bias(n), residual((size_t)m * n);
    for (auto &v : x) v = normal();
    for (auto &v : bias) v = normal();
    for (auto &v : residual) v = normal();
    Memory dx, db, dr;
    dx.put(x), db.put(bias), dr.put(residual);
    const u32 groups = (m + 7) / 8 + 1;
    Memory tiled((size_t)w.k_tiles * groups * 1024);
    InputArguments in = {};
    in.x = (float *)dx.p, in.out = (u8 *)tiled.p, in.n_rows = m, in.n_cols = k, in.k_tiles = w.k_tiles, in.row_groups = groups;
    Memory y((size_t)m * n * 4), scales((size_t)m * 4);
    in.scales = (float *)scales.p;
    launch(module("input").function("rows_input"), m, 1, 1, 256, 0, in);
    const int n_tt = (m + l.width - 1) / l.width, tiles = n_tt * (((gate ? 2 * n : n) + 127) / 128);
    Memory partials, counters((size_t)tiles * 4, 0);
    if (l.splits() > 1) partials.make((size_t)tiles * l.splits() * 128 * l.width * 4);
    GemmArguments a = {};
    a.weights = (u8 *)w.memory.p, a.x = (u8 *)tiled.p, a.y = (float *)y.p, a.n_rows = m, a.n_out = gate ? 2 * n : n, a.k_tiles = w.k_tiles;
    a.row_groups = groups, a.y_stride = n, a.x_scales = (float *)scales.p, a.epilogue = epilogue, a.partials = (float *)partials.p, a.counters = (u32 *)counters.p;
    if (epilogue == EPILOGUE_ADD) a.residual = (float *)dr.p;
    if (epilogue == EPILOGUE_ADD) a.bias = (float *)db.p;
    double e2 = 0, r2 = 0;
    // the second finds the counters as the first left them
    for (int repeat = 0; repeat < 2; repeat++) {
        y.poison();
        multiply(l, t.codec, a, n_tt);
        gpu.wait();
        const std::vector<float> yf = y.get<float>(y.n / 4);
        for (float v : yf)
            if (!(fabs(v) < 1e30)) {
                e2 = NAN;
                break;
            }
        for (int i = 0; i < 24; i++) {
            const int row = i == 0 ? n - 1 : rnd() % n;
            std::vector<double> wr = decode_row(t, rows, row, k), ur;
            if (gate) ur = decode_row(t, up, row, k);
            for (int s = 0; s < 8; s++) {
                const int token = s == 0 ? m - 1 : rnd() % m;
                double d = 0, u = 0;
                for (int c = 0; c < k; c++) d += wr[c] * x[(size_t)token * k + c];
                if (gate) {
                    for (int c = 0; c < k; c++) u += ur[c] * x[(size_t)token * k + c];
                    d = act(ACTIVATION_SILU, d) * u;
                }
                if (a.bias) d += bias[row];
                if (a.residual) d += residual[(size_t)token * n + row];
                const double got = yf[(size_t)token * n + row];
                e2 += (got - d) * (got - d), r2 += d * d;
            }
        }
    }
    char what[128];
    snprintf(what, 128, "%s %s %d, m %d n %d k %d splits %d epilogue %d", t.name, KINDS[l.kind], l.width, m, n, k, l.splits(), epilogue);
    report(what, sqrt(e2 / r2), 1.5e-3);
}

// Grouped: 5 experts, some without rows.
static void check_experts(const FileType &t, Launch l, int m, int k_used) {
    const int n = 192, k = 256, n_experts = 5;
    std::vector<std::vector<u8>> rows(n_experts);
    Packed one;
    size_t bytes = 0;
    Memory all;
    for (int e = 0; e < n_experts; e++) {
        rows[e] = random_rows(t, n, k);
        pack(one, t, rows[e], n, k);
        if (e == 0) bytes = one.bytes, all.make(bytes * n_experts);
        CHECK(cuMemcpyDtoDAsync(all.p + e * bytes, one.memory.p, bytes, gpu.stream));
    }
    std::vector<float> x((size_t)m * k);
    for (auto &v : x) v = normal();
    const int pairs = m * k_used;
    std::vector<u32> ids(pairs);
    for (int p = 0; p < pairs; p++) ids[p] = (p % 2) ? 3 : (rnd() % 2 ? 0 : 4);
    const int most = pairs + 7 * n_experts, groups = (most + 7) / 8;
    Memory dx, di, dp((size_t)most * 4), dt((size_t)(pairs / l.width + n_experts) * 16), dn(4);
    dx.put(x), di.put(ids);
    ExpertTilesArguments ta = {(u32)m, (u32)k_used, (u32)n_experts, (u32)l.width, (u32 *)di.p, (u32 *)dp.p, (uint4 *)dt.p, (u32 *)dn.p};
    launch(module("input").function("expert_tiles"), 1, 1, 1, 1024, 4 * n_experts * 33, ta);
    Memory tiled((size_t)one.k_tiles * groups * 1024), y((size_t)pairs * n * 4);
    InputArguments in = {};
    in.x = (float *)dx.p, in.out = (u8 *)tiled.p, in.pairs = (u32 *)dp.p, in.pairs_a_row = k_used, in.n_rows = most, in.n_cols = k, in.k_tiles = one.k_tiles, in.row_groups = groups;
    launch(module("input").function("rows_input"), most, 1, 1, 256, 0, in);
    GemmArguments a = {};
    a.weights = (u8 *)all.p, a.x = (u8 *)tiled.p, a.y = (float *)y.p, a.n_out = n, a.k_tiles = one.k_tiles, a.row_groups = groups, a.y_stride = n;
    a.tiles = (uint4 *)dt.p, a.n_tiles = (u32 *)dn.p, a.expert_bytes = bytes, a.pairs = (u32 *)dp.p;
    multiply(l, t.codec, a, dn.get<u32>(1)[0]);
    std::vector<float> got = y.get<float>((size_t)pairs * n);
    double e2 = 0, r2 = 0;
    for (int p = 0; p < pairs; p++)
        for (int i = 0; i < 4; i++) {
            const int row = rnd() % n;
            std::vector<double> w = decode_row(t, rows[ids[p]], row, k);
            double d = 0;
            for (int c = 0; c < k; c++) d += w[c] * x[(size_t)(p / k_used) * k + c];
            const double g = got[(size_t)p * n + row];
            e2 += (g - d) * (g - d), r2 += d * d;
        }
    char what[128];
    snprintf(what, 128, "%s %s %d, %d rows of %d experts", t.name, KINDS[l.kind], l.width, pairs, n_experts);
    report(what, sqrt(e2 / r2), 1.5e-3);
}

static void time_shape(const FileType &t, int m, int n, int k, std::vector<Launch> launches, int epilogue) {
    Packed w;
    std::vector<u8> rows = random_rows(t, n, k);
    const bool gate = epilogue == EPILOGUE_GATE;
    pack(w, t, rows, gate ? n / 2 : n, k, gate ? &rows : nullptr);
    const int copies = std::max(1, std::min(24, (int)(160e6 / w.bytes) + 1));
    std::vector<CUdeviceptr> sets;
    for (int i = 0; i < copies; i++) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, w.bytes));
        CHECK(cuMemcpyDtoDAsync(p, w.memory.p, w.bytes, gpu.stream));
        sets.push_back(p);
    }
    std::vector<float> x((size_t)m * k);
    for (auto &v : x) v = normal();
    Memory dx;
    dx.put(x);
    const u32 groups = (m + 7) / 8;
    Memory tiled((size_t)w.k_tiles * groups * 1024), y((size_t)m * n * 4), residual((size_t)m * n * 4, 0);
    InputArguments in = {};
    in.x = (float *)dx.p, in.out = (u8 *)tiled.p, in.n_rows = m, in.n_cols = k, in.k_tiles = w.k_tiles, in.row_groups = groups;
    launch(module("input").function("rows_input"), m, 1, 1, 256, 0, in);
    double best = 1e30;
    Launch best_l = launches[0];
    std::string all;
    for (Launch l : launches) {
        const int n_tt = (m + l.width - 1) / l.width, tiles = n_tt * ((n + 127) / 128);
        if (l.kind != FEW) l.parts = std::min(l.parts, (int)w.k_tiles / 2);
        Memory partials, counters((size_t)tiles * 4, 0);
        if (l.splits() > 1) partials.make((size_t)tiles * l.splits() * 128 * l.width * 4);
        GemmArguments a = {};
        a.x = (u8 *)tiled.p, a.y = (float *)y.p, a.n_rows = m, a.n_out = n, a.k_tiles = w.k_tiles, a.residual = (float *)residual.p;
        a.row_groups = groups, a.y_stride = gate ? n / 2 : n, a.epilogue = epilogue, a.partials = (float *)partials.p, a.counters = (u32 *)counters.p;
        snprintf(g_context, 200, "%s width %d parts %d, n %d k %d, x %llx + %zx, y %llx + %zx, residual %llx, weights %llx + %zx", t.name, l.width, l.splits(), n, k, tiled.p, tiled.n, y.p, y.n,
                 residual.p, sets[0], w.bytes);
        if (getenv("CONTEXT")) puts(g_context);
        const double us = time_us(3, m > 256 ? 8 : 24, [&](int i) {
            a.weights = (u8 *)sets[i % copies];
            multiply(l, t.codec, a, n_tt);
        });
        char s[64];
        snprintf(s, 64, " %.1s%d/%d:%.1f", KINDS[l.kind], l.width, l.parts, us);
        all += s;
        if (us < best) best = us, best_l = l;
    }
    printf("  %-5s m %4d %5dx%-5d %7.1f us %4.0f TFLOP/s %5.0f GB/s (%s %d, %d parts) |%s\n", t.name, m, n, k, best, 2e-6 * m * n * k / best,
           w.bytes / best / 1e3, KINDS[best_l.kind], best_l.width, best_l.parts, all.c_str());
    fflush(stdout);
    for (auto p : sets) cuMemFree(p);
}

// The tiles that products.rs chooses from for few rows.
static void few() {
    struct Shape { int type, n, k, epilogue; };
    for (int m : {8, 16, 24, 32, 64, 128})
        for (Shape s : {Shape{0, 3072, 2048, 0}, {0, 2048, 2048, 1}, {0, 16384, 2048, 2}, {0, 2048, 8192, 1}, {2, 6144, 4096, 0}, {2, 4096, 4096, 1}, {2, 24576, 4096, 2}, {2, 4096, 12288, 1}}) {
            std::vector<Launch> l;
            const int tiles = (s.n + 127) / 128;
            for (int width : {8, 16})
                for (int slabs : {1, 2})
                    if (width >= m || width == 16) l.push_back({FEW, width, slabs});
            for (int width : {32, 64, 128}) {
                if (width / 2 >= std::max(32, m) || width * 4 < m) continue;
                const int per = tiles * ((m + width - 1) / width), most = std::max(1, gpu.n_sm / per);
                l.push_back({WGMMA, width, most});
                if (most > 1) l.push_back({WGMMA, width, most / 2});
            }
            time_shape(TYPES[s.type], m, s.n, s.k, l, s.epilogue);
        }
}

int main(int argc, char **argv) {
    folder = argv[1];
    const std::string mode = argc > 2 ? argv[2] : "check";
    gpu.open();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    g_seed ^= (uint64_t)now.tv_nsec << 20 ^ now.tv_sec;
    printf("seed %016llx\n", (unsigned long long)g_seed);
    if (mode == "check") {
        for (const FileType &t : TYPES) {
            if (getenv("FEW") && strcmp(t.codec, "q4") && strcmp(t.codec, "q8") && strcmp(t.codec, "q4m") && strcmp(t.codec, "q6") && strcmp(t.codec, "f16")) continue;
            check(t, 77, 320, 512, {WGMMA, 64, 1}, EPILOGUE_STORE);
            check(t, 19, 192, 768, {FEW, 16, 2}, EPILOGUE_ADD);
            check(t, 9, 192, 768, {FEW, 8, 1}, EPILOGUE_STORE);
        }
        const FileType &q4 = TYPES[0], &q8 = TYPES[1], &q4k = TYPES[2];
        for (int width : {32, 64, 96, 128, 160, 192, 256}) check(q4, 300, 704, 576, {WGMMA, width, 1}, EPILOGUE_ADD);
        for (int width : {32, 64, 128}) check(q4, 141, 704, 576, {MMA, width, 1}, EPILOGUE_ADD);
        for (int slabs : {1, 2}) check(q8, 13, 352, 1024, {FEW, 16, slabs}, EPILOGUE_GATE);
        check(q4, 300, 704, 576, {WGMMA, 128, 1}, EPILOGUE_GATE);
        check(q8, 61, 352, 1024, {WGMMA, 32, 3}, EPILOGUE_GATE);
        check(q8, 61, 352, 1024, {MMA, 32, 3}, EPILOGUE_GATE);
        check(q4, 300, 704, 576, {WGMMA, 256, 2}, EPILOGUE_STORE);
        check(q4k, 1000, 4096, 1024, {WGMMA, 256, 1}, EPILOGUE_STORE);
        check(q8, 1000, 4096, 1024, {WGMMA, 192, 1}, EPILOGUE_STORE);
        check(q4, 16, 3072, 2048, {WGMMA, 32, 5}, EPILOGUE_ADD);
        check(q4, 8, 3072, 2048, {MMA, 32, 11}, EPILOGUE_ADD);
        check_experts(q4, {WGMMA, 64, 1}, 67, 2);
        check_experts(q4, {FEW, 16, 2}, 23, 3);
        check_experts(q4, {FEW, 8, 1}, 23, 3);
        printf(failures ? "%d FAILED\n" : "all checks passed\n", failures);
        return failures != 0;
    }
    const FileType &q4 = TYPES[0], &q8 = TYPES[1], &q4k = TYPES[2], &q6k = TYPES[3];
    auto widths = [](std::vector<int> v) {
        std::vector<Launch> l;
        for (int w : v) l.push_back({WGMMA, w, 1});
        return l;
    };
    if (mode == "few") {
        few();
        return 0;
    }
    if (mode == "stress") { // many tiles a block, many launches without a pause
        for (int i = 0; i < 6; i++) {
            check(q4, 2048, 2048, 1024, {WGMMA, 128, 1}, EPILOGUE_ADD);
            time_shape(q4, 2048, 4096, 1024, widths({128, 256}), EPILOGUE_STORE);
            time_shape(q4, 2048, 8192, 2048, widths({128, 256}), EPILOGUE_GATE);
        }
        return failures;
    }
    struct Shape { int n, k, epilogue; };
    for (Shape s : {Shape{4096, 1024, 0}, {1024, 2048, 1}, {6144, 1024, 2}, {1024, 3072, 1}, {3072, 2048, 0}, {2048, 2048, 1}, {16384, 2048, 2}, {2048, 8192, 1}})
        time_shape(q4, 2048, s.n, s.k, widths({128, 160, 192, 256}), s.epilogue);
    for (Shape s : {Shape{6144, 4096, 0}, {4096, 4096, 1}, {24576, 4096, 2}, {4096, 12288, 1}}) {
        time_shape(q4, 2048, s.n, s.k, widths({192, 256}), s.epilogue);
        time_shape(q4k, 2048, s.n, s.k, widths({192, 256}), s.epilogue);
    }
    time_shape(q8, 2048, 16384, 2048, widths({192, 256}), 2);
    time_shape(q6k, 2048, 4096, 12288, widths({192, 256}), 1);
    time_shape(TYPES[14], 2048, 4096, 4096, widths({128, 192, 256}), 1);
    for (Shape s : {Shape{4096, 1024, 0}, {1024, 2048, 1}, {3072, 2048, 0}, {2048, 2048, 1}, {16384, 2048, 2}, {2048, 8192, 1}})
        time_shape(q4, 512, s.n, s.k, {{WGMMA, 64, 1}, {WGMMA, 128, 1}, {WGMMA, 192, 1}, {WGMMA, 256, 1}, {WGMMA, 128, 2}, {WGMMA, 256, 4}, {WGMMA, 128, 4}}, s.epilogue);
    few();
}
