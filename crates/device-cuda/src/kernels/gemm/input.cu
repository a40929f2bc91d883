// The input of products: gemm/input.h. The tiles of experts: gemm/expert_tiles.h.
#include "gemm/expert_tiles.h"
#include "gemm/input.h"

extern "C" __global__ void __launch_bounds__(256) rows_input(const __grid_constant__ InputArguments a) { write_input(a); }
extern "C" __global__ void __launch_bounds__(1024) expert_tiles(const __grid_constant__ ExpertTilesArguments a) { write_expert_tiles(a); }
