//! Rates of the matrix kernels on one thread: every type, every instruction set of this machine.
//!
//! `cargo bench -p ingle-device-cpu --bench linear [-- TYPE ISA]` prints several rates. GB/s of the
//! file that are interleaved at load (in the second-level cache). GB/s of weights for one
//! activation row, from the second-level cache (256 KB) and from memory (96 MB). Gop/s (a
//! multiplication and an addition are two) for 5 rows as in a step, and for tiles of 8, 128 and 512
//! rows. The peaks of the processor (AVX-512) and of its memory are measured beside each line. On a
//! shared machine, rates of different moments are not comparable, but shares of the peak are.

#![allow(unsafe_code, missing_docs)]

// The kernels are private to the crate, so the bench compiles their files itself.
#[allow(dead_code, unused_imports)]
#[path = "../src/isa.rs"]
mod isa;
#[allow(dead_code, unused_imports)]
#[path = "../src/kernels/linear/mod.rs"]
mod linear;
#[path = "../src/prefetch.rs"]
mod prefetch;
use isa::Isa;
use linear::{
    ActRow, ActRows, ActivationKind, Interleave, LinearKernel, Part, TILE_ROWS, WeightRows, linear_kernel,
};
use std::hint::black_box;
use std::time::Instant;
use weights::{Affine, BlockType, PlaneSlices, ScaleType, codec};

const N_COLS: usize = 2048;

/// Memory aligned to 64 bytes.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + 64];
        advise_large_pages(&bytes);
        Aligned(bytes)
    }

    fn ptr(&mut self) -> *mut u8 {
        let start = self.0.as_ptr().align_offset(64);
        self.0[start..].as_mut_ptr()
    }
}

/// Requests large pages, as for a model's weights, if the system supports the request. The bytes
/// are untouched: `vec!` of zeros gets pages that the system provides on first write.
fn advise_large_pages(bytes: &[u8]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let start = bytes.as_ptr() as usize;
        let (first, end) = (start.next_multiple_of(PAGE), (start + bytes.len()) / PAGE * PAGE);
        if first < end {
            // SAFETY: the pages are whole pages of the vector's own memory, and the advice changes
            // no byte.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Calls a second: the best of many rounds of about a millisecond, short enough to fit between
/// other programs' time slices.
fn rate(rounds: usize, mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    call();
    let once = start.elapsed().as_secs_f64();
    let calls = (0.001 / once).ceil().clamp(1.0, 1e6) as usize;
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            calls as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// A matrix.
struct Weights {
    block: BlockType,
    values: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    tiles: Aligned,
    /// Interleaving; `None` for weights as stored.
    interleave: Option<&'static Interleave>,
}

impl Weights {
    fn rows(&self) -> WeightRows {
        let planes = PlaneSlices { scales: &self.scales, biases: &self.biases };
        let rows = WeightRows::new(self.block, N_COLS, &self.values, planes);
        match self.interleave {
            None => rows,
            Some(interleave) => {
                let start = self.tiles.0.as_ptr().align_offset(64);
                rows.interleaved(self.tiles.0[start..].as_ptr(), N_COLS, interleave)
            }
        }
    }

    /// Converts the weights to the order that the kernel needs.
    fn brought_into_order(mut self, kernel: &LinearKernel, n_rows: usize) -> Weights {
        let Some(interleave) = kernel.interleave else { return self };
        let tile_bytes = (interleave.tile_bytes)(N_COLS);
        let mut tiles = Aligned::new(tile_bytes * n_rows.div_ceil(TILE_ROWS));
        for r0 in (0..n_rows).step_by(TILE_ROWS) {
            let out = tiles.ptr().wrapping_add(r0 / TILE_ROWS * tile_bytes);
            // SAFETY: the rows are rows of the matrix, and the tile is within `tiles`.
            unsafe { (interleave.tile)(self.rows(), N_COLS, r0, TILE_ROWS.min(n_rows - r0), out) };
        }
        (self.tiles, self.interleave) = (tiles, Some(interleave));
        self
    }
}

/// Bytes of a row, including its scales and offsets.
fn row_bytes(block: BlockType) -> usize {
    block.row_bytes(N_COLS) + block.row_scale_bytes(N_COLS) + block.row_bias_bytes(N_COLS)
}

/// Every type with its own kernel: types with a quantiser, rows of bytes, and affine types as MLX
/// writes them.
fn types() -> Vec<BlockType> {
    let affine = |bits: &usize| Affine::new(*bits, 64, ScaleType::BF16, false).map(BlockType::Affine);
    let affine = Affine::BITS.iter().filter_map(affine);
    BlockType::ALL.into_iter().chain([BlockType::I8_ROWS]).chain(affine).collect()
}

/// Weights with plausible scales: one quantised row, repeated.
fn weights(block: BlockType, n_rows: usize) -> Weights {
    let mut state = 1u32;
    let values: Vec<f32> = (0..N_COLS)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect();
    let mut row = vec![0; block.row_bytes(N_COLS)];
    let mut scales = vec![0; block.row_scale_bytes(N_COLS)];
    let mut biases = vec![0; block.row_bias_bytes(N_COLS)];
    match block {
        BlockType::Affine(affine) => {
            codec::affine::quantize(affine, &values, &mut row, &mut scales, &mut biases);
        }
        BlockType::I8_ROWS => {
            scales.copy_from_slice(&254f32.to_le_bytes());
            row.iter_mut().zip(&values).for_each(|(q, v)| *q = (v * 254.0) as i8 as u8);
        }
        _ => codec::quantize_row(block, &values, &mut row),
    }
    Weights {
        block,
        values: row.repeat(n_rows),
        scales: scales.repeat(n_rows),
        biases: biases.repeat(n_rows),
        tiles: Aligned::new(0),
        interleave: None,
    }
}

/// Activation rows in a form that a kernel reads.
fn activations(kind: ActivationKind, isa: Isa, n: usize) -> (Aligned, usize) {
    let stride = kind.row_bytes(N_COLS);
    let mut rows = Aligned::new(stride * n);
    for i in 0..n {
        let x: Vec<f32> = (0..N_COLS).map(|k| ((k * 7919 + i * 31) % 255) as f32 / 127.0 - 1.0).collect();
        let row = rows.ptr().wrapping_add(i * stride);
        // SAFETY: `row` has room for a row, and `isa` is available.
        unsafe { kind.write_row(isa, x.as_ptr(), N_COLS, row) };
    }
    (rows, stride)
}

/// GB/s of the file that are interleaved; 0 for a type that is multiplied as stored.
fn order_rate(block: BlockType, kernel: &LinearKernel, bytes: usize) -> f64 {
    let Some(interleave) = kernel.interleave else { return 0.0 };
    let n_rows = (bytes / row_bytes(block) / TILE_ROWS).max(1) * TILE_ROWS;
    let w = weights(block, n_rows);
    let tile_bytes = (interleave.tile_bytes)(N_COLS);
    let mut tiles = Aligned::new(tile_bytes * n_rows / TILE_ROWS);
    let calls = rate(40, || {
        for tile in 0..n_rows / TILE_ROWS {
            let out = tiles.ptr().wrapping_add(tile * tile_bytes);
            // SAFETY: the rows are rows of the matrix, and the tile is within `tiles`.
            unsafe { (interleave.tile)(w.rows(), N_COLS, tile * TILE_ROWS, TILE_ROWS, out) };
        }
        black_box(&mut tiles);
    });
    calls * (n_rows * row_bytes(block)) as f64 / 1e9
}

fn gemv_rate(block: BlockType, kernel: &LinearKernel, isa: Isa, bytes: usize) -> f64 {
    let n_rows = bytes / row_bytes(block) / TILE_ROWS * TILE_ROWS;
    let w = weights(block, n_rows).brought_into_order(kernel, n_rows);
    let (mut x, _) = activations(kernel.activation, isa, 1);
    let x = ActRow(x.ptr());
    let mut out = vec![0f32; n_rows];
    let calls = rate(40, || {
        // SAFETY: the weights, the activation row and `out` have `N_COLS` columns and `n_rows`
        // rows.
        unsafe { (kernel.gemv)(w.rows(), N_COLS, 0, n_rows, x, out.as_mut_ptr()) };
        black_box(&mut out);
    });
    calls * (n_rows * row_bytes(block)) as f64 / 1e9
}

/// All columns of the tile that begins with row `r0`.
fn whole(r0: usize) -> Part {
    Part { r0, n_rows: TILE_ROWS, k: 0, n: N_COLS }
}

/// Gop/s by tiles, or by the kernel for a few rows: a separate one, or GEMV for each row.
fn gemm_rate(block: BlockType, kernel: &LinearKernel, isa: Isa, n: usize, tiles: bool) -> f64 {
    let n_rows = 8 * TILE_ROWS;
    let w = weights(block, n_rows).brought_into_order(kernel, n_rows);
    let (mut xs, stride) = activations(kernel.activation, isa, n);
    let xs = ActRows { base: xs.ptr(), stride, n };
    let mut scratch = Aligned::new((kernel.gemm_scratch_bytes)(N_COLS));
    let mut out = vec![0f32; n * n_rows];
    let calls = rate(30, || {
        // SAFETY: the weights, the activation rows, the scratch and `out` have the shapes of the
        // part.
        unsafe {
            if tiles {
                for r0 in (0..n_rows).step_by(TILE_ROWS) {
                    let out = out.as_mut_ptr().add(r0 * n);
                    (kernel.gemm_tile)(w.rows(), N_COLS, whole(r0), xs, scratch.ptr(), out);
                }
            } else if let Some(few_rows) = kernel.few_rows {
                for r0 in (0..n_rows).step_by(TILE_ROWS) {
                    let out = out.as_mut_ptr().add(r0 * n);
                    few_rows(w.rows(), N_COLS, whole(r0), xs, scratch.ptr(), out);
                }
            } else {
                for i in 0..n {
                    let out = out.as_mut_ptr().add(i * n_rows);
                    (kernel.gemv)(w.rows(), N_COLS, 0, n_rows, xs.row(i), out);
                }
            }
        }
        black_box(&mut out);
    });
    calls * 2.0 * (n_rows * N_COLS * n) as f64 / 1e9
}

#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::x86_64::*;

    /// Runs ten chains of `vpdpbusd`, and returns the operations.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn vnni() -> f64 {
        let mut sums = [_mm512_set1_epi32(1); 10];
        let a = std::hint::black_box(_mm512_set1_epi8(3));
        for _ in 0..10_000 {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, a);
            }
        }
        std::hint::black_box(sums);
        10_000.0 * 10.0 * 128.0
    }

    /// Runs ten chains of fused multiply-adds, and returns the operations.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn fma() -> f64 {
        let mut sums = [_mm512_set1_ps(1.0); 10];
        let a = std::hint::black_box(_mm512_set1_ps(0.5));
        for _ in 0..10_000 {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, a);
            }
        }
        std::hint::black_box(sums);
        10_000.0 * 10.0 * 32.0
    }

    /// Sums 64-byte loads.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read(bytes: &[u8]) {
        let mut sums = [_mm512_setzero_si512(); 4];
        for chunk in bytes.chunks_exact(256) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the 64 bytes are within `chunk`.
                *sum = _mm512_add_epi64(*sum, unsafe { _mm512_loadu_si512(chunk[i * 64..].as_ptr().cast()) });
            }
        }
        std::hint::black_box(sums);
    }
}

/// Peaks `(int8 Gop/s, f32 Gop/s, GB/s read)` at this moment; `None` without AVX-512.
fn peaks() -> Option<(f64, f64, f64)> {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx512.is_available() {
        let mut memory = Aligned::new(96 << 20);
        // Otherwise all pages would be the system's one page of zeros.
        memory.0.fill(1);
        let memory = memory.0;
        // SAFETY: AVX-512 was detected above.
        unsafe {
            let vnni = rate(30, || {
                black_box(peak::vnni());
            }) * peak::vnni();
            let fma = rate(30, || {
                black_box(peak::fma());
            }) * peak::fma();
            let read = rate(10, || peak::read(&memory)) * memory.len() as f64;
            return Some((vnni / 1e9, fma / 1e9, read / 1e9));
        }
    }
    None
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |block: BlockType, isa: Isa| {
        let types: Vec<_> = wanted.iter().filter(|w| Isa::from_name(w).is_none()).collect();
        let isas: Vec<_> = wanted.iter().filter_map(|w| Isa::from_name(w)).collect();
        (types.is_empty() || types.iter().any(|t| t.eq_ignore_ascii_case(&block.to_string())))
            && (isas.is_empty() || isas.contains(&isa))
    };
    println!(
        "{:16} {:8} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}   of the peaks",
        "type",
        "isa",
        "order L2",
        "gemv L2",
        "gemv mem",
        "few 5",
        "gemm 8",
        "gemm 128",
        "gemm 512",
        "tile from"
    );
    for isa in Isa::available() {
        for block in types() {
            if !is_wanted(block, isa) {
                continue;
            }
            let kernel = linear_kernel(block, N_COLS, isa);
            let order = order_rate(block, &kernel, 128 << 10);
            let near = gemv_rate(block, &kernel, isa, 256 << 10);
            let far = gemv_rate(block, &kernel, isa, 96 << 20);
            let few = gemm_rate(block, &kernel, isa, 5, kernel.gemm_min_rows <= 5);
            let gemm = [8, 128, 512].map(|n| gemm_rate(block, &kernel, isa, n, true));
            let crossing = (2..=24).find(|&n| {
                gemm_rate(block, &kernel, isa, n, true) > gemm_rate(block, &kernel, isa, n, false)
            });
            let shares = peaks().map_or(String::new(), |(int8, f32, read)| {
                let peak = match kernel.activation {
                    ActivationKind::Q8 => int8,
                    ActivationKind::Bf16 => 2.0 * f32,
                    ActivationKind::F32 => f32,
                };
                let (memory, compute) = (100.0 * far / read, 100.0 * gemm[1].max(gemm[2]) / peak);
                format!("{memory:.0} % of {read:.0} GB/s, {compute:.0} % of {peak:.0} Gop/s")
            });
            println!(
                "{:16} {:8} {order:>9.1} {near:>9.1} {far:>9.1} {few:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9}   {shares}",
                block.to_string(),
                isa.name(),
                gemm[0],
                gemm[1],
                gemm[2],
                crossing.map_or("-".into(), |n| n.to_string())
            );
        }
    }
}
