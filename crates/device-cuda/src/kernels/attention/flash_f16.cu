// Attention of many rows over F16 pages by tiles on tensor cores: attention_flash/prefill.cuh, from sm_80 on. The host knows the
// bytes of shared memory that each needs (compile/attention.rs).
#include "common.cuh"
#if __CUDA_ARCH__ >= 800
#include "attention_flash/prefill.cuh"
#define FLASH(D, SHARED_BYTES, BLOCKS)                                                                                     \
    static_assert(FlashShape<D>::SHARED == SHARED_BYTES, "shared memory");                                                 \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) flash_f16_##D(const __grid_constant__ AttentionArguments a) { \
        begin();                                                                                                           \
        attention_flash<D, FLASH_F16>(a);                                                                                             \
    }

FLASH(64, 36864, 3)
FLASH(80, 45056, 3)
FLASH(96, 53248, 3)
FLASH(128, 69632, 3)
FLASH(256, 101376, 2)
#endif
