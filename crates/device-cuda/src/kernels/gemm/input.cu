// The input of products: gemm/input.h. The tiles of experts: gemm/expert_tiles.h.
#include "gemm/expert_tiles.h"
#include "gemm/input.h"

#define ROWS_INPUT(NAME, THREADS, KEPT) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ InputArguments a) { write_input<THREADS, KEPT>(a); }
ROWS_INPUT(rows_input, 256, 4)
// Kernels for rows of at most a number of columns. Unused registers for further columns would
// reduce the blocks that run at once.
ROWS_INPUT(rows_input_1024, 128, 1)
ROWS_INPUT(rows_input_2048, 256, 1)
ROWS_INPUT(rows_input_4096, 256, 2)
extern "C" __global__ void __launch_bounds__(1024) expert_tiles(const __grid_constant__ ExpertTilesArguments a) { write_expert_tiles(a); }
