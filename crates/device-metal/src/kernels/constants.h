// Indices of function constants, one list for all kernels of this folder that have no list of their
// own (those of linear/ and attention/ have). Mirrored in src/kernels.rs.
#pragma once

#define FC_HAS_WEIGHT 0   // bool: a norm multiplies by a weight
#define FC_HAS_RESIDUAL 1 // bool: a residual is added to what is written
#define FC_HAS_BIAS 2     // bool: a bias is added
#define FC_ACTIVATION 3   // uint: see activation.h
#define FC_KV_TYPE 4      // uint: see kv_store.h
#define FC_Q_NORM 5       // bool: query heads are normalised
#define FC_K_NORM 6       // bool: key heads are normalised
#define FC_Q_ROPE 7       // uint: how query heads turn, see rotate.h
#define FC_K_ROPE 8       // uint: how key heads turn
#define FC_Q_WEIGHT 9     // bool: the norm of query heads has a weight
#define FC_K_WEIGHT 10    // bool: the norm of key heads has a weight
#define FC_K_OUT 11       // bool: turned key heads are also written to the arena
#define FC_NORMALISE 12   // bool: weights of chosen experts sum to 1
#define FC_POOLING 13     // uint: 0 mean, 1 first, 2 last
#define FC_ROPE 14        // uint: how heads turn
#define FC_BESTS 15       // bool: the largest is that of several, each the largest of a part of the row
#define FC_V_NORM 16      // bool: value heads are normalised
#define FC_WHOLE_ROWS 17  // bool: the norms of query and key heads are of all heads of a row together
#define FC_ROUTES 18      // bool: experts are chosen, not only ordered
#define FC_KEY_BIAS 19    // bool: keys are stored without what is known of them, see key_bias.h
#define FC_SIGMOID 25     // bool: scores of experts are sigmoids, not a softmax
#define FC_GROUPS 26      // bool: experts are chosen in groups
#define FC_TILED 27       // bool: heads take the heads that they share in turn
#define FC_STEP_PER_ROW 28 // bool: each row of a state has a decay of its own
