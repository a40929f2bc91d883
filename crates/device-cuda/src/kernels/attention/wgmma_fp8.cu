// Attention of many rows over FP8 pages by tiles on tensor cores: attention_flash/warpgroups.cuh,
// on sm_90a.
#include "common.cuh"
#include "attention_flash/warpgroups.cuh"

FLASH_WARPGROUPS(wgmma_fp8, FLASH_FP8, 64, 65536)
FLASH_WARPGROUPS(wgmma_fp8, FLASH_FP8, 128, 131072)
FLASH_WARPGROUPS(wgmma_fp8, FLASH_FP8, 256, 196608)
