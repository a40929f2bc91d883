// Random blocks of the file types, and their decoding, written from the format tables of the
// weights crate.
#pragma once
#include "driver.h"
#include "gemm/types.h"

struct FileType {
    const char *name, *codec;
    int block, bytes;
};
static const FileType TYPES[] = {
    {"q4_0", "q4", 32, 18},     {"q8_0", "q8", 32, 34},    {"q4_k", "q4m", 256, 144}, {"q6_k", "q6", 256, 210}, {"q5_k", "q5m", 256, 176},
    {"q4_1", "q4m", 32, 20},    {"q5_0", "q5", 32, 22},    {"q5_1", "q5m", 32, 24},   {"q2_k", "q2m", 256, 84}, {"q3_k", "q3", 256, 110},
    {"iq4_nl", "nl", 32, 18},   {"iq4_xs", "nl", 256, 136}, {"mxfp4", "fp4", 32, 17}, {"nvfp4", "fp4_16", 64, 36}, {"f16", "f16", 1, 2},
    {"bf16", "f16", 1, 2},
};
static const int NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void put_half(u8 *p, float f) {
    u16 h = host_half(f);
    memcpy(p, &h, 2);
}
static float get_half(const u8 *p) {
    u16 h;
    memcpy(&h, p, 2);
    return host_float(h);
}

// Random blocks: every integer, scales that make values of about 1 / sqrt(K).
static std::vector<u8> random_rows(const FileType &t, int n, int k) {
    std::vector<u8> v((size_t)n * (k / t.block) * t.bytes);
    for (size_t i = 0; i + 4 <= v.size(); i += 4) {
        u32 r = rnd();
        memcpy(&v[i], &r, 4);
    }
    for (size_t i = v.size() / 4 * 4; i < v.size(); i++) v[i] = rnd();
    const float unit = 1.0f / sqrtf((float)k);
    const std::string s = t.name;
    // The first million of single values repeats.
    const size_t end = t.block == 1 ? std::min(v.size(), (size_t)2000006) : v.size();
    for (size_t b = 0; b < end; b += t.bytes) {
        u8 *p = &v[b];
        const float f = unit * (0.5f + uniform());
        if (s == "q4_0") put_half(p, f / 4.6f);
        if (s == "iq4_nl") put_half(p, f / 70);
        if (s == "q8_0") put_half(p, f / 74);
        if (s == "q4_1") put_half(p, f / 4.6f), put_half(p + 2, -f * 1.6f);
        if (s == "q5_0") put_half(p, f / 9.2f);
        if (s == "q5_1") put_half(p, f / 9.2f), put_half(p + 2, -f * 1.6f);
        if (s == "q4_k") put_half(p, f / 4.6f / 32), put_half(p + 2, f * 1.6f / 32);
        if (s == "q5_k") put_half(p, f / 9.2f / 32), put_half(p + 2, f * 1.6f / 32);
        if (s == "q6_k") put_half(p + 208, f / 18 / 70);
        if (s == "q2_k") put_half(p + 80, f / 1.1f / 8), put_half(p + 82, f * 1.5f / 8);
        if (s == "q3_k") put_half(p + 108, f / 2.3f / 18);
        if (s == "iq4_xs") put_half(p, f / 70 / 18);
        if (s == "mxfp4") p[0] = 119 + rnd() % 4;
        if (s == "nvfp4") for (int i = 0; i < 4; i++) p[i] = rnd() % 64;
        if (s == "f16") put_half(p, unit * normal());
        if (s == "bf16") {
            u16 h = host_bfloat(unit * normal());
            memcpy(p, &h, 2);
        }
    }
    for (size_t i = end; i < v.size(); i++) v[i] = v[i - end];
    return v;
}

// One block to doubles, written from the format tables of the weights crate.
static void decode(const FileType &t, const u8 *p, double *o) {
    const std::string s = t.name;
    auto nib = [](const u8 *q, int j) { return j < 16 ? q[j] & 15 : q[j - 16] >> 4; };
    if (s == "q4_0") for (int j = 0; j < 32; j++) o[j] = (double)get_half(p) * (nib(p + 2, j) - 8);
    else if (s == "iq4_nl") for (int j = 0; j < 32; j++) o[j] = (double)get_half(p) * NL[nib(p + 2, j)];
    else if (s == "q8_0") for (int j = 0; j < 32; j++) o[j] = (double)get_half(p) * (int8_t)p[2 + j];
    else if (s == "q4_1") for (int j = 0; j < 32; j++) o[j] = (double)get_half(p) * nib(p + 4, j) + get_half(p + 2);
    else if (s == "q5_0" || s == "q5_1") {
        const bool min = s == "q5_1";
        const u8 *h = p + (min ? 4 : 2);
        u32 high;
        memcpy(&high, h, 4);
        for (int j = 0; j < 32; j++) {
            int q = nib(h + 4, j) | (high >> j & 1) << 4;
            o[j] = min ? (double)get_half(p) * q + get_half(p + 2) : (double)get_half(p) * (q - 16);
        }
    } else if (s == "q4_k" || s == "q5_k") {
        const bool five = s == "q5_k";
        const u8 *sc = p + 4, *qh = p + 16, *qs = p + (five ? 48 : 16);
        for (int i = 0; i < 8; i++) {
            int a = i < 4 ? sc[i] & 63 : (sc[i + 4] & 15) | sc[i - 4] >> 6 << 4;
            int m = i < 4 ? sc[i + 4] & 63 : sc[i + 4] >> 4 | sc[i] >> 6 << 4;
            for (int l = 0; l < 32; l++) {
                int q = (i & 1) ? qs[i / 2 * 32 + l] >> 4 : qs[i / 2 * 32 + l] & 15;
                if (five) q |= (qh[l] >> i & 1) << 4;
                o[32 * i + l] = (double)(get_half(p) * a) * q - (double)(get_half(p + 2) * m);
            }
        }
    } else if (s == "q6_k") {
        for (int h = 0; h < 2; h++)
            for (int l = 0; l < 32; l++)
                for (int quarter = 0; quarter < 4; quarter++) {
                    const u8 *ql = p + 64 * h;
                    int low = quarter < 2 ? ql[l + 32 * (quarter & 1)] & 15 : ql[l + 32 * (quarter & 1)] >> 4;
                    int q = low | (p[128 + 32 * h + l] >> (2 * quarter) & 3) << 4;
                    int at = 128 * h + 32 * quarter + l;
                    o[at] = (double)get_half(p + 208) * (int8_t)p[192 + at / 16] * (q - 32);
                }
    } else if (s == "q2_k") {
        for (int i = 0; i < 16; i++)
            for (int l = 0; l < 16; l++) {
                int q = p[16 + 32 * (i / 8) + 16 * (i % 2) + l] >> (2 * (i / 2 % 4)) & 3;
                o[16 * i + l] = (double)(get_half(p + 80) * (p[i] & 15)) * q - (double)(get_half(p + 82) * (p[i] >> 4));
            }
    } else if (s == "q3_k") {
        for (int i = 0; i < 16; i++) {
            int low = p[96 + i % 8] >> (4 * (i / 8)) & 15, high = p[104 + i % 4] >> (2 * (i / 4)) & 3;
            int scale = (low | high << 4) - 32;
            for (int l = 0; l < 16; l++) {
                int q = p[32 + 32 * (i / 8) + 16 * (i % 2) + l] >> (2 * (i / 2 % 4)) & 3;
                q |= (p[16 * (i % 2) + l] >> (i / 2) & 1) << 2;
                o[16 * i + l] = (double)get_half(p + 108) * scale * (q - 4);
            }
        }
    } else if (s == "iq4_xs") {
        u16 high;
        memcpy(&high, p + 2, 2);
        for (int i = 0; i < 8; i++) {
            int scale = ((p[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4) - 32;
            for (int j = 0; j < 32; j++) o[32 * i + j] = (double)get_half(p) * scale * NL[nib(p + 8 + 16 * i, j)];
        }
    } else if (s == "mxfp4") for (int j = 0; j < 32; j++) o[j] = ldexp(1.0, p[0] - 128) * FP4[nib(p + 1, j)];
    else if (s == "nvfp4") {
        for (int g = 0; g < 4; g++) {
            int e = p[g] >> 3 & 15, m = p[g] & 7;
            double d = p[g] == 127 ? 0 : e == 0 ? m / 1024.0 : (1 + m / 8.0) * ldexp(1.0, e - 8);
            for (int j = 0; j < 16; j++) o[16 * g + j] = d * FP4[j < 8 ? p[4 + 8 * g + j] & 15 : p[4 + 8 * g + j - 8] >> 4];
        }
    } else if (s == "f16") o[0] = get_half(p);
    else {
        u16 h;
        memcpy(&h, p, 2);
        o[0] = from_bfloat(h);
    }
}
static std::vector<double> decode_row(const FileType &t, const std::vector<u8> &rows, int row, int k) {
    std::vector<double> o(k);
    const size_t row_bytes = (size_t)k / t.block * t.bytes;
    for (int b = 0; b < k / t.block; b++) decode(t, &rows[row * row_bytes + (size_t)b * t.bytes], &o[(size_t)b * t.block]);
    return o;
}

