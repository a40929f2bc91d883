// Flash attention over F16 pages: attention_flash/prefill.cuh.
#include "common.cuh"
#include "attention_flash/prefill.cuh"

#define ATTENTION_FLASH(D)                                                                                       \
    extern "C" __constant__ int attention_flash_shared_##D = FlashShape<D>::SHARED;                              \
    extern "C" __global__ void __launch_bounds__(128, FlashShape<D>::BLOCKS) attention_flash_f16_##D(const __grid_constant__ AttentionArguments a) { \
        attention_flash<D, FLASH_F16>(a);                                                                                   \
    }

ATTENTION_FLASH(64)
ATTENTION_FLASH(80)
ATTENTION_FLASH(96)
ATTENTION_FLASH(128)
ATTENTION_FLASH(256)
