// Attention of many rows over F16 pages by tiles on tensor cores: attention_flash/prefill.cuh, from
// sm_80 on.
#include "common.cuh"
#if __CUDA_ARCH__ >= 800
#include "attention_flash/prefill.cuh"

FLASH(flash_f16, FLASH_F16, 64, 36864)
FLASH(flash_f16, FLASH_F16, 80, 45056)
FLASH(flash_f16, FLASH_F16, 96, 53248)
FLASH(flash_f16, FLASH_F16, 128, 69632)
FLASH(flash_f16, FLASH_F16, 256, 101376)
#endif
