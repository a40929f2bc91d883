// Attention of many rows over FP8 pages by tiles on tensor cores: attention_flash/prefill.cuh, from
// sm_80 on.
#include "common.cuh"
#if __CUDA_ARCH__ >= 800
#include "attention_flash/prefill.cuh"

FLASH(flash_fp8, FLASH_FP8, 64, 36864)
FLASH(flash_fp8, FLASH_FP8, 128, 69632)
FLASH(flash_fp8, FLASH_FP8, 256, 101376)
#endif
