// The persistent kernel for several rows: a step of up to 8 rows in one launch (README.md). Rows
// may belong to different sequences or to the same one. Its name is
// persistent_decode_rows_[experts_][q8_0_|fp8_]<D>_<H>, like that of one row (decode.cuh). It reads
// the same table and packed weights.
//
// Host contract, where it differs from that of one row
//   rows       1 to PERSISTENT_MOST_ROWS, and no more than n_blocks / n_kv_heads
//   dynamic shared memory  n_slots * slot_bytes + PERSISTENT_SHARED_ROWS(D, H)
//              + PERSISTENT_ROWS_INPUT * most_quads + sizeof(PersistentPhase) * n_phases
//              + PERSISTENT_ROWS_CHOICE of a mixture
//   exchange   2 * PERSISTENT_ROWS_EXCHANGE bytes and the turn; from PERSISTENT_ROTARY_AT on
//              PERSISTENT_ROTARY bytes for each block
//
// Differences from one row: tensor cores multiply (products_rows.cuh), and blocks share the KV
// heads of all rows. A block has one KV head of one row, and one of its splits. It receives keys
// and values of earlier rows of the step from the exchange, like its own. Order of accumulation:
// fixed, whatever other rows there are, but the number of rows decides how positions are split.
#pragma once
#include "persistent/attention.cuh"
#include "persistent/epilogue_rows.cuh"
#include "persistent/products_rows.cuh"
#include "persistent/run.cuh"
#include "persistent/stream.cuh"

template <bool MIXTURE> struct PersistentRowsOf {
    template <int D, int H> using Products = PersistentRowsProducts<D, H>;
};
template <> struct PersistentRowsOf<true> {
    template <int D, int H> using Products = PersistentRowsExperts<D, H>;
};
template <int D, int H, PersistentPages PAGES, bool MIXTURE> INLINE void persistent_decode_rows(const PersistentTable &a) {
    typedef PersistentBlock<D, H, PERSISTENT_MOST_ROWS> Block;
    typedef typename PersistentRowsOf<MIXTURE>::template Products<D, H> Products;
    persistent_run<Block, PersistentWorker<Products, D, H, PAGES, MIXTURE>, PersistentRowsEpilogue<D, H, MIXTURE>,
                   PersistentStream<Block, persistent_vector<PAGES, D>(), MIXTURE>>(a);
}

#define PERSISTENT_ROWS_KERNEL(NAME, D, H, PAGES, MIXTURE)                                                 \
    extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) NAME(const __grid_constant__ PersistentTable a) { \
        persistent_decode_rows<D, H, PAGES, MIXTURE>(a);                                                   \
    }
