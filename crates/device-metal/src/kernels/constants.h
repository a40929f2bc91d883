// Indices of function constants of the kernels of this folder. Kernels of linear/ and attention/
// have lists of their own. Mirrored in src/kernels.rs.
#pragma once

#define FC_HAS_WEIGHT 0   // bool: a norm multiplies by a weight
#define FC_HAS_RESIDUAL 1 // bool: a residual is added to what is written
#define FC_HAS_BIAS 2     // bool: a bias is added
#define FC_ACTIVATION 3   // uint: see activation.h
#define FC_KV_TYPE 4      // uint: see kv_store.h
#define FC_Q_NORM 5       // bool: query heads are normalised
#define FC_K_NORM 6       // bool: key heads are normalised
#define FC_Q_ROPE 7       // uint: style of RoPE of query heads, see rotate.h
#define FC_K_ROPE 8       // uint: style of RoPE of key heads
#define FC_Q_WEIGHT 9     // bool: the norm of query heads has a weight
#define FC_K_WEIGHT 10    // bool: the norm of key heads has a weight
#define FC_K_OUT 11       // bool: rotated key heads are also written to the arena
#define FC_NORMALISE 12   // bool: weights of chosen experts sum to 1
#define FC_POOLING 13     // uint: 0 mean, 1 first, 2 last
#define FC_ROPE 14        // uint: style of RoPE, see rotate.h
#define FC_BESTS 15       // bool: argmax searches the largest logits of parts of the row
#define FC_V_NORM 16      // bool: value heads are normalised
#define FC_WHOLE_ROWS 17  // bool: one norm spans all query heads of a row, one all key heads
#define FC_KEY_BIAS 19    // bool: keys are stored without their bias, see key_bias.h
#define FC_SIGMOID 25     // bool: scores of experts are sigmoids, not a softmax
#define FC_GROUPS 26      // bool: experts are chosen in groups
#define FC_TILED 27       // bool: head h uses shared head h % n_shared, not h / (n_heads / n_shared)
#define FC_STEP_PER_ROW 28 // bool: each row of a state has its own decay
