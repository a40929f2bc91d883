// Norm and RoPE of heads, and their store to the KV cache (heads.cuh), for each type of the cache.
// kv_write is this kernel without norm and RoPE.
#include "heads.cuh"

KERNEL(128) qk_rope_kv_f32(const __grid_constant__ HeadsArguments a) { write_heads<KvF32>(a); }
KERNEL(128) qk_rope_kv_f16(const __grid_constant__ HeadsArguments a) { write_heads<KvF16>(a); }
KERNEL(128) qk_rope_kv_q8_0(const __grid_constant__ HeadsArguments a) { write_heads<KvQ8_0>(a); }
KERNEL(128) qk_rope_kv_fp8(const __grid_constant__ HeadsArguments a) { write_heads<KvFp8>(a); }
