// Arguments of the attention kernels: 96 bytes. build.rs translates them to Rust for the host.
// PagesArguments and TurnArguments are in kernels/arguments.h, which is included before this
// header.
#pragma once

struct AttentionArguments {
    PagesArguments pages;  // place of the layer; self_attention uses n_kv_heads only
    uint n_heads;          // query heads, a multiple of n_kv_heads
    uint n_positions;      // encoder states (cross_attention, cross_scores)
    uint window;           // ATTENTION_WINDOW: positions; below 2^31
    uint n_splits;         // ATTENTION_SPLIT: threadgroups that share a row's positions
    float scale;           // factor on the scores
    float softcap;         // ATTENTION_SOFTCAP: bound of the scores
    uint n_chosen;         // heads whose scores are written (cross_scores)
    float v_eps;           // ATTENTION_V_NORM: added to the mean square
    TurnArguments q;       // norm and RoPE of query heads (n_heads is not read)
    TurnArguments k;       // ATTENTION_FUSED: norm and RoPE of key heads
};
