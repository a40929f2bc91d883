// Compares the kernels of prompts, run by the engine, with a plain evaluation. Usage: check [SEED]
#ifdef HOPPER
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#endif
#include "device.h"

#include "qk_rope_kv.cu"
// Both have one.
#define activate activate_product
#include "gemm/input.cu"
#include "attention_flash/prefill.cuh"
#ifdef HOPPER
#include "attention_flash/warpgroups.cuh"
#endif
#include <cstdlib>
#include <functional>
#include <vector>

static void run_grid(unsigned x, unsigned y, unsigned n_threads, const std::function<void()> &kernel) {
    const EmulatedLaunch launch = {"check", {x, y, 1}, n_threads, 232448, false, [](const void *of) { (*(const std::function<void()> *)of)(); }, &kernel};
    emulated_run(&launch);
}

typedef std::vector<float> Floats;
static uint below(uint n) { return rand() % n; }
static float number() { return (float)rand() / RAND_MAX * 4 - 2; }
static Floats numbers(size_t n) {
    Floats x(n);
    for (float &v : x) v = number();
    return x;
}
static int failures = 0;
// Compares by the root mean square of the difference, divided by that of `expected`. Elements that
// no thread has written are NaN, and fail.
static void compare(const char *what, const Floats &found, const std::vector<double> &expected, double bound) {
    double off = 0, size = 1e-30;
    for (size_t i = 0; i < expected.size(); i++) off += (found[i] - expected[i]) * (found[i] - expected[i]), size += expected[i] * expected[i];
    const double error = sqrt(off / size);
    if (error < bound) return;
    failures++;
    printf("FAILED  %s: %.1e, expected at most %.1e\n", what, error, bound);
}

// ---- pages

enum { F16, Q8_0, FP8 };
static double e4m3(uint b) {
    const int exponent = b >> 3 & 15;
    const double value = exponent ? ldexp(8 + (b & 7), exponent - 10) : ldexp(b & 7, -9);
    return b & 128 ? -value : value;
}
struct Pages {
    int kind;
    uint dim, n_kv, page_len, per_table, vector;
    size_t layer, page; // offset of the layer, bytes of a page
    std::vector<uint> tables;
    std::vector<uchar> pool;
    PagesArguments arguments = {};
    Pages(int kind, uint dim, uint n_kv, uint page_len, uint positions, uint n_spans)
        : kind(kind), dim(dim), n_kv(n_kv), page_len(page_len), per_table(positions / page_len + 1),
          vector(kind == F16 ? vector_bytes_f16(dim) : kind == Q8_0 ? vector_bytes_q8_0(dim) : vector_bytes_fp8(dim)), layer(256),
          page(layer + 2ull * n_kv * page_len * vector + 48), tables(per_table * n_spans), pool(page * tables.size(), 0xff) {
        for (uint i = 0; i < tables.size(); i++) tables[i] = i, std::swap(tables[i], tables[below(i + 1)]);
        arguments.pool = pool.data(), arguments.page_bytes = page, arguments.layer_offset = layer, arguments.tables = tables.data();
        arguments.table_stride = per_table, arguments.page_len = page_len, arguments.n_kv_heads = n_kv, arguments.head_dim = dim;
    }
    uchar *at(uint span, uint position, uint head) { // heads of values come after those of keys
        return &pool[tables[span * per_table + position / page_len] * page + layer + (head * page_len + position % page_len) * vector];
    }
    double value(uint span, uint position, uint head, uint column) {
        const uchar *v = at(span, position, head);
        if (kind == F16) return half_value(((const u16 *)v)[column]);
        if (kind == Q8_0) return half_value(((const u16 *)(v + dim))[column / 32]) * (signed char)v[column];
        return *(const float *)(v + (dim + 3) / 4 * 4) * e4m3(v[column]);
    }
    void fill(uint span, uint n_positions) {
        for (uint p = 0; p < n_positions; p++)
            for (uint h = 0; h < 2 * n_kv; h++) {
                uchar *v = at(span, p, h);
                for (uint i = 0; i < dim; i++)
                    if (kind == F16) ((u16 *)v)[i] = half_bits(number());
                    else v[i] = kind == Q8_0 ? below(256) : below(2) << 7 | below(127); // no NaN
                for (uint i = 0; kind == Q8_0 && i < dim / 32; i++) ((u16 *)(v + dim))[i] = half_bits(0.01f + 0.001f * number());
                if (kind == FP8) *(float *)(v + dim) = 0.004f;
            }
    }
};

// ---- attention of many rows

template <int D, FlashPages KIND> static void check_attention() {
    const uint n_kv = 1 + below(2), n_heads = n_kv * (1 + below(3)), page_len = 16 << below(3), n_spans = 1 + below(3);
    std::vector<Span> spans(n_spans);
    std::vector<uint> row_spans;
    uint longest = 0;
    for (uint i = 0; i < n_spans; i++) {
        spans[i].first_row = row_spans.size(), spans[i].n_rows = 1 + below(i ? 70 : 150), spans[i].first_position = below(200);
        row_spans.insert(row_spans.end(), spans[i].n_rows, i);
        longest = max(longest, spans[i].first_position + spans[i].n_rows);
    }
    const uint n = row_spans.size();
    AttentionArguments a = {};
    a.n_rows = n, a.n_heads = n_heads, a.n_states = below(6) ? 0 : 90 + below(60), a.window = below(3) ? 0 : 20 + below(100);
    a.both_ways = !a.n_states && below(5) == 0, a.scale = 0.125f, a.softcap = below(4) ? 0 : 20;
    Pages pages((int)KIND, D, n_kv, page_len, max(longest, a.n_states), n_spans);
    for (uint i = 0; i < n_spans; i++) pages.fill(i, a.n_states ? a.n_states : spans[i].first_position + spans[i].n_rows);
    const Floats q = numbers((size_t)n * n_heads * D), sinks = numbers(n_heads);
    Floats out(q.size(), NAN);
    a.q = q.data(), a.sinks = below(3) ? nullptr : sinks.data(), a.row_spans = row_spans.data(), a.spans = spans.data(), a.out = out.data();
    a.pages = pages.arguments;
#ifdef HOPPER
    if constexpr (D % 64 == 0) {
        typedef FlashWarpgroups<D> Shape;
        run_grid(n_kv, (n * n_heads / n_kv + Shape::QUERIES - 1) / Shape::QUERIES + n_spans - 1, Shape::THREADS, [&] { attention_warpgroups<D, KIND>(a); });
    } else
#endif
        run_grid(n_heads, (n + 63) / 64 + n_spans - 1, 128, [&] { attention_flash<D, KIND>(a); });
    std::vector<double> expected;
    for (uint r = 0; r < n; r++)
        for (uint h = 0; h < n_heads; h++) {
            const uint s = row_spans[r], own = spans[s].first_position + r - spans[s].first_row, kv = h / (n_heads / n_kv);
            const uint end = a.n_states ? a.n_states : a.both_ways ? spans[s].first_position + spans[s].n_rows : own + 1;
            const uint first = !a.n_states && a.window && own + 1 > a.window ? own + 1 - a.window : 0;
            std::vector<double> weight(end), values(D);
            double sum = a.sinks ? exp(sinks[h]) : 0;
            for (uint p = first; p < end; p++) {
                double score = 0;
                for (uint i = 0; i < D; i++) score += q[(r * n_heads + h) * D + i] * pages.value(s, p, kv, i);
                score *= a.scale;
                if (a.softcap > 0) score = a.softcap * tanh(score / a.softcap);
                sum += weight[p] = exp(score);
                for (uint i = 0; i < D; i++) values[i] += weight[p] * pages.value(s, p, n_kv + kv, i);
            }
            for (double v : values) expected.push_back(v / sum);
        }
    char what[200];
    snprintf(what, sizeof what, "attention, %d columns, pages %d of %u, window %u, soft cap %.0f, %u spans, %u states, sinks %d, both ways %u", D, (int)KIND, page_len,
             a.window, a.softcap, n_spans, a.n_states, a.sinks != nullptr, a.both_ways);
    compare(what, out, expected, 3e-3);
}

// ---- heads stored to the cache

static void check_heads() {
    const uint dims[] = {32, 64, 80, 96, 128, 192, 256, 640, 36};
    const int kind = below(3);
    const uint dim = kind == Q8_0 ? 32 << below(4) : dims[below(9)], n_q = below(3) ? 1 + below(7) : 0, n_kv = 1 + below(4), rows = 1 + below(5);
    Pages pages(kind, dim, n_kv, 16, 500, 2);
    const Floats q = numbers(rows * n_q * dim), k = numbers(rows * n_kv * dim), v = numbers(rows * n_kv * dim);
    const Floats q_weight = numbers(dim), k_weight = numbers(dim), frequencies = numbers(dim);
    Floats q_out(q.size(), NAN), k_out(k.size(), NAN);
    std::vector<uint> positions(rows), row_spans(rows);
    // A row of a sequence has a position of its own.
    for (uint r = 0; r < rows; r++) positions[r] = 90 * r + below(90), row_spans[r] = below(2);
    HeadsArguments a = {};
    a.n_rows = rows, a.n_q_heads = n_q, a.q_norm = below(2), a.k_norm = below(2), a.v_norm = below(2), a.interleaved = below(2), a.k_turns = below(3) > 0;
    a.n_dims = below(4) ? (below(2) ? dim : dim / 4 * 2) : 0, a.scale = 1.25f, a.q_eps = a.k_eps = a.v_eps = 1e-6f;
    a.q = q.data(), a.k = k.data(), a.v = v.data(), a.q_weight = below(2) ? q_weight.data() : nullptr, a.k_weight = below(2) ? k_weight.data() : nullptr;
    a.frequencies = frequencies.data(), a.positions = positions.data(), a.row_spans = row_spans.data(), a.q_out = q_out.data();
    a.k_out = below(2) ? k_out.data() : nullptr, a.pages = pages.arguments;
    run_grid((n_q + 2 * n_kv + 3) / 4, rows, 128, [&] { kind == F16 ? qk_rope_kv_f16(a) : kind == Q8_0 ? qk_rope_kv_q8_0(a) : qk_rope_kv_fp8(a); });
    const auto turned = [&](const float *x, uint row, bool norm, const float *weight, bool turns, std::vector<double> &to) {
        std::vector<double> y(x, x + dim);
        double squares = 0;
        for (double e : y) squares += e * e;
        for (uint i = 0; norm && i < dim; i++) y[i] *= (weight ? weight[i] : 1.0) / sqrt(squares / dim + 1e-6);
        for (uint pair = 0; turns && pair < a.n_dims / 2; pair++) {
            const uint i = a.interleaved ? 2 * pair : pair, j = a.interleaved ? i + 1 : pair + a.n_dims / 2;
            const double angle = (float)positions[row] * frequencies[pair], c = a.scale * cos(angle), s = a.scale * sin(angle), low = y[i], high = y[j];
            y[i] = low * c - high * s, y[j] = high * c + low * s;
        }
        to.insert(to.end(), y.begin(), y.end());
    };
    std::vector<double> of_q, of_k, of_v;
    Floats keys, values;
    for (uint r = 0; r < rows; r++) {
        for (uint h = 0; h < n_q; h++) turned(&q[(r * n_q + h) * dim], r, a.q_norm, a.q_weight, true, of_q);
        for (uint h = 0; h < n_kv; h++) {
            turned(&k[(r * n_kv + h) * dim], r, a.k_norm, a.k_weight, a.k_turns, of_k);
            turned(&v[(r * n_kv + h) * dim], r, a.v_norm, nullptr, false, of_v);
            for (uint i = 0; i < dim; i++) {
                keys.push_back(pages.value(row_spans[r], positions[r], h, i));
                values.push_back(pages.value(row_spans[r], positions[r], n_kv + h, i));
            }
        }
    }
    const double bound = kind == F16 ? 1e-3 : kind == Q8_0 ? 1e-2 : 5e-2;
    compare("queries", q_out, of_q, 1e-5), compare("keys", keys, of_k, bound), compare("values", values, of_v, bound);
    if (a.k_out) compare("keys for others", k_out, of_k, 1e-5);
}

// ---- inputs of a product

static void check_rows() {
    const uint widths[] = {8, 32, 100, 544, 1023, 1024, 1025, 1056, 2047, 2048, 2050, 3072, 4096, 4100, 8192, 8193, 9000};
    const uint n = widths[below(17)], rows = 1 + below(9), k_tiles = (n + 63) / 64 + below(2), groups = (rows + 7) / 8;
    alignas(16) static float x[9 * 9000], weight[9000];
    for (uint i = 0; i < rows * n; i++) x[i] = number() * (below(2000) ? 1 : 30000);
    for (float &w : weight) w = number();
    Floats scales(rows, NAN);
    std::vector<uint> pairs(rows);
    for (uint &pair : pairs) pair = below(5) ? below(2 * rows) : NO_ROW;
    std::vector<uchar> out((size_t)k_tiles * 64 * groups * 8 * 2, 0xff);
    InputArguments a = {};
    a.n_rows = rows, a.n_cols = n, a.x = x, a.weight = below(2) ? weight : nullptr, a.out = out.data(), a.scales = below(3) ? scales.data() : nullptr;
    a.pairs = below(3) ? nullptr : pairs.data(), a.pairs_a_row = 2, a.k_tiles = k_tiles, a.row_groups = groups, a.has_norm = below(2), a.eps = 1e-6f;
    // Makes the choice of compile/linear.rs.
    if (n <= 1024) run_grid(rows, 1, 128, [&] { rows_input_1024(a); });
    else if (n <= 2048) run_grid(rows, 1, 256, [&] { rows_input_2048(a); });
    else if (n <= 4096) run_grid(rows, 1, 256, [&] { rows_input_4096(a); });
    else run_grid(rows, 1, 256, [&] { rows_input(a); });
    Floats found;
    std::vector<double> expected;
    for (uint r = 0; r < rows; r++) {
        const bool none = a.pairs && pairs[r] == NO_ROW;
        const float *from = x + (a.pairs && !none ? pairs[r] / 2 : r) * n;
        double squares = 0;
        for (uint i = 0; i < n; i++) squares += (double)from[i] * from[i];
        const double by = a.has_norm ? 1 / sqrt(squares / n + 1e-6) : 1;
        for (uint i = 0; i < 64 * k_tiles; i++) {
            const float value = half_value(*(const u16 *)&out[tiled_chunk(i / 8, r, groups) + i % 8 * 2]);
            found.push_back(a.scales ? value * scales[r] : value);
            expected.push_back(none || i >= n ? 0 : from[i] * by * (a.has_norm && a.weight ? weight[i] : 1));
        }
    }
    compare("rows of a product", found, expected, 1e-3);
}

int main(int argc, char **argv) {
    const uint seed = argc > 1 ? atoi(argv[1]) : 1;
    srand(seed), emulated_seed(seed);
    for (int i = 0; i < 60; i++) check_heads(), check_rows();
    for (int i = 0; i < 2; i++) {
        check_attention<64, FLASH_F16>(), check_attention<64, FLASH_Q8_0>(), check_attention<64, FLASH_FP8>();
        check_attention<128, FLASH_F16>(), check_attention<128, FLASH_Q8_0>(), check_attention<128, FLASH_FP8>();
        check_attention<80, FLASH_F16>(), check_attention<96, FLASH_F16>(), check_attention<256, FLASH_F16>(), check_attention<256, FLASH_Q8_0>();
    }
    printf(failures ? "seed %u: %d FAILED\n" : "seed %u: all checks passed\n", seed, failures);
    return failures != 0;
}
