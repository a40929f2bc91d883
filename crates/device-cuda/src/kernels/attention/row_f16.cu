// Heads and attention of one row over F16 pages (attention/row.cuh), a kernel for each number of
// lanes of a position.
#include "attention/row.cuh"

KERNEL(ROW_THREADS) row_f16_l8(const __grid_constant__ RowArguments a) { attend_row<8>(a); }
KERNEL(ROW_THREADS) row_f16_l16(const __grid_constant__ RowArguments a) { attend_row<16>(a); }
KERNEL(ROW_THREADS) row_f16_l32(const __grid_constant__ RowArguments a) { attend_row<32>(a); }
