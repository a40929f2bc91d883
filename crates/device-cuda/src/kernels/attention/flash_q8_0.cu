// Attention of many rows over Q8_0 pages by tiles on tensor cores: attention_flash/prefill.cuh,
// from sm_80 on.
#include "common.cuh"
#if __CUDA_ARCH__ >= 800
#include "attention_flash/prefill.cuh"

FLASH(flash_q8_0, FLASH_Q8_0, 64, 36864)
FLASH(flash_q8_0, FLASH_Q8_0, 128, 69632)
FLASH(flash_q8_0, FLASH_Q8_0, 256, 101376)
#endif
