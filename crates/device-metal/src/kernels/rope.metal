// Rotary position embedding of the first n_dims columns of every head; the other columns are
// copied.
//
// A thread computes one pair of columns of one head of one row, or copies two columns.
//
// Buffers: 0 RopeArguments, 1 step, 2 x (tokens, n_heads * head_dim), 3 out (like x; may be x), 4
// turns (tokens, n_dims / 2) float2 (turns.h). Constants: FC_ROPE (1 or 2). Grid: ceil(tokens *
// n_heads * ceil(head_dim / 2) / 256) threadgroups of 256. Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "rotate.h"
#include "step.h"

constant uint STYLE [[function_constant(FC_ROPE)]];

kernel void rope(
        constant RopeArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const float2 *turns [[buffer(4)]],
        uint at [[thread_position_in_grid]]) {
    const uint n_pairs = (args.head_dim + 1) / 2;
    const uint head = at / n_pairs;
    const uint row = head / args.turn.n_heads;
    if (row >= step->n_rows) return;
    const uint pair = at % n_pairs;
    const uint start = head * args.head_dim;
    if (pair < args.turn.n_dims / 2) {
        const uint2 columns = pair_of(STYLE, pair, args.turn.n_dims);
        const float2 turn = turns[row * (args.turn.n_dims / 2) + pair];
        const float a = x[start + columns.x];
        const float b = x[start + columns.y];
        out[start + columns.x] = a * turn.x - b * turn.y;
        out[start + columns.y] = b * turn.x + a * turn.y;
    } else {
        for (uint column = 2 * pair; column < min(2 * pair + 2, args.head_dim); column++) {
            out[start + column] = x[start + column];
        }
    }
}
