// Attention of many rows over Q8_0 pages by tiles on tensor cores: attention_flash/warpgroups.cuh,
// on sm_90a.
#include "common.cuh"
#include "attention_flash/warpgroups.cuh"

FLASH_WARPGROUPS(wgmma_q8_0, FLASH_Q8_0, 64, 65536)
FLASH_WARPGROUPS(wgmma_q8_0, FLASH_Q8_0, 128, 131072)
FLASH_WARPGROUPS(wgmma_q8_0, FLASH_Q8_0, 256, 196608)
