// Warp 8: the epilogue of each phase, for one row and for several. It waits for the partial sums of
// warps 0..7, turns them into the result of the phase, and publishes the input of later phases.
//
// Lanes is PersistentRowLanes (epilogue.cuh) or PersistentRowsLanes (epilogue_rows.cuh). It knows
// the N values of a vector like the residual that a lane has, and how they are read and published.
#pragma once
#include "persistent/mixture.cuh"

template <class Lanes, bool MIXTURE> struct PersistentPhases : Lanes {
    template <class Block> INLINE explicit PersistentPhases(const Block &block) : Lanes(block) {}
    using Lanes::a;
    using Lanes::N;
    using Lanes::pass_parity;
    using Lanes::published;
    using Lanes::rehearsal;

    // Epochs of the inputs of QKV and the head, and of all other words.
    u32 epoch_input = 0, epoch = 0;
    // Scales of norms that more than one phase multiplies by.
    float qkv_scale = 0, expert_scale = 0;
    // This lane's values of the residual, of the next norm, and of a norm after a product.
    float residual[N], norm[N], post[N];

    // ADD and ADD_EXPERTS, of one pass: adds the sums to the residual and publishes the result.
    template <class P> INLINE void add(const P &p) {
        const bool down = p.input == EXCHANGE_GATED;
        this->own(p.norm_or_sinks, norm), this->own(p.post_norm, post);
        const u32 tag = tag_of(epoch);
        if (down) epoch_input++;
        const u32 to = down ? EXCHANGE_INPUT : EXCHANGE_MIDDLE, to_tag = down ? tag_of(epoch_input) : tag;
        float bias[N] = {};
        if constexpr (PERSISTENT_HAS_RARE) {
            if (p.bias && p.kind == PERSISTENT_ADD) this->own(p.bias, bias);
            if constexpr (MIXTURE)
                if (p.bias && p.kind == PERSISTENT_ADD_EXPERTS) this->add_biases_of_experts(p, bias);
        }
        for (u32 round = rehearsal(); round < 2; round++) {
            const bool real = round == 1;
            if (real) wait_partials(pass_parity);
            float v[N] = {};
            this->own_sums(v);
            if constexpr (PERSISTENT_HAS_RARE) {
#pragma unroll
                for (int e = 0; e < N; e++) v[e] += bias[e];
            }
            if (p.post_norm && (real || Lanes::REHEARSES_SQUARES)) {
                const float scale = this->exchange_squares(v, down, tag, real);
#pragma unroll
                for (int e = 0; e < N; e++) v[e] *= scale * post[e];
            }
#pragma unroll
            for (int e = 0; e < N; e++) v[e] += residual[e];
            this->publish_residual(v, norm, to, to_tag, real);
            if (real) {
#pragma unroll
                for (int e = 0; e < N; e++) residual[e] = v[e];
            }
        }
        pass_parity ^= 1;
        published();
    }
    // QKV, GATE and HEAD, pass by pass.
    template <class P> INLINE void passes(const P &p) {
        const u32 n_groups = p.own_groups, n_passes = n_groups == 0 ? 1 : (n_groups + PERSISTENT_PASS - 1) / PERSISTENT_PASS;
        const bool continues = p.kind == PERSISTENT_QKV && p.qkv_part & PERSISTENT_CONTINUES;
        if (p.kind == PERSISTENT_QKV && !continues) epoch++;
        const u32 tag = tag_of(epoch);
        float best = -__int_as_float(0x7f800000);
        u32 best_row = 0;
        float scale = continues ? qkv_scale : 0.0f;
        for (int pass = continues ? 0 : (int)rehearsal() - 1; pass < (int)n_passes; pass++) {
            const bool real = pass >= 0;
            const u32 of = real ? pass : 0, g0 = p.own_first + of * PERSISTENT_PASS, n = min((u32)PERSISTENT_PASS, n_groups - of * PERSISTENT_PASS);
            if (pass == 0 && !continues) scale = this->input_scale(p);
            if (real) wait_partials(pass_parity);
            if (p.kind == PERSISTENT_GATE) this->gate_pass(p, g0, n, scale, tag, real);
            else this->row_pass(p, g0, n, scale, tag, real, best, best_row);
            __syncwarp();
            if (!real) continue;
            if (pass + 2 < n_passes || (!continues && p.kind == PERSISTENT_QKV && p.qkv_part & PERSISTENT_OF_THREE)) arrive_partials_read(pass_parity);
            pass_parity ^= 1;
        }
        if (p.kind == PERSISTENT_HEAD) {
            this->end_head(residual, best, best_row);
            return;
        }
        if (p.kind == PERSISTENT_QKV) {
            if (p.qkv_part & PERSISTENT_CONTINUED) {
                qkv_scale = scale;
                return;
            }
            if (this->attends()) arrive_qkv();
            this->merge(tag);
        }
        published();
    }
    INLINE void finish() {
        this->load_residual(residual);
        do {
            this->own(a.first_norm, norm);
            this->publish_residual(residual, norm, EXCHANGE_INPUT, tag_of(epoch_input), true);
            published();
            this->each_phase([&](const auto &p) {
                if constexpr (MIXTURE) {
                    if (p.kind == PERSISTENT_ROUTE) {
                        expert_scale = this->route(p, tag_of(epoch));
                        return;
                    }
                    if (p.kind == PERSISTENT_EXPERTS) {
                        this->experts(p, expert_scale, tag_of(epoch));
                        published();
                        return;
                    }
                }
                if (p.kind == PERSISTENT_ADD || (MIXTURE && p.kind == PERSISTENT_ADD_EXPERTS)) add(p);
                else passes(p);
            });
        } while (this->next_residual(residual, epoch_input));
    }
};
