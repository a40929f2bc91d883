// Arguments of expert_tiles (expert_tiles.h).
#pragma once
#include "gemm/arguments.h"

struct ExpertTilesArguments {
    const uint *ids;  // (n_pairs)
    uint *rows;
    uint *places;     // (n_pairs)
    uint4 *tiles;
    uint *n_tiles;    // (1)
    uint *n_packed;   // (1) packed rows
    uint n_pairs;
    uint n_experts;
    uint pairs_a_row; // k: row = pair / k; 1: each pair has a row of its own
    uint width;
};
