// The persistent decode kernel for shapes of heads: head_dim, query heads of a KV head. See persistent/decode.cuh.
#include "persistent/decode.cuh"

#define PERSISTENT_DECODE(D, H)                                                                                          \
    extern "C" __constant__ int persistent_shared_##D##_##H = sizeof(PersistentShared<D, H>);                            \
    extern "C" __global__ void __launch_bounds__(320, 1) persistent_decode_##D##_##H(const __grid_constant__ PersistentArguments a) { \
        persistent_decode<D, H>(a);                                                                                      \
    }

PERSISTENT_DECODE(64, 2)
PERSISTENT_DECODE(64, 4)
PERSISTENT_DECODE(128, 2)
PERSISTENT_DECODE(128, 4)
#ifndef PERSISTENT_FEW
PERSISTENT_DECODE(64, 3)
PERSISTENT_DECODE(128, 3)
PERSISTENT_DECODE(128, 8)
#endif
