// Inputs of the products: see gemm/input.h. The tiles of experts: gemm/expert_tiles.h.
#include "gemm/expert_tiles.h"
#include "gemm/input.h"

extern "C" __global__ void __launch_bounds__(256) rows_input(const __grid_constant__ InputArguments a) { write_input<INPUT_ROWS>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_input(const __grid_constant__ InputArguments a) {
    write_input<INPUT_RMS_NORM>(a);
}
extern "C" __global__ void __launch_bounds__(256) gate_input(const __grid_constant__ InputArguments a) { write_input<INPUT_GATE>(a); }
extern "C" __global__ void __launch_bounds__(1024) expert_tiles(const __grid_constant__ ExpertTilesArguments a) { write_expert_tiles(a); }
