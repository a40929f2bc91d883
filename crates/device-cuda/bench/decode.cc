// Checks and times the persistent decode kernels. Usage: decode CUBIN_FOLDER [check | few | rows |
// rows_times | long | one | times | mixed]. `rows` checks and times several rows, and `rows_times`
// only times them. `long` times contexts up to 8,192 positions. SHAPE names the one model to time,
// such as 0.6B. Check: random small models, every token against a plain evaluation on the host. The
// evaluation rounds activations to integers as the kernel does ("mirrored") or not at all. It reads
// the tokens that the kernel chose. Times: shapes of known sizes, with the weights of one layer
// copied to all layers.
#include "blocks.h"
struct uint4 { unsigned x, y, z, w; };
#include "gemm/types.h"
#include "step.h"
#include "linear/arguments.h"
// Before persistent/arguments.h, whose include of this name would find itself.
#include "arguments.h"
#include "persistent/arguments.h"
#include <map>

static std::string folder;
static Module repacks;
// Bytes of the larger exchange.
static const size_t EXCHANGE = PERSISTENT_ROTARY_AT + PERSISTENT_MAX_BLOCKS * PERSISTENT_ROTARY;

struct Matrix { // a matrix as the file has it
    const FileType *type;
    int n, k;
    std::vector<u8> rows;
    Memory device;
    void make(const FileType &t, int n_, int k_) {
        type = &t, n = n_, k = k_, rows = random_rows(t, n, k);
        device.put(rows);
    }
    u64 row_bytes() const { return (u64)k / type->block * type->bytes; }
};
static bool is_half(const std::string &t) { return t == "f16" || t == "bf16"; }
static int codec_of(const std::string &t) { return is_half(t) ? PERSISTENT_CODEC_F16 : t == "q4_0" ? 0 : t == "q8_0" ? 2 : t == "q6_k" ? 3 : t[1] == '5' ? 4 : 1; }
static int unit_of(int codec) { return codec == 0 ? 576 : codec == 1 ? 640 : codec == 2 ? 1088 : codec == 3 ? 896 : codec == 4 ? 768 : 2048; }
static const FileType &type_of(const std::string &n) {
    for (const FileType &t : TYPES) if (n == t.name) return t;
    exit(1);
}

struct Shape {
    const char *name;
    int hidden, n_q, n_kv, d, ffn, n_layers, n_vocab;
    const char *qkv, *out, *gate, *down, *head;
    bool qk_norm, bias, post_norm, interleaved;
    int window;
    float softcap;
    int activation, page_len;
    // Types of v, down and k in every second layer, from the first one on, as files of Q4_K_M mix
    // them. Null: the type of the other layers.
    const char *more = nullptr, *more_k = nullptr;
    int n_parts() const { return 1 + (more != nullptr) + (more_k != nullptr); }
    bool has_halves() const {
        for (const char *t : {qkv, out, gate, down, head, more, more_k})
            if (t && is_half(t)) return true;
        return false;
    }
    // Bytes of a slot, as the device chooses them.
    int slot() const { return !has_halves() ? std::string(gate) == "q4_k" ? 10240 : 9216 : is_half(gate) ? 16384 : 18432; }
};

struct Layer {
    Matrix q, k, v, o, gate, up, down;
    std::vector<float> norm, norm2, q_norm, k_norm, bias, post1, post2;
    Memory d_norm, d_norm2, d_q_norm, d_k_norm, d_bias, d_post1, d_post2, p_qkv[3], p_o, p_gate, p_down;
};

struct Model {
    Shape s;
    int H;
    std::vector<Layer> layers;
    Matrix head;
    std::vector<float> final_norm, rotations, frequencies;
    Memory d_final, d_frequencies, p_head, pool, table, phases, inputs, places, row_spans, spans, choices, tokens, logits, trace, exchange;
    Module kernel;
    std::vector<uint> pages;
    u64 page_bytes, layer_bytes;
    int max_position, n_rows = 1; // rows of a step, each of another sequence
    bool several;                 // use the kernel for several rows, which alone multiplies halves
    double weight_bytes = 0;

    static void norm_weights(std::vector<float> &v, Memory &m, int n) {
        v.resize(n);
        for (float &x : v) x = 0.8f + 0.4f * uniform();
        m.put(v);
    }
    void repack(Memory &to, const Matrix &m, const Matrix *up, int first_row, int rows0, int n_rows, u32 groups) {
        PersistentRepackArguments r = {};
        r.n_rows = n_rows, r.n_cols = m.k, r.rows = (u8 *)m.device.p + rows0 * m.row_bytes(), r.up_rows = up ? (u8 *)up->device.p : nullptr;
        r.packed = (u8 *)to.p, r.row_bytes = m.row_bytes(), r.first_group = first_row / 8, r.k_quads = quads(m.k), r.warps = warps(m.k), r.groups = groups, r.n_blocks = gpu.n_sm, r.gate = up != nullptr;
        launch(repacks.function(std::string("persistent_repack_") + m.type->name), r.k_quads, (n_rows + 7) / 8 * (up ? 2 : 1), 1, 256, 0, r);
    }
    static int quads(int k) { return (k + 1023) / 1024; }
    static int warps(int k) { return ((k + 127) / 128 + quads(k) - 1) / quads(k); }
    size_t packed_bytes(const Matrix &m, u32 groups) { return (size_t)groups * quads(m.k) * ((warps(m.k) * unit_of(codec_of(m.type->name)) + 127) / 128 * 128); }

    void make(const Shape &shape, int positions, bool same_layers, int rows = 1) {
        n_rows = rows, several = rows > 1 || shape.has_halves(), s = shape, H = s.n_q / s.n_kv, max_position = positions;
        const int n_made = !same_layers ? s.n_layers : s.more ? 2 : 1, qd = s.n_q * s.d;
        layers = std::vector<Layer>(n_made);
        const u32 q_groups = s.n_q * s.d / 8, kv_groups = s.n_kv * s.d / 8, qkv_groups = q_groups + 2 * kv_groups, hidden_groups = s.hidden / 8, gate_groups = (s.ffn + 7) / 8 * 2, head_groups = (s.n_vocab + 7) / 8;
        // Groups of the parts of q, k and v.
        std::vector<u32> parts = {qkv_groups};
        if (s.more) parts = {qkv_groups - kv_groups, kv_groups};
        if (s.more_k) parts = {q_groups, kv_groups, kv_groups};
        for (Layer &l : layers) {
            const bool more = (&l - &layers[0]) % 2 == 0;
            const char *k_type = more && s.more_k ? s.more_k : s.qkv, *v_type = more && s.more ? s.more : s.qkv;
            l.q.make(type_of(s.qkv), qd, s.hidden), l.k.make(type_of(k_type), s.n_kv * s.d, s.hidden), l.v.make(type_of(v_type), s.n_kv * s.d, s.hidden);
            l.o.make(type_of(s.out), s.hidden, qd), l.gate.make(type_of(s.gate), s.ffn, s.hidden), l.up.make(type_of(s.gate), s.ffn, s.hidden);
            l.down.make(type_of(more && s.more ? s.more : s.down), s.hidden, s.ffn);
            norm_weights(l.norm, l.d_norm, s.hidden), norm_weights(l.norm2, l.d_norm2, s.hidden);
            norm_weights(l.q_norm, l.d_q_norm, s.d), norm_weights(l.k_norm, l.d_k_norm, s.d);
            norm_weights(l.post1, l.d_post1, s.hidden), norm_weights(l.post2, l.d_post2, s.hidden);
            norm_weights(l.bias, l.d_bias, qkv_groups * 8);
            l.p_o.make(packed_bytes(l.o, hidden_groups));
            l.p_gate.make(packed_bytes(l.gate, gate_groups)), l.p_down.make(packed_bytes(l.down, hidden_groups));
            const Matrix *matrices[3] = {&l.q, &l.k, &l.v};
            u32 at = 0, part = 0; // first group, part
            for (const Matrix *m : matrices) {
                if (at == parts[part]) at = 0, part++;
                if (at == 0) l.p_qkv[part].make(packed_bytes(*m, parts[part]));
                repack(l.p_qkv[part], *m, nullptr, at * 8, 0, m->n, parts[part]);
                at += m->n / 8;
            }
            repack(l.p_o, l.o, nullptr, 0, 0, s.hidden, hidden_groups);
            repack(l.p_gate, l.gate, &l.up, 0, 0, s.ffn, gate_groups);
            repack(l.p_down, l.down, nullptr, 0, 0, s.hidden, hidden_groups);
        }
        head.make(type_of(s.head), s.n_vocab, s.hidden);
        p_head.make(packed_bytes(head, head_groups));
        repack(p_head, head, nullptr, 0, 0, s.n_vocab, head_groups);
        norm_weights(final_norm, d_final, s.hidden);
        rotations.resize((size_t)positions * s.d);
        for (int p = 0; p < positions; p++)
            for (int i = 0; i < s.d / 2; i++) {
                const double a = p * pow(1e6, -2.0 * i / s.d);
                rotations[((size_t)p * s.d / 2 + i) * 2] = cos(a), rotations[((size_t)p * s.d / 2 + i) * 2 + 1] = sin(a);
            }
        for (int i = 0; i < s.d / 2; i++) frequencies.push_back(pow(1e6, -2.0 * i / s.d));
        d_frequencies.put(frequencies);
        if (!kernel.load(folder + "/decode_" + (several ? "rows_" : "") + std::to_string(s.d) + "_" + std::to_string(H) + ".cubin")) exit(1);
        layer_bytes = 2ull * s.n_kv * s.page_len * s.d * 2, page_bytes = layer_bytes * s.n_layers;
        const int n_pages = (positions + s.page_len - 1) / s.page_len * rows;
        pages.resize(n_pages);
        for (int i = 0; i < n_pages; i++) pages[i] = i;
        for (int i = n_pages; i-- > 1;) std::swap(pages[i], pages[rnd() % (i + 1)]);
        table.put(pages);
        pool.make(n_pages * page_bytes, 0);
        std::vector<PersistentPhase> list;
        for (int i = 0; i < s.n_layers; i++) {
            Layer &l = layers[i % n_made], &next = layers[std::min(i + 1, s.n_layers - 1) % n_made];
            auto weights = [&](const Memory &m) -> uchar * { // each layer has a copy
                weight_bytes += m.n;
                if (!same_layers) return (uchar *)m.p;
                CUdeviceptr p;
                CHECK(cuMemAlloc(&p, m.n));
                CHECK(cuMemcpyDtoDAsync(p, m.p, m.n, gpu.stream));
                return (uchar *)p;
            };
            PersistentPhase p = {};
            p.kind = PERSISTENT_QKV, p.input = EXCHANGE_INPUT, p.rotation = 1, p.k_quads = quads(s.hidden), p.warps = warps(s.hidden), p.chunks = s.hidden / 8;
            if (s.qk_norm) p.q_norm_or_second_bias = (float *)l.d_q_norm.p, p.k_norm_or_factors = (float *)l.d_k_norm.p;
            p.pages = (uchar *)pool.p + i * layer_bytes, p.page_bytes = page_bytes, p.window = i & 1 ? s.window : 0;
            const int n_parts = s.n_parts();
            for (int part = 0; part < n_parts; part++) {
                const Matrix &of = part == 0 ? l.q : part + 1 == n_parts ? l.v : l.k;
                p.weights = weights(l.p_qkv[part]), p.codec = codec_of(of.type->name), p.groups = parts[part];
                p.qkv_part = (part > 0 ? PERSISTENT_CONTINUES : 0) | (part + 1 < n_parts ? PERSISTENT_CONTINUED : 0) | (part == 1 ? PERSISTENT_REVERSED : 0) |
                             (n_parts == 3 && part != 1 ? PERSISTENT_OF_THREE : 0);
                if (s.bias) p.bias = (float *)l.d_bias.p + p.first_row;
                list.push_back(p);
                p.first_row += parts[part] * 8;
            }
            p = {};
            p.weights = weights(l.p_o), p.kind = PERSISTENT_ADD, p.input = EXCHANGE_ATTENDED, p.codec = codec_of(s.out), p.groups = hidden_groups, p.k_quads = quads(qd), p.warps = warps(qd), p.chunks = qd / 8, p.norm_or_sinks = (float *)l.d_norm2.p;
            if (s.post_norm) p.post_norm = (float *)l.d_post1.p;
            list.push_back(p);
            p = {};
            p.weights = weights(l.p_gate), p.kind = PERSISTENT_GATE, p.input = EXCHANGE_MIDDLE, p.codec = codec_of(s.gate), p.groups = gate_groups, p.k_quads = quads(s.hidden), p.warps = warps(s.hidden), p.chunks = s.hidden / 8, p.activation = s.activation, p.gate_refill = 1;
            list.push_back(p);
            p = {};
            p.weights = weights(l.p_down), p.kind = PERSISTENT_ADD, p.input = EXCHANGE_GATED, p.codec = codec_of(l.down.type->name), p.groups = hidden_groups, p.k_quads = quads(s.ffn), p.warps = warps(s.ffn), p.chunks = (s.ffn + 7) / 8;
            p.norm_or_sinks = (float *)(i + 1 < s.n_layers ? next.d_norm.p : d_final.p);
            if (s.post_norm) p.post_norm = (float *)l.d_post2.p;
            list.push_back(p);
        }
        PersistentPhase p = {};
        p.weights = (uchar *)p_head.p, p.kind = PERSISTENT_HEAD, p.input = EXCHANGE_INPUT, p.codec = codec_of(s.head), p.groups = head_groups, p.k_quads = quads(s.hidden), p.warps = warps(s.hidden), p.chunks = s.hidden / 8;
        weight_bytes += p_head.n;
        list.push_back(p);
        phases.put(list);
        tokens.make(4 * 4096), places.make(4 * 4096), choices.make(4096 * sizeof(Choice)), inputs.make(4ull * 256 * s.hidden), logits.make(4ull * rows * s.n_vocab), trace.make(4ull * 256 * s.hidden), exchange.make(EXCHANGE);
    }
    int most_quads() const { return several ? std::max(PERSISTENT_FEWEST_QUADS, quads(s.hidden)) : std::max({quads(s.hidden), quads(s.n_q * s.d), quads(s.ffn)}); }
    int pages_of_row() const { return pages.size() / n_rows; }

    struct Settings {
        int slot_bytes = 18432, poll = 300, gates = 1, in_flight = 4;
    } set;
    int stop = 0; // phases that run, 0 for all
    // Runs tokens, a launch each, row r from position first[r] on. With `chained` a step begins
    // with the embeddings of the tokens that the step before chose; otherwise all steps begin with
    // equal ones. Tokens are (1 + n, n_rows), of which the first row is given.
    float run(const std::vector<int> &first, int n, const std::vector<uint> &first_tokens, bool traced, bool chained) {
        PersistentArguments a = {};
        a.n_rows = n_rows, a.n_phases = (3 + s.n_parts()) * s.n_layers + 1, a.phases = (PersistentPhase *)phases.p, a.x = (float *)inputs.p;
        a.first_norm = (float *)layers[0].d_norm.p, a.frequencies1 = (float *)d_frequencies.p, a.page_table = (uint *)table.p, a.table_stride = pages_of_row();
        a.chosen = a.host_chosen = (uint *)tokens.p, a.logits = (float *)logits.p, a.exchange = (uchar *)exchange.p, a.rotation_scale1 = 1;
        a.hidden = s.hidden, a.n_kv_heads = s.n_kv, a.n_vocab = s.n_vocab, a.n_splits = std::min(16, gpu.n_sm / s.n_kv), a.page_len = s.page_len;
        a.slot_bytes = set.slot_bytes, a.eps = 1e-6f, a.attention_scale = 1.4426950408889634f / sqrtf(s.d), a.softcap = s.softcap, a.interleaved = s.interleaved;
        a.poll_delay = set.poll, a.refill_gates = set.gates, a.in_flight = set.in_flight, a.most_quads = most_quads(), a.stop_phase = stop ? stop : a.n_phases;
        const int own = several ? PERSISTENT_SHARED_ROWS(s.d, H) + PERSISTENT_ROWS_INPUT * most_quads() : PERSISTENT_SHARED(s.d, H) + 80 * 32 * most_quads();
        const int tail = own + sizeof(PersistentPhase) * a.n_phases;
        a.n_slots = std::min(PERSISTENT_MAX_SLOTS, (232448 - tail) / set.slot_bytes);
        const int shared = a.n_slots * set.slot_bytes + tail;
        CUfunction f = kernel.function(std::string("persistent_decode_") + (several ? "rows_" : "") + std::to_string(s.d) + "_" + std::to_string(H), shared);
        std::vector<uint> at(n * n_rows);
        std::vector<Choice> how(n * n_rows);
        for (int i = 0; i < n * n_rows; i++) at[i] = first[i % n_rows] + i / n_rows, how[i] = Choice(), how[i].how = CHOOSE_BEST, how[i].chosen = n_rows + i;
        places.put(at), choices.put(how);
        std::vector<uint> numbers(n_rows); // each row belongs to another sequence
        std::vector<Span> sequences(n_rows, Span());
        for (int r = 0; r < n_rows; r++) numbers[r] = r, sequences[r].first_row = r, sequences[r].n_rows = 1;
        row_spans.put(numbers), spans.put(sequences);
        a.row_spans = (uint *)row_spans.p, a.spans = (Span *)spans.p;
        CHECK(cuMemsetD8Async(exchange.p, 0, EXCHANGE, gpu.stream));
        CHECK(cuMemcpyHtoDAsync(tokens.p, first_tokens.data(), 4 * n_rows, gpu.stream));
        CUevent e0, e1;
        cuEventCreate(&e0, 0), cuEventCreate(&e1, 0);
        auto input = [&](const uint *ids) {
            std::vector<float> all;
            for (int r = 0; r < n_rows; r++) {
                const std::vector<double> row = decode_row(*head.type, head.rows, ids[r], s.hidden);
                all.insert(all.end(), row.begin(), row.end());
            }
            inputs.put(all);
        };
        // the caller's time limit ends a kernel that hangs; the message says where it was
        auto wait = [&] {
            cuEventRecord(e1, gpu.stream);
            for (int i = 0; cuEventQuery(e1) == CUDA_ERROR_NOT_READY; i++) {
                struct timespec t = {0, 1000000};
                nanosleep(&t, nullptr);
                if (i == 4000) {
                    printf("  %s hangs (%d rows, position %d, %d tokens)\n", s.name, n_rows, first[0], n);
                    fflush(stdout);
                    _Exit(3);
                }
            }
            CHECK(cuEventSynchronize(e1));
        };
        input(first_tokens.data());
        a.x = (float *)inputs.p;
        cuEventRecord(e0, gpu.stream);
        for (int t = 0; t < n; t++) {
            if (chained && t > 0) {
                wait();
                input(&tokens.get<uint>((t + 1) * n_rows)[t * n_rows]);
                a.x = (float *)inputs.p;
            }
            a.position = (uint *)places.p + t * n_rows, a.choice = (Choice *)choices.p + t * n_rows;
            a.trace = traced ? (float *)trace.p + (size_t)t * n_rows * s.hidden : nullptr;
            void *args[] = {&a};
            CHECK(cuLaunchCooperativeKernel(f, gpu.n_sm, 1, 1, 320, 1, 1, shared, gpu.stream, args));
        }
        wait();
        float ms;
        cuEventElapsedTime(&ms, e0, e1);
        return ms * 1e3f / n;
    }
};

// ---- plain evaluation
// `most` is the largest integer, 127 for one row and 511 for several. With 0 nothing is rounded.
static void round_chunks(std::vector<double> &x, int most) {
    if (!most) return;
    for (size_t i = 0; i + 8 <= x.size(); i += 8) {
        float largest = 1e-20f;
        for (int j = 0; j < 8; j++) largest = std::max(largest, (float)fabs(x[i + j]));
        largest *= 1.0f / most;
        u32 b;
        memcpy(&b, &largest, 4);
        b = (b + 0x7FFFF) >> 19 << 19;
        float scale;
        memcpy(&scale, &b, 4);
        for (int j = 0; j < 8; j++) x[i + j] = (double)scale * rint(x[i + j] / scale);
    }
}
struct Plain {
    Model &m;
    // 1: activations are rounded as in the kernel; 2: products of K-type scales are halves too
    int mirrored;
    std::map<const Matrix *, std::vector<float>> decoded;
    std::vector<std::vector<float>> keys, values; // (layer) position, kv head, d
    explicit Plain(Model &m_, int mirrored_) : m(m_), mirrored(mirrored_) {}
    int most() const { return !mirrored ? 0 : m.several ? 511 : 127; }
    std::vector<double> product(const Matrix &w, const std::vector<double> &x) {
        std::vector<float> &f = decoded[&w];
        if (f.empty())
            for (int r = 0; r < w.n; r++) {
                std::vector<double> row = decode_row(*w.type, w.rows, r, w.k);
                const std::string t = w.type->name;
                if (mirrored == 2 && (t == "q4_k" || t == "q5_k" || t == "q6_k")) {
                    const u8 *b = &w.rows[r * w.row_bytes()];
                    auto half = [](float x) { return (double)host_float(host_half(x)); };
                    for (int c = 0; c < w.k; c++) {
                        const u8 *p = b + c / 256 * w.type->bytes;
                        const int i = c % 256;
                        if (t == "q6_k") {
                            const double d = get_half(p + 208) * (float)(int8_t)p[192 + i / 16];
                            if (d != 0) row[c] = row[c] / d * half((float)d);
                        } else {
                            const u8 *sc = p + 4;
                            const int j = i / 32, a = j < 4 ? sc[j] & 63 : (sc[j + 4] & 15) | sc[j - 4] >> 6 << 4, mn = j < 4 ? sc[j + 4] & 63 : sc[j + 4] >> 4 | sc[j] >> 6 << 4;
                            const u8 byte = p[(t == "q5_k" ? 48 : 16) + j / 2 * 32 + i % 32];
                            const int q = ((j & 1) ? byte >> 4 : byte & 15) | (t == "q5_k" ? (p[16 + i % 32] >> j & 1) << 4 : 0);
                            row[c] = half(get_half(p) * a) * q - half(get_half(p + 2) * mn);
                        }
                    }
                }
                f.insert(f.end(), row.begin(), row.end());
            }
        std::vector<double> y(w.n);
        for (int r = 0; r < w.n; r++) {
            double s = 0;
            for (int c = 0; c < w.k; c++) s += f[(size_t)r * w.k + c] * x[c];
            y[r] = s;
        }
        return y;
    }
    static double scale_of(const std::vector<double> &x) {
        double s = 0;
        for (double v : x) s += v * v;
        return 1 / sqrt(s / x.size() + 1e-6);
    }
    std::vector<double> normed_product_input(const std::vector<double> &x, const std::vector<float> &w) {
        std::vector<double> y(x.size());
        for (size_t i = 0; i < x.size(); i++) y[i] = x[i] * w[i];
        round_chunks(y, most());
        const double s = scale_of(x);
        for (double &v : y) v *= s;
        return y;
    }
    std::vector<double> token(u32 id, int position) {
        const Shape &s = m.s;
        const int H = m.H;
        std::vector<double> x = decode_row(*m.head.type, m.head.rows, id, s.hidden);
        for (int l = 0; l < s.n_layers; l++) {
            Layer &L = m.layers[l];
            std::vector<double> in = normed_product_input(x, L.norm);
            std::vector<double> q = product(L.q, in), k = product(L.k, in), v = product(L.v, in);
            auto heads = [&](std::vector<double> &h, int n, const std::vector<float> &w, int which) {
                for (int i = 0; i < n; i++) {
                    const int row = ((which == 0 ? 0 : which == 1 ? s.n_q : s.n_q + s.n_kv) + i) * s.d;
                    double *p = &h[i * s.d];
                    if (s.bias) for (int c = 0; c < s.d; c++) p[c] += L.bias[row + c];
                    if (which == 2) continue;
                    if (s.qk_norm) {
                        double ss = 0;
                        for (int c = 0; c < s.d; c++) ss += p[c] * p[c];
                        for (int c = 0; c < s.d; c++) p[c] *= w[c] / sqrt(ss / s.d + 1e-6);
                    }
                    for (int c = 0; c < s.d / 2; c++) {
                        const int a = s.interleaved ? 2 * c : c, b = s.interleaved ? 2 * c + 1 : c + s.d / 2;
                        const double co = m.rotations[((size_t)position * s.d / 2 + c) * 2], si = m.rotations[((size_t)position * s.d / 2 + c) * 2 + 1];
                        const double u = p[a], w2 = p[b];
                        p[a] = u * co - w2 * si, p[b] = w2 * co + u * si;
                    }
                }
            };
            heads(q, s.n_q, L.q_norm, 0), heads(k, s.n_kv, L.k_norm, 1), heads(v, s.n_kv, L.k_norm, 2);
            for (int i = 0; i < s.n_kv * s.d; i++) {
                keys[l][(size_t)position * s.n_kv * s.d + i] = host_float(host_half((float)k[i]));
                values[l][(size_t)position * s.n_kv * s.d + i] = host_float(host_half((float)v[i]));
            }
            std::vector<double> att(s.n_q * s.d);
            const int window = l & 1 ? s.window : 0, first = window && position + 1 > window ? position + 1 - window : 0;
            for (int h = 0; h < s.n_q; h++) {
                std::vector<double> w(position + 1);
                double most = -1e300, sum = 0;
                for (int p = first; p <= position; p++) {
                    double dot = 0;
                    for (int c = 0; c < s.d; c++) dot += q[h * s.d + c] * keys[l][((size_t)p * s.n_kv + h / H) * s.d + c];
                    dot /= sqrt(s.d);
                    if (s.softcap > 0) dot = s.softcap * tanh(dot / s.softcap);
                    w[p] = dot, most = std::max(most, dot);
                }
                for (int p = first; p <= position; p++) sum += w[p] = exp(w[p] - most);
                for (int p = first; p <= position; p++)
                    for (int c = 0; c < s.d; c++) att[h * s.d + c] += w[p] / sum * values[l][((size_t)p * s.n_kv + h / H) * s.d + c];
            }
            round_chunks(att, most());
            auto add = [&](std::vector<double> y, const std::vector<float> &post) {
                const double sc = scale_of(y);
                for (int i = 0; i < s.hidden; i++) x[i] += s.post_norm ? y[i] * sc * post[i] : y[i];
            };
            add(product(L.o, att), L.post1);
            in = normed_product_input(x, L.norm2);
            std::vector<double> g = product(L.gate, in), u = product(L.up, in);
            for (int i = 0; i < s.ffn; i++) {
                const double z = g[i];
                g[i] = u[i] * (s.activation == 0 ? z / (1 + exp(-z)) : 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))));
            }
            round_chunks(g, most());
            add(product(L.down, g), L.post2);
        }
        last_x = x;
        return product(m.head, normed_product_input(x, m.final_norm));
    }
    std::vector<double> last_x;
};

static int failures = 0;
static void check(const Shape &s, int first_position, int n, int n_rows = 1) {
    if (getenv("ONLY") && std::string(s.name) != getenv("ONLY")) return;
    Model m;
    m.make(s, first_position + n + 40, false, n_rows);
    if (s.has_halves()) m.set.slot_bytes = s.slot(), m.set.in_flight = 2;
    // Rows at different positions, with random histories.
    std::vector<int> first;
    std::vector<uint> first_tokens;
    for (int r = 0; r < n_rows; r++) first.push_back(r == 0 ? first_position : rnd() % (first_position + 1)), first_tokens.push_back(1 + r);
    struct History {
        std::vector<std::vector<float>> keys, values;
    };
    std::vector<History> histories(n_rows);
    std::vector<uint16_t> pool(m.pool.n / 2);
    for (int r = 0; r < n_rows; r++)
        for (int l = 0; l < s.n_layers; l++) {
            auto &keys = histories[r].keys, &values = histories[r].values;
            keys.emplace_back((size_t)m.max_position * s.n_kv * s.d), values.push_back(keys[l]);
            for (int p = 0; p < first[r]; p++)
                for (int h = 0; h < s.n_kv; h++)
                    for (int c = 0; c < s.d; c++) {
                        const uint16_t k = host_half(normal()), v = host_half(normal());
                        keys[l][((size_t)p * s.n_kv + h) * s.d + c] = host_float(k), values[l][((size_t)p * s.n_kv + h) * s.d + c] = host_float(v);
                        const u64 page = m.pages[r * m.pages_of_row() + p / s.page_len];
                        const u64 at = page * m.page_bytes + l * m.layer_bytes + (((u64)h * s.page_len + p % s.page_len) * s.d + c) * 2;
                        pool[at / 2] = k, pool[(at + m.layer_bytes / 2) / 2] = v;
                    }
        }
    m.pool.put(pool);
    m.trace.poison(), m.logits.poison();
    m.run(first, n, first_tokens, true, true);
    const std::vector<uint> tokens = m.tokens.get<uint>((n + 1) * n_rows);
    const std::vector<float> x = m.trace.get<float>((size_t)n * n_rows * s.hidden), logits = m.logits.get<float>(n_rows * s.n_vocab);
    for (int mirrored = 2; mirrored >= 0; mirrored--) {
        // The repack rounds scales of K types. A value that this moves over a rounding step of int8
        // differs by a whole step, so "mirrored" is no nearer than "float". An evaluation on the
        // host alone shows the same 1.7e-2. The tight check is then 2.
        const bool k_types = std::string(s.gate) == "q4_k" || std::string(s.gate) == "q6_k";
        if (mirrored == 2 && !k_types) continue;
        Plain plain(m, mirrored);
        double e2 = 0, r2 = 0, le = 0, lr = 0;
        int same = 0, near_best = 0;
        for (int r = 0; r < n_rows; r++) {
            plain.keys = histories[r].keys, plain.values = histories[r].values;
            for (int t = 0; t < n; t++) {
                const std::vector<double> want = plain.token(tokens[t * n_rows + r], first[r] + t);
                for (int i = 0; i < s.hidden; i++) {
                    const double d = x[((size_t)t * n_rows + r) * s.hidden + i] - plain.last_x[i];
                    e2 += d * d, r2 += plain.last_x[i] * plain.last_x[i];
                }
                const int top = std::max_element(want.begin(), want.end()) - want.begin();
                const u32 chosen = tokens[(t + 1) * n_rows + r];
                same += top == (int)chosen;
                near_best += chosen < (u32)s.n_vocab && want[top] - want[chosen] < 0.03 * fabs(want[top]);
                if (t == n - 1)
                    for (int i = 0; i < s.n_vocab; i++) {
                        const double d = logits[(size_t)r * s.n_vocab + i] - want[i];
                        le += d * d, lr += want[i] * want[i];
                    }
            }
        }
        // Scales of K types in halves move activations over a rounding step: 1.5e-2 to 2.0e-2.
        // Weights of positions in halves do so too, mostly by less than 1.3e-2, once by 2.0e-2 with
        // post-norms.
        const double err = sqrt(e2 / r2), lerr = sqrt(le / lr), limit = mirrored == 2 || (mirrored == 1 && !k_types) ? 2.5e-2 : 4e-2;
        const bool ok = err < limit && lerr < limit && near_best == n * n_rows;
        if (!ok) failures++;
        printf("  %-26s %d rows from %4d, %2d tokens, %s: residual %.1e, logits %.1e, best the same %d, within 3 %% %d of %d %s\n", s.name, n_rows, first_position,
               n, mirrored == 2 ? "mirrored all " : mirrored ? "mirrored     " : "float        ", err, lerr, same, near_best, n * n_rows, ok ? "ok" : "FAILED");
        fflush(stdout);
    }
    // A second run must give the same bits.
    m.pool.put(pool);
    m.run(first, n, first_tokens, true, true);
    const std::vector<float> again = m.trace.get<float>(x.size());
    if (memcmp(again.data(), x.data(), x.size() * 4)) failures++, printf("  %s: a second run differs\n", s.name);
}

static void time_model(const Shape &s) {
    Model m;
    m.make(s, 9000, true);
    printf("  %s: %.1f MB a token, at 4.3 TB/s %.1f us\n", s.name, m.weight_bytes / 1e6, m.weight_bytes / 4.3e6);
    auto median = [&](int position, int n, int times) {
        std::vector<float> v;
        for (int i = 0; i < times; i++) v.push_back(m.run({position}, n, {1}, false, false));
        std::sort(v.begin(), v.end());
        return v[times / 2];
    };
    for (int stop : {1, 2, 3, 4, 5, (3 + s.n_parts()) * s.n_layers, 0}) {
        m.set = {9216, 0, 1}, m.stop = stop;
        printf("    one token from 128, first %d phases (0: all): %.1f us with the launch\n", stop, median(128, 1, 7));
    }
    m.stop = 0;
    for (int slot : {9216, 18432}) for (int poll : {0, 100}) for (int gates : {0, 1}) {
        m.set = {slot, poll, gates};
        printf("    slot %5d poll %3d gates %d: %7.1f us\n", slot, poll, gates, median(128, 64, 3));
    }
    m.set = {9216, 0, 1};
    for (int position : {0, 128, 512, 1024, 2048}) {
        const float us = median(position, 64, 3);
        printf("    position %4d: %.1f us/token, %.0f tok/s, %.0f GB/s\n", position, us, 1e6 / us, m.weight_bytes / us / 1e3);
    }
    fflush(stdout);
}

// Few and small checks, for sanitizers.
static void few_checks() {
    const char *q4 = "q4_0", *q8 = "q8_0", *q4k = "q4_k", *q6 = "q6_k";
    const Shape plain = {"plain q4", 320, 4, 2, 64, 448, 2, 1003, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 16};
    check(plain, 0, 3), check(plain, 290, 2), check(plain, 0, 3, 8), check(plain, 290, 2, 3);
    const Shape mixed = {"Q4_K_M", 768, 8, 4, 64, 1536, 2, 999, q4k, q4k, q4k, q4k, q6, true, true, true, false, 0, 0, 0, 32, q6};
    check(mixed, 30, 2), check(mixed, 300, 2, 5);
    printf(failures ? "%d FAILED\n" : "few checks passed\n", failures);
}

static void time_rows(const Shape &s) {
    Model m;
    m.make(s, 2100, true, PERSISTENT_MOST_ROWS);
    for (int rows : {1, 2, 4, 8}) for (int in_flight : {2, 3, 4}) {
        if (s.has_halves() ? in_flight == 4 : rows == 1 || in_flight < 4) continue;
        m.n_rows = rows;
        m.set = {s.slot(), 200, 1, in_flight};
        auto us = [&](int position, int n) {
            std::vector<float> v;
            for (int i = 0; i < 5; i++) v.push_back(m.run(std::vector<int>(rows, position), n, std::vector<uint>(rows, 1), false, false));
            std::sort(v.begin(), v.end());
            return v[2];
        };
        printf("    %s, %d rows, %d on their way:", s.name, rows, in_flight);
        for (int position : {128, 2000}) {
            const float t = us(position, 64);
            printf("  position %d: %.1f us, %.0f tok/s", position, t, rows * 1e6 / t);
        }
        // Time of each phase of the sixth layer: the difference between launches that stop before
        // and after it.
        printf("; q k v, o, gate, down:");
        float before = 0;
        for (int i = 0; i <= 4; i++) {
            m.stop = (3 + s.n_parts()) * 5 + i;
            const float t = us(128, 1);
            if (i > 0) printf(" %.1f", t - before);
            before = t;
        }
        m.stop = 0;
        printf("\n");
        fflush(stdout);
    }
}

static void time_long(const Shape &s) {
    Model m;
    m.make(s, 8300, true);
    m.set = {s.slot(), 200, 1, 4};
    printf("    %s:", s.name);
    for (int position : {64, 128, 512, 2048, 8192}) {
        std::vector<float> v;
        for (int i = 0; i < 5; i++) v.push_back(m.run({position}, 64, {1}, false, false));
        std::sort(v.begin(), v.end());
        printf("  position %d: %.1f us", position, v[2]);
    }
    // Time of each phase of four layers from the sixth on: the difference between launches that
    // stop before and after it.
    for (int position : {128, 8192}) {
        printf("; at %d q k v, o, gate, down:", position);
        float sums[4] = {};
        for (int layer = 5; layer < 9; layer++) {
            float before = 0;
            for (int i = 0; i <= 4; i++) {
                m.stop = (3 + s.n_parts()) * layer + i;
                std::vector<float> v;
                for (int j = 0; j < 3; j++) v.push_back(m.run({position}, 1, {1}, false, false));
                std::sort(v.begin(), v.end());
                if (i > 0) sums[i - 1] += v[1] - before;
                before = v[1];
            }
        }
        for (float sum : sums) printf(" %.1f", sum / 4);
        m.stop = 0;
    }
    printf("\n");
    fflush(stdout);
}

static void checks_rows() {
    const char *q4 = "q4_0", *q8 = "q8_0", *q4k = "q4_k", *q6 = "q6_k", *q41 = "q4_1", *q5k = "q5_k";
    check({"plain q4", 320, 4, 2, 64, 448, 2, 1003, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 16}, 0, 4, 2);
    check({"plain q4", 320, 4, 2, 64, 448, 2, 1003, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 16}, 50, 4, 8);
    check({"qk norm, bias, 128", 512, 6, 3, 128, 1280, 3, 2051, q8, q4, q41, q8, q4, true, true, false, false, 0, 0, 0, 64}, 45, 4, 5);
    check({"post norm, window, cap", 768, 8, 2, 64, 1536, 4, 999, q4k, q6, q4k, q6, q6, true, false, true, true, 40, 30, 1, 32}, 700, 2, 3);
    check({"K types only", 768, 8, 4, 64, 1536, 4, 999, q4k, q6, q4k, q6, q6, true, false, false, false, 0, 0, 0, 32}, 30, 2, 8);
    check({"wide", 2304, 8, 2, 128, 5120, 2, 1500, q4, q4, q4, q6, q8, true, false, false, false, 0, 0, 0, 64}, 1000, 2, 4);
    check({"Q4_K_M", 768, 8, 4, 64, 1536, 4, 999, q4k, q4k, q4k, q4k, q6, true, true, false, false, 0, 0, 0, 32, q6}, 30, 2, 7);
    check({"q, k and v differ", 768, 8, 4, 64, 1536, 4, 999, q4k, q4k, q4k, q5k, q6, true, true, false, false, 40, 0, 1, 32, q6, q5k}, 200, 2, 6);
    check({"Q4_0, Q5_0, Q8_0", 544, 6, 2, 64, 1120, 3, 999, q4, q4, "q5_0", "q5_1", q8, false, true, false, false, 0, 0, 0, 16, q8, "q5_0"}, 0, 4, 8);
    // Rows of halves may end within a block of 32 columns.
    const char *f16 = "f16", *bf16 = "bf16";
    check({"BF16", 328, 4, 2, 64, 440, 2, 1003, bf16, bf16, bf16, bf16, bf16, false, false, false, false, 0, 0, 0, 16}, 0, 6, 1);
    check({"F16, heads of 128", 1056, 6, 3, 128, 1280, 2, 2051, f16, f16, bf16, f16, f16, true, true, false, false, 0, 0, 0, 64}, 45, 4, 5);
    check({"Q8_0, Q4_0, F16, BF16", 768, 8, 4, 64, 1536, 4, 999, q8, q4, q8, q4, f16, true, true, true, true, 40, 30, 1, 32, bf16, f16}, 200, 2, 8);
    printf(failures ? "%d FAILED\n" : "all checks of several rows passed\n", failures);
}

static void checks() {
    const char *q4 = "q4_0", *q8 = "q8_0", *q4k = "q4_k", *q6 = "q6_k", *q41 = "q4_1";
    check({"plain q4", 320, 4, 2, 64, 448, 2, 1003, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 16}, 0, 6);
    check({"qk norm, bias, 128", 512, 6, 3, 128, 1280, 3, 2051, q8, q4, q41, q8, q4, true, true, false, false, 0, 0, 0, 64}, 45, 12);
    check({"post norm, window, cap", 768, 8, 2, 64, 1536, 4, 999, q4k, q6, q4k, q6, q6, true, false, true, true, 40, 30, 1, 32}, 700, 8);
    check({"post norm q4", 768, 8, 2, 64, 1536, 4, 999, q4, q4, q4, q4, q8, true, false, true, false, 0, 0, 1, 32}, 30, 8);
    check({"K types", 768, 8, 2, 64, 1536, 4, 999, q4k, q6, q4k, q6, q6, true, false, false, true, 40, 30, 1, 32}, 700, 8);
    check({"K types only", 768, 8, 4, 64, 1536, 4, 999, q4k, q6, q4k, q6, q6, true, false, false, false, 0, 0, 0, 32}, 30, 8);
    check({"q4 cap, window, pairs", 768, 8, 4, 64, 1536, 4, 999, q4, q4, q4, q4, q8, true, false, false, true, 40, 30, 1, 32}, 700, 8);
    check({"wide", 2304, 8, 2, 128, 5120, 2, 1500, q4, q4, q4, q6, q8, true, false, false, false, 0, 0, 0, 64}, 1000, 4);
    const char *q5k = "q5_k";
    check({"Q4_K_M", 768, 8, 4, 64, 1536, 4, 999, q4k, q4k, q4k, q4k, q6, true, true, false, false, 0, 0, 0, 32, q6}, 30, 8);
    check({"Q4_K_M, heads of 128", 1024, 16, 4, 128, 2048, 3, 999, q4k, q4k, q4k, q4k, q6, false, true, true, true, 40, 0, 0, 64, q6}, 500, 6);
    check({"q, k and v differ", 768, 8, 4, 64, 1536, 4, 999, q4k, q4k, q4k, q5k, q6, true, true, false, false, 40, 0, 1, 32, q6, q5k}, 200, 8);
    check({"Q4_0, Q5_0, Q8_0", 544, 6, 2, 64, 1120, 3, 999, q4, q4, "q5_0", "q5_1", q8, false, true, false, false, 0, 0, 0, 16, q8, "q5_0"}, 0, 6);
    check({"Q4_0, v of Q8_0", 320, 4, 2, 64, 448, 4, 1003, q4, q4, q4, q4, q8, false, true, false, false, 0, 0, 0, 16, q8}, 0, 6);
    printf(failures ? "%d FAILED\n" : "all checks passed\n", failures);
}

int main(int argc, char **argv) {
    gpu.open();
    if (getenv("BLOCKS")) gpu.n_sm = atoi(getenv("BLOCKS")); // fewer blocks that share rows equally
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    g_seed ^= (uint64_t)now.tv_nsec << 20 ^ now.tv_sec;
    folder = argv[1];
    if (!repacks.load(folder + "/persistent_repack.cubin")) return 1;
    const char *q4 = "q4_0", *q8 = "q8_0", *q4k = "q4_k", *q6 = "q6_k";
    const Shape of_06b = {"0.6B Q4_0", 1024, 16, 8, 128, 3072, 28, 151936, q4, q4, q4, q4, q8, true, false, false, false, 0, 0, 0, 64};
    const Shape of_1b = {"1B Q4_0", 2048, 32, 8, 64, 8192, 16, 128256, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 64};
    const Shape of_3b = {"3B Q4_0", 3072, 24, 8, 128, 8192, 28, 128256, q4, q4, q4, q4, q8, false, false, false, false, 0, 0, 0, 64};
    const Shape of_8b = {"8B Q4_K", 4096, 32, 8, 128, 12288, 36, 151936, q4k, q4k, q4k, q6, q6, true, false, false, false, 0, 0, 0, 64};
    const std::string what = argc > 2 ? argv[2] : "";
    if (what.empty() || what == "check") checks();
    if (what == "check") return failures;
    if (what == "few") {
        few_checks();
        return failures;
    }
    const std::string only = getenv("SHAPE") ? getenv("SHAPE") : "";
    const auto wanted = [&](const char *name) { return only.empty() || only == name; };
    if (what == "long") {
        if (wanted("0.6B")) time_long(of_06b);
        if (wanted("1B")) time_long(of_1b);
        if (wanted("3B")) time_long(of_3b);
        if (wanted("8B")) time_long(of_8b);
        return failures;
    }
    if (what.empty() || what == "rows") checks_rows();
    if (what == "rows" || what == "rows_times") {
        if (wanted("0.6B")) time_rows(of_06b);
        if (wanted("1B")) time_rows(of_1b);
        if (wanted("1B BF16")) time_rows({"1B BF16", 2048, 32, 8, 64, 8192, 16, 128256, "bf16", "bf16", "bf16", "bf16", "bf16", false, false, false, false, 0, 0, 0, 64});
        if (wanted("3B")) time_rows(of_3b);
        if (wanted("8B")) time_rows(of_8b);
        return failures;
    }
    // every second layer has more bits, like about half of the layers of a Q4_K_M file
    auto mixed = [&] {
        time_model({"1B Q4_K_M", 2048, 32, 8, 64, 8192, 16, 128256, q4k, q4k, q4k, q4k, q6, false, false, false, false, 0, 0, 0, 64, q6});
        time_model({"3B Q4_K_M", 3072, 24, 8, 128, 8192, 28, 128256, q4k, q4k, q4k, q4k, q6, false, false, false, false, 0, 0, 0, 64, q6});
    };
    if (what == "mixed") {
        mixed();
        return failures;
    }
    time_model(of_06b);
    if (what == "one") return failures;
    time_model(of_1b);
    if (what == "times") return failures;
    time_model({"1B Q8_0", 2048, 32, 8, 64, 8192, 16, 128256, q8, q8, q8, q8, q8, false, false, false, false, 0, 0, 0, 64});
    time_model(of_3b);
    mixed();
    time_model(of_8b);
    return failures;
}
