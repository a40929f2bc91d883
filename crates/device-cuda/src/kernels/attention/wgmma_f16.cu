// Attention of many rows over F16 pages by tiles on tensor cores: attention_flash/warpgroups.cuh,
// on sm_90a.
#include "common.cuh"
#include "attention_flash/warpgroups.cuh"

FLASH_WARPGROUPS(wgmma_f16, FLASH_F16, 64, 65536)
FLASH_WARPGROUPS(wgmma_f16, FLASH_F16, 128, 131072)
FLASH_WARPGROUPS(wgmma_f16, FLASH_F16, 256, 196608)
