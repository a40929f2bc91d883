// Checks attention by tiles (attention_flash) against double precision, and times it. Usage:
// attention CUBIN_FOLDER
#include "driver.h"
#include <map>
struct uint4 { unsigned x, y, z, w; };
#include "gemm/types.h"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"

static Module flash, wgmma;
static int failures = 0;

struct Case {
    int d, n_heads, n_kv, page_len, window;
    float softcap;
    bool sinks;
    std::vector<std::pair<int, int>> spans; // rows, first position
    int n_states = 0;
};

static void run(const Case &c, bool timed) {
    int n = 0, longest = 0;
    for (auto s : c.spans) n += s.first, longest = std::max(longest, s.second + s.first);
    if (c.n_states) longest = c.n_states;
    const int per_table = (longest + c.page_len - 1) / c.page_len + 1, n_spans = c.spans.size();
    // two layers; the second is used
    const size_t vector = c.d * 2, layer = 2ull * c.n_kv * c.page_len * vector, page_bytes = layer * 2;
    const int n_pages = per_table * n_spans;
    std::vector<uint> tables(per_table * n_spans);
    for (size_t i = 0; i < tables.size(); i++) tables[i] = i;
    for (size_t i = tables.size(); i-- > 1;) std::swap(tables[i], tables[rnd() % (i + 1)]);
    std::vector<uint16_t> pool(n_pages * page_bytes / 2);
    for (auto &h : pool) h = host_half(normal());
    // Past the end of each sequence: NaN, which must not matter.
    std::vector<Span> spans(n_spans);
    std::vector<uint> row_spans(n), positions(n);
    int row = 0;
    for (int s = 0; s < n_spans; s++) {
        spans[s] = {(uint)row, (uint)c.spans[s].first, (uint)c.spans[s].second, 0, 0, 0, 0, 0};
        for (int i = 0; i < c.spans[s].first; i++, row++) row_spans[row] = s, positions[row] = c.spans[s].second + i;
        const int end = c.n_states ? c.n_states : c.spans[s].first + c.spans[s].second;
        for (int p = end; p < per_table * c.page_len; p++)
            for (int h = 0; h < 2 * c.n_kv; h++)
                for (int i = 0; i < c.d; i++)
                    pool[(tables[s * per_table + p / c.page_len] * page_bytes + layer + ((size_t)h * c.page_len + p % c.page_len) * vector) / 2 + i] = 0x7e00;
    }
    std::vector<float> q((size_t)n * c.n_heads * c.d), sinks(c.n_heads);
    for (auto &v : q) v = normal();
    for (auto &v : sinks) v = normal();
    Memory dq, dpool, dt, ds, drs, dpos, dsink, out((size_t)n * c.n_heads * c.d * 4);
    dq.put(q), dpool.put(pool), dt.put(tables), ds.put(spans), drs.put(row_spans), dpos.put(positions), dsink.put(sinks);
    AttentionArguments a = {};
    a.n_rows = n, a.n_heads = c.n_heads, a.window = c.window, a.n_states = c.n_states, a.scale = 1.0f / sqrtf(c.d), a.softcap = c.softcap;
    a.q = (float *)dq.p, a.sinks = c.sinks ? (float *)dsink.p : nullptr, a.positions = (uint *)dpos.p, a.row_spans = (uint *)drs.p, a.spans = (Span *)ds.p;
    a.out = (float *)out.p, a.pages.pool = (uchar *)dpool.p, a.pages.page_bytes = page_bytes, a.pages.layer_offset = layer;
    a.pages.tables = (uint *)dt.p, a.pages.table_stride = per_table, a.pages.page_len = c.page_len, a.pages.n_kv_heads = c.n_kv, a.pages.head_dim = c.d;
    // Makes the choice of compile/attention.rs.
    const bool grouped = c.d % 64 == 0;
    const std::map<int, int> bytes = {{64, 65536}, {80, 45056}, {96, 53248}, {128, 131072}, {256, 196608}};
    const int shared = bytes.at(c.d), queries = grouped ? 128 : 64;
    CUfunction f = (grouped ? wgmma : flash).function((grouped ? "wgmma_f16_" : "flash_f16_") + std::to_string(c.d), shared);
    const int blocks = grouped ? c.n_kv : c.n_heads;
    auto go = [&](int) { launch(f, blocks, (n * (c.n_heads / blocks) + queries - 1) / queries + n_spans - 1, 1, grouped ? 256 : 128, shared, a); };
    out.poison();
    go(0);
    std::vector<float> got = out.get<float>(q.size());
    double e2 = 0, r2 = 0;
    for (float v : got) if (!(fabsf(v) < 1e30f)) { e2 = NAN; break; }
    for (int sample = 0; sample < 60; sample++) {
        const int r = sample == 0 ? n - 1 : sample == 1 ? 0 : rnd() % n, h = rnd() % c.n_heads, kv = h / (c.n_heads / c.n_kv), s = row_spans[r];
        const int end = c.n_states ? c.n_states : positions[r] + 1, start = c.window && !c.n_states && end > c.window ? end - c.window : 0;
        std::vector<double> w(end);
        double most = c.sinks ? sinks[h] : -1e300, sum = 0;
        auto at = [&](int p, int head) { return &pool[(tables[s * per_table + p / c.page_len] * page_bytes + layer + ((size_t)head * c.page_len + p % c.page_len) * vector) / 2]; };
        for (int p = start; p < end; p++) {
            double dot = 0;
            for (int i = 0; i < c.d; i++) dot += (double)q[((size_t)r * c.n_heads + h) * c.d + i] * host_float(at(p, kv)[i]);
            dot *= a.scale;
            if (c.softcap > 0) dot = c.softcap * tanh(dot / c.softcap);
            w[p] = dot, most = std::max(most, dot);
        }
        for (int p = start; p < end; p++) sum += w[p] = exp(w[p] - most);
        if (c.sinks) sum += exp(sinks[h] - most);
        for (int i = 0; i < c.d; i++) {
            double v = 0;
            for (int p = start; p < end; p++) v += w[p] * host_float(at(p, c.n_kv + kv)[i]);
            v /= sum;
            const double g = got[((size_t)r * c.n_heads + h) * c.d + i];
            e2 += (g - v) * (g - v), r2 += v * v;
        }
    }
    const double err = sqrt(e2 / r2);
    if (!(err < 2e-3)) failures++;
    printf("  d %3d heads %d/%d page %d window %d cap %.0f sinks %d rows %d spans %d states %d: %.2e %s", c.d, c.n_heads, c.n_kv, c.page_len, c.window, c.softcap,
           c.sinks, n, n_spans, c.n_states, err, err < 2e-3 ? "ok" : "FAILED");
    if (timed) {
        const double us = time_us(5, 5, go);
        double pairs = 0;
        for (int r = 0; r < n; r++) pairs += c.window ? std::min<int>(c.window, positions[r] + 1) : positions[r] + 1;
        printf(", %.1f us, %.0f TFLOP/s", us, 4e-6 * pairs * c.d * c.n_heads / us);
    }
    printf("\n");
    fflush(stdout);
}

int main(int, char **argv) {
    gpu.open();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    g_seed ^= (uint64_t)now.tv_nsec << 20 ^ now.tv_sec;
    if (!flash.load(std::string(argv[1]) + "/flash_f16.cubin") || !wgmma.load(std::string(argv[1]) + "/wgmma_f16.cubin")) return 1;
    run({64, 4, 2, 16, 0, 0, false, {{37, 0}, {1, 200}, {130, 65}}}, false);
    run({80, 3, 1, 32, 0, 0, false, {{129, 3}, {64, 0}}}, false);
    run({96, 4, 4, 64, 50, 0, true, {{257, 10}}}, false);
    run({128, 6, 2, 32, 100, 20, true, {{300, 7}, {5, 0}}}, false);
    run({256, 4, 1, 64, 0, 50, false, {{200, 77}}}, false);
    run({256, 4, 1, 64, 33, 0, false, {{200, 77}}}, false);
    run({64, 4, 4, 64, 0, 0, false, {{3, 0}, {140, 1}}, 150}, false);
    std::vector<std::pair<int, int>> many;
    for (int i = 0; i < 70; i++) many.push_back({1 + (int)(rnd() % 9), (int)(rnd() % 100)});
    run({128, 2, 1, 16, 0, 0, false, many}, false);
    run({128, 16, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    run({64, 32, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    run({128, 32, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    run({128, 32, 8, 64, 0, 0, false, {{512, 7680}}}, true);
    run({128, 24, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    run({128, 16, 8, 64, 0, 0, false, {{512, 0}}}, true);
    run({128, 16, 8, 64, 0, 0, false, {{8192, 0}}}, true);
    run({64, 32, 8, 64, 0, 0, false, {{512, 0}}}, true);
    run({256, 8, 4, 64, 0, 0, false, {{2048, 0}}}, true);
    run({80, 16, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    run({96, 16, 8, 64, 0, 0, false, {{2048, 0}}}, true);
    printf(failures ? "%d FAILED\n" : "all checks passed\n", failures);
    return failures != 0;
}
