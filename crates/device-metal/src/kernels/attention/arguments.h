// Arguments of the attention kernels: 96 bytes. build.rs gives the host the same structs.
// PagesArguments and TurnArguments are those of kernels/arguments.h, which is included before this
// one.
#pragma once

struct AttentionArguments {
    PagesArguments pages;  // where the layer lies; self_attention uses n_kv_heads only
    uint n_heads;          // query heads, a multiple of n_kv_heads
    uint n_positions;      // cross_attention, cross_scores: encoder states
    uint window;           // ATTENTION_WINDOW; below 2^31
    uint n_splits;         // ATTENTION_SPLIT: threadgroups that share a row's positions
    float scale;           // factor on the scores
    float softcap;         // ATTENTION_SOFTCAP
    uint n_chosen;         // cross_scores: heads whose scores are wanted
    float v_eps;           // ATTENTION_V_NORM
    TurnArguments q;       // ATTENTION_FUSED: norm and turn of query heads (n_heads is not read)
    TurnArguments k;       // of key heads
};
