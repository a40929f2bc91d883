// Times the launches of one row of a dense decoder, as a graph of programmatic launches like the
// device's. It also checks gemv_one against gemv_r1. Usage: row CUBIN_FOLDER
#include "driver.h"
#include "gemm/types.h"
struct uint4 { unsigned x, y, z, w; };
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include <functional>
#include <map>

static std::map<std::string, Module> modules;
static std::string folder;
static CUfunction kernel(const std::string &file, const std::string &name, int shared = 0) {
    static std::map<std::string, CUfunction> all;
    CUfunction &f = all[file + " " + name + (shared > 49152 ? "+" : "")];
    if (!f) {
        if (!modules[file].m && !modules[file].load(folder + "/" + file + ".cubin")) exit(1);
        f = modules[file].function(name, shared > 49152 ? shared : 0);
    }
    return f;
}
template <class A> static void start(CUfunction f, int x, int y, int z, int threads, int shared, const A &a) {
    void *p[] = {(void *)&a};
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig c = {};
    c.gridDimX = x, c.gridDimY = y, c.gridDimZ = z, c.blockDimX = threads, c.blockDimY = c.blockDimZ = 1, c.sharedMemBytes = shared;
    c.hStream = gpu.stream, c.attrs = &attribute, c.numAttrs = 1;
    CHECK(cuLaunchKernelEx(&c, f, p, nullptr));
}

struct Spread { int set, steps, parts, blocks, shared; };
static Spread spread_of(int n, int k) {
    const int groups = (k + 31) / 32;
    const bool large = (long)n * k >= 12 << 20;
    const int blocks = std::min(large ? 2 * gpu.n_sm : gpu.n_sm, (n + 3) / 4);
    Spread best = {};
    int least = 1 << 30;
    for (int steps : {1, 2}) {
        if (large && steps != (groups > 32 ? 2 : 1)) continue;
        const int parts = (groups + 32 * steps - 1) / (32 * steps);
        if (parts > 16) continue;
        for (int set : {1, 2, 4}) {
            if (large && set != 1) continue;
            const int unit = std::max(set, 2), columns = ((n + unit - 1) / unit + blocks - 1) / blocks * unit;
            const int teams = 16 / parts, rounds = ((columns + set - 1) / set + teams - 1) / teams;
            const int cost = rounds * (steps * (25 * set + 12) + 12 * set + 20);
            if (cost < least) least = cost, best = {set, steps, parts, blocks, parts * (32 * steps * 40 + 4 * columns)};
        }
    }
    return best;
}
static int code_bytes(const std::string &t) { return t == "q8_0" ? 32 : 16; }

// A matrix with random planes.
static MatrixArguments matrix(const std::string &t, int n, int k, CUdeviceptr out) {
    static std::vector<uint> noise;
    if (noise.empty()) {
        noise.resize(1 << 22);
        for (uint &x : noise) x = rnd();
    }
    MatrixArguments m = {};
    const size_t codes = (size_t)n * k / 32 * code_bytes(t), scales = (size_t)n * k / 32 * 2;
    CUdeviceptr p, s;
    CHECK(cuMemAlloc(&p, codes));
    CHECK(cuMemAlloc(&s, scales));
    for (size_t at = 0; at < codes; at += noise.size() * 4) {
        const size_t skip = (rnd() % 1000) * 16;
        CHECK(cuMemcpyHtoD(p + at, (char *)noise.data() + skip, std::min(codes - at, noise.size() * 4 - skip)));
    }
    std::vector<ushort> halves(1 << 16);
    for (ushort &h : halves) h = host_half((0.5f + uniform()) / sqrtf(k) / (t == "q8_0" ? 74 : 4.6f));
    for (size_t at = 0; at < scales; at += halves.size() * 2) CHECK(cuMemcpyHtoD(s + at, halves.data(), std::min(scales - at, halves.size() * 2)));
    m.weight.codes = (uchar *)p, m.weight.scales = (uchar *)s, m.weight.code_stride = k / 32 * code_bytes(t), m.weight.scale_stride = k / 32 * 2;
    m.n_out = n, m.out = (float *)out;
    return m;
}
static CUdeviceptr floats(size_t n, bool ones = false) {
    std::vector<float> v(n);
    for (float &x : v) x = ones ? 0.8f + 0.4f * uniform() : normal();
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, n * 4));
    CHECK(cuMemcpyHtoD(p, v.data(), n * 4));
    return p;
}
static bool g_new = true;
static int columns_of_warp(int n, bool gate) { return n / 4 >= 8 * gpu.n_sm ? 4 : gate || n / 2 >= 8 * gpu.n_sm ? 2 : 1; }
static void product(const std::string &type, LinearArguments a) {
    const int n = a.m0.n_out + (a.n_matrices > 1 ? a.m1.n_out : 0) + (a.n_matrices > 2 ? a.m2.n_out : 0);
    if (g_new) {
        Spread s = spread_of(n, a.n_in);
        a.k_parts = s.parts;
        start(kernel(type, "gemv_one_n" + std::to_string(s.set) + "_l" + std::to_string(s.steps)), s.blocks, 1, 1, 512, s.shared, a);
    } else {
        const int c = columns_of_warp(n, a.tail == TAIL_GATE), warps = (n + c - 1) / c;
        a.n_warps = warps;
        start(kernel(type, "gemv_r1_n" + std::to_string(c)), (warps + 7) / 8, 1, 1, 256, 40960, a);
    }
}

struct Model {
    const char *name;
    int hidden, n_q, n_kv, d, ffn, n_layers, n_vocab;
    bool qk_norm;
    struct Layer { LinearArguments qkv, o, gate, down; HeadsArguments heads; AttentionArguments attention; };
    std::vector<Layer> layers;
    LinearArguments head;
    ChooseArguments choose;
    CUdeviceptr positions;
    double bytes = 0;
    void make() {
        const int qd = n_q * d, kd = n_kv * d;
        const CUdeviceptr x = floats(hidden), x2 = floats(hidden), q = floats(qd), k = floats(kd), v = floats(kd), q2 = floats(qd), att = floats(qd), act = floats(ffn), logits = floats(n_vocab);
        const CUdeviceptr norm = floats(hidden, true), head_norm = floats(d, true), frequencies = floats(d, true);
        CHECK(cuMemAlloc(&positions, 4096));
        CHECK(cuMemsetD8(positions, 0, 4096));
        const int page_len = 32, n_pages = 64;
        const size_t layer_bytes = 2ull * n_kv * page_len * d * 2;
        CUdeviceptr pool, table;
        CHECK(cuMemAlloc(&pool, layer_bytes * n_layers * n_pages));
        CHECK(cuMemsetD8(pool, 0, layer_bytes * n_layers * n_pages));
        std::vector<uint> pages(n_pages);
        for (int i = 0; i < n_pages; i++) pages[i] = i;
        CHECK(cuMemAlloc(&table, 4 * n_pages));
        CHECK(cuMemcpyHtoD(table, pages.data(), 4 * n_pages));
        layers.resize(n_layers);
        for (int i = 0; i < n_layers; i++) {
            Layer &l = layers[i];
            LinearArguments a = {};
            a.n_rows = 1, a.n_in = hidden, a.eps = 1e-5f;
            l.qkv = l.gate = a;
            l.qkv.n_matrices = 3, l.qkv.tail = TAIL_STORE, l.qkv.has_norm = 1, l.qkv.norm = (float *)norm, l.qkv.x = (float *)x;
            l.qkv.m0 = matrix("q4_0", qd, hidden, q), l.qkv.m1 = matrix("q4_0", kd, hidden, k), l.qkv.m2 = matrix("q4_0", kd, hidden, v);
            l.o = a, l.o.n_in = qd, l.o.n_matrices = 1, l.o.tail = TAIL_ADD, l.o.x = (float *)att, l.o.residual = (float *)x, l.o.out = (float *)x2, l.o.m0 = matrix("q4_0", hidden, qd, 0);
            l.gate.n_matrices = 2, l.gate.tail = TAIL_GATE, l.gate.has_norm = 1, l.gate.norm = (float *)norm, l.gate.x = (float *)x2, l.gate.out = (float *)act;
            l.gate.m0 = matrix("q4_0", ffn, hidden, 0), l.gate.m1 = matrix("q4_0", ffn, hidden, 0);
            l.down = a, l.down.n_in = ffn, l.down.n_matrices = 1, l.down.tail = TAIL_ADD, l.down.x = (float *)act, l.down.residual = (float *)x2, l.down.out = (float *)x, l.down.m0 = matrix("q4_0", hidden, ffn, 0);
            bytes += 18.0 / 32 * ((double)(qd + 2 * kd) * hidden + (double)hidden * qd + 3.0 * ffn * hidden);
            PagesArguments pa = {};
            pa.pool = (uchar *)pool, pa.page_bytes = layer_bytes * n_layers, pa.layer_offset = layer_bytes * i, pa.tables = (uint *)table, pa.table_stride = n_pages, pa.page_len = page_len, pa.n_kv_heads = n_kv, pa.head_dim = d;
            HeadsArguments h = {};
            h.n_rows = 1, h.n_q_heads = n_q, h.q_norm = h.k_norm = qk_norm, h.n_dims = d, h.k_turns = 1, h.scale = 1, h.q_eps = h.k_eps = 1e-6f, h.q = (float *)q, h.k = (float *)k, h.v = (float *)v;
            h.q_weight = h.k_weight = (float *)head_norm, h.frequencies = (float *)frequencies, h.positions = (uint *)positions, h.row_spans = (uint *)(positions + 1024), h.q_out = (float *)q2, h.pages = pa;
            l.heads = h;
            AttentionArguments t = {};
            t.n_rows = 1, t.n_heads = n_q, t.n_splits = 1, t.scale = 0.1f, t.q = (float *)q2, t.positions = (uint *)positions, t.row_spans = (uint *)(positions + 1024), t.spans = (Span *)(positions + 2048), t.out = (float *)att, t.pages = pa;
            l.attention = t;
        }
        head = {};
        head.n_rows = 1, head.n_in = hidden, head.eps = 1e-5f, head.n_matrices = 1, head.has_norm = 1, head.norm = (float *)norm, head.x = (float *)x, head.m0 = matrix("q8_0", n_vocab, hidden, logits);
        bytes += 34.0 / 32 * n_vocab * (double)hidden;
        choose = {};
        choose.n_rows = 1, choose.cols = n_vocab, choose.logits = (float *)logits;
        std::vector<Choice> c(1);
        c[0].how = CHOOSE_BEST, c[0].chosen = 0;
        CUdeviceptr choices, bests, chosen;
        CHECK(cuMemAlloc(&choices, 4096));
        CHECK(cuMemcpyHtoD(choices, c.data(), sizeof(Choice)));
        CHECK(cuMemAlloc(&bests, 4096));
        CHECK(cuMemAlloc(&chosen, 4096));
        choose.choices = (Choice *)choices, choose.bests = (uint *)bests, choose.chosen = (uint *)chosen, choose.host_chosen = (uint *)chosen;
    }
    void heads(const Layer &l) { start(kernel("qk_rope_kv", "qk_rope_kv_f16"), (n_q + 2 * n_kv + 3) / 4, 1, 1, 128, 0, l.heads); }
    void attend(const Layer &l) {
        const int g = n_q / n_kv;
        start(kernel("pages_f16", "attention_f16_g" + std::to_string(g) + "_d" + std::to_string(d / 32)), n_kv, 1, 1, 128, 0, l.attention);
    }
    void row(const Layer &l) {
        RowArguments r = {};
        r.n_rows = 1, r.heads = l.heads, r.attention = l.attention;
        start(kernel("row_f16", d == 64 ? "row_f16_l8" : "row_f16_l16"), n_q, 1, 1, 512, 0, r);
    }
    void both(const Layer &l) {
        if (g_new) row(l);
        else heads(l), attend(l);
    }
    void best() {
        start(kernel("argmax", "argmax"), 32, 1, 1, 256, 0, choose);
        start(kernel("argmax", "argmax_end"), 1, 1, 1, 32, 0, choose);
    }
};
static double graph_us(const std::function<void()> &what) {
    CUgraph g;
    CUgraphExec e;
    CHECK(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    what();
    CHECK(cuStreamEndCapture(gpu.stream, &g));
    CHECK(cuGraphInstantiate(&e, g, 0));
    const double us = time_us(9, 4, [&](int) { CHECK(cuGraphLaunch(e, gpu.stream)); });
    cuGraphExecDestroy(e), cuGraphDestroy(g);
    return us;
}
static int failures = 0;
static void compare(const char *name, const std::string &type, LinearArguments a, CUdeviceptr out, int n) {
    std::vector<float> y[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemsetD8(out, 0xff, n * 4ull));
        g_new = i;
        product(type, a);
        gpu.wait();
        y[i].resize(n);
        CHECK(cuMemcpyDtoH(y[i].data(), out, n * 4ull));
    }
    double e = 0, r = 0, most = 0;
    for (int i = 0; i < n; i++) {
        const double d = y[1][i] - y[0][i];
        e += d * d, r += (double)y[0][i] * y[0][i], most = std::max(most, fabs(d));
    }
    const double error = sqrt(e / r);
    if (!(error < 2e-3)) failures++;
    printf("    %-8s difference %.1e of the size, at most %.1e %s\n", name, error, most, error < 2e-3 ? "ok" : "FAILED");
}
// Heads and attention in one kernel and in two.
static void compare_rows(Model &m) {
    Model::Layer &l = m.layers[1];
    const int n = m.n_q * m.d;
    std::vector<float> y[2];
    for (int i = 0; i < 2; i++) {
        for (uint position = 0; position < 300; position++) {
            CHECK(cuMemcpyHtoD(m.positions, &position, 4));
            product("q4_0", m.layers[position % m.n_layers].qkv); // other keys and values
            CHECK(cuMemcpyHtoD((CUdeviceptr)l.qkv.x, &position, 1));
            g_new = i;
            m.both(l);
            gpu.wait();
        }
        y[i].resize(n);
        CHECK(cuMemcpyDtoH(y[i].data(), (CUdeviceptr)l.attention.out, n * 4ull));
    }
    double e = 0, r = 0;
    for (int i = 0; i < n; i++) e += pow(y[1][i] - y[0][i], 2), r += (double)y[0][i] * y[0][i];
    const double error = sqrt(e / r);
    if (!(error < 1e-3)) failures++;
    printf("    row      difference %.1e of the size %s\n", error, error < 1e-3 ? "ok" : "FAILED");
}
static void run(Model m) {
    m.make();
    compare_rows(m);
    printf("  %s: %.1f MB a token\n", m.name, m.bytes / 1e6);
    Model::Layer &l = m.layers[0];
    compare("q", "q4_0", l.qkv, (CUdeviceptr)l.qkv.m0.out, l.qkv.m0.n_out), compare("k", "q4_0", l.qkv, (CUdeviceptr)l.qkv.m1.out, l.qkv.m1.n_out), compare("v", "q4_0", l.qkv, (CUdeviceptr)l.qkv.m2.out, l.qkv.m2.n_out);
    compare("o", "q4_0", l.o, (CUdeviceptr)l.o.out, m.hidden), compare("gate", "q4_0", l.gate, (CUdeviceptr)l.gate.out, m.ffn), compare("down", "q4_0", l.down, (CUdeviceptr)l.down.out, m.hidden);
    compare("head", "q8_0", m.head, (CUdeviceptr)m.head.m0.out, m.n_vocab);
    for (int i = 1; i < 2; i++) {
        g_new = i;
        auto each = [&](const char *what, const std::function<void(Model::Layer &)> &f) {
            const double us = graph_us([&] { for (auto &l : m.layers) f(l); });
            printf("    %s %-10s %6.2f us a layer\n", g_new ? "new" : "old", what, us / m.n_layers);
        };
        each("qkv", [&](Model::Layer &l) { product("q4_0", l.qkv); });
        each("o", [&](Model::Layer &l) { product("q4_0", l.o); });
        each("gate", [&](Model::Layer &l) { product("q4_0", l.gate); });
        each("down", [&](Model::Layer &l) { product("q4_0", l.down); });
        each("heads", [&](Model::Layer &l) { m.heads(l); });
        for (uint position : {250u, 20u, 64u}) {
            CHECK(cuMemcpyHtoD(m.positions, &position, 4));
            printf("    position %u:\n", position);
            each("attention", [&](Model::Layer &l) { m.attend(l); });
            each("both", [&](Model::Layer &l) { m.both(l); });
        }
        each("products", [&](Model::Layer &l) { product("q4_0", l.qkv), product("q4_0", l.o), product("q4_0", l.gate), product("q4_0", l.down); });
        each("layer", [&](Model::Layer &l) { product("q4_0", l.qkv), m.both(l), product("q4_0", l.o), product("q4_0", l.gate), product("q4_0", l.down); });
        printf("    head %.1f us, best %.1f us\n", graph_us([&] { for (int i = 0; i < 4; i++) product("q8_0", m.head); }) / 4, graph_us([&] { for (int i = 0; i < 4; i++) m.best(); }) / 4);
        const double us = graph_us([&] {
            for (auto &l : m.layers) product("q4_0", l.qkv), m.both(l), product("q4_0", l.o), product("q4_0", l.gate), product("q4_0", l.down);
            product("q8_0", m.head), m.best();
        });
        printf("    %s token: %.1f us, %.0f tok/s, %.0f GB/s\n", g_new ? "new" : "old", us, 1e6 / us, m.bytes / us / 1e3);
        fflush(stdout);
    }
}
int main(int argc, char **argv) {
    folder = argv[1];
    gpu.open();
    run({"1B Q4_0", 2048, 32, 8, 64, 8192, 16, 128256, false});
    run({"0.6B Q4_0", 1024, 16, 8, 128, 3072, 28, 151936, true});
    printf(failures ? "%d FAILED\n" : "all checks passed\n", failures);
    return failures;
}
