//! The CPU device: a pinned pool of workers that replays a dispatch table of SIMD kernels.
