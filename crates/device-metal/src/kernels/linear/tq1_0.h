// TQ1_0: blocks of 256 ternary values in 54 bytes: 48 bytes of five values each, 4 bytes of four, a
// half `d`. value = d * (digit - 1). A byte is a fraction of 256 in base 3: digit n is the top of
// byte * 3^n modulo 256, times 3. Digit n of byte j < 32 is value 32 n + j, of byte 32 + j value
// 160 + 16 n + j, of byte 48 + j value 240 + 4 n + j. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/neighbours.h"

struct TQ1_0 : Neighbours<TQ1_0> {
    enum { OFFSET = 1 };

    // Returns the first digit of each of four bytes after multiplication by `power`, a power of
    // three.
    static float4 digits(uint word, uint power) {
        const uint4 bytes = uint4(word, word >> 8, word >> 16, word >> 24) & 255;
        return float4((bytes * power & 255) * 3 >> 8);
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 54;
        // 16 neighbouring values are one digit of 16 bytes. The last 16 are four digits of the last
        // four bytes.
        const uint at = span % 16, n = at < 10 ? at / 2 : at - 10;
        device const uchar * bytes = block + (at < 10 ? at % 2 * 16 : 32);
        uint power = 1;
        for (uint i = 0; at < 15 && i < n; i++) power *= 3;
        Codes<1> codes;
        for (short j = 0; j < 4; j++) {
            codes.q[j] = digits(load_2(at < 15 ? bytes + 4 * j : block + 48), power);
            if (at == 15) power *= 3;
        }
        codes.scale[0] = load_half(block + 52);
        codes.offset[0] = -codes.scale[0];
        return codes;
    }
};
