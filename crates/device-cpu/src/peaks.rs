//! Peak rates of the machine, measured with the instructions of the kernels: rooflines for them.
//!
//! Each figure takes about a third of a second with all workers. The read rate streams a buffer far
//! larger than the last-level cache. The arithmetic loops keep their operands in registers, in
//! enough independent chains to hide latency.

use crate::isa::{Isa, Vectors};
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::simd::{Portable, Simd};
use device::Peaks;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Instantiates a generic function for an instruction set and calls it.
macro_rules! on {
    ($isa:expr, $body:ident, ($($arg:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        unsafe fn avx512($($arg: $type),*) {
            // SAFETY: the caller of `on!` guarantees that `$isa` is available and that the
            // arguments are valid for `$body`.
            unsafe { $body::<crate::simd::Avx512>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2($($arg: $type),*) {
            // SAFETY: as for `avx512`.
            unsafe { $body::<crate::simd::Avx2>($($arg),*) }
        }
        match $isa.vectors() {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => avx512($($arg),*),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => avx2($($arg),*),
            #[cfg(target_arch = "aarch64")]
            Vectors::Neon => $body::<crate::simd::Neon>($($arg),*),
            Vectors::Portable => $body::<Portable>($($arg),*),
        }
    }};
}

const TIME: Duration = Duration::from_millis(300);
/// Iterations of an arithmetic loop between two reads of the clock.
const BATCH: usize = 4096;

/// Measures all peak rates.
pub fn measure(pool: &Pool, isa: Isa) -> Peaks {
    let f32_ops_per_second = rate(pool, || f32_ops(isa));
    Peaks {
        read_bytes_per_second: read(pool, isa),
        int8_ops_per_second: rate(pool, || int8(isa)),
        bf16_ops_per_second: match isa.multiplies_bf16() {
            true => rate(pool, bf16_ops),
            false => f32_ops_per_second,
        },
        f32_ops_per_second,
    }
}

/// Sum of the workers' rates, in units a second. `work` does some work and returns the number of
/// units.
fn rate(pool: &Pool, work: impl Fn() -> usize + Sync) -> f64 {
    let total = Mutex::new(0.0);
    let job = |_: usize, barrier: &crate::pool::Barrier| {
        if !barrier.wait() {
            return;
        }
        let (start, mut units) = (Instant::now(), 0);
        while start.elapsed() < TIME {
            units += work();
        }
        let rate = units as f64 / start.elapsed().as_secs_f64();
        if let Ok(mut total) = total.lock() {
            *total += rate;
        }
    };
    // The job does not panic. If it did, the figure would be too small.
    let _ = pool.run(&job);
    total.into_inner().unwrap_or_default()
}

/// Bytes read a second.
fn read(pool: &Pool, isa: Isa) -> f64 {
    let bytes = (4 * crate::cpu::last_level_cache().unwrap_or(64 << 20)).clamp(256 << 20, 1 << 30);
    let Ok(buffer) = Buffer::zeroed("measuring", bytes) else { return 0.0 };
    // All untouched pages would map to the system's one page of zeros.
    // SAFETY: `buffer` was allocated with `bytes` bytes.
    unsafe { buffer.start().write_bytes(1, bytes) };
    let share = bytes / pool.n_workers() / 4096 * 4096;
    let start = buffer.start() as usize;
    let best = Mutex::new(0.0f64);
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        let job = |index: usize, barrier: &crate::pool::Barrier| {
            if !barrier.wait() {
                return;
            }
            let from = Instant::now();
            // SAFETY: worker `index` reads `share` bytes from `index * share` on, within `buffer`;
            // the device checked `isa`.
            unsafe { stream(isa, (start + index * share) as *const f32, share / 4) };
            if barrier.wait()
                && index == 0
                && let Ok(mut best) = best.lock()
            {
                *best = best.max((share * pool.n_workers()) as f64 / from.elapsed().as_secs_f64());
            }
        };
        if pool.run(&job).is_err() {
            break;
        }
    }
    best.into_inner().unwrap_or_default()
}

/// Reads `n` values, a multiple of 128.
///
/// # Safety
/// `p` is valid for reads of `n` values; the instruction set is available.
unsafe fn stream(isa: Isa, p: *const f32, n: usize) {
    #[inline(always)]
    unsafe fn body<S: Simd>(p: *const f32, n: usize) {
        // SAFETY: the caller guarantees `n` readable values at `p` and the instruction set of `S`.
        unsafe {
            let mut sums = [S::splat(0.0); 8];
            for at in (0..n / (8 * S::N) * 8 * S::N).step_by(8 * S::N) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load(p.add(at + i * S::N)));
                }
            }
            black_box(sums.map(|s| S::sum(s)));
        }
    }
    // SAFETY: the caller guarantees `n` readable values at `p` and that `isa` is available.
    unsafe { on!(isa, body, (p: *const f32, n: usize)) }
}

/// Computes fused multiply-adds of F32, and returns the number of operations.
fn f32_ops(isa: Isa) -> usize {
    #[inline(always)]
    unsafe fn body<S: Simd>(n: usize) {
        // SAFETY: the caller guarantees the instruction set of `S`.
        unsafe {
            let (a, b) = (S::splat(black_box(0.999)), S::splat(black_box(0.001)));
            let mut chains = [S::splat(1.0); 12];
            for _ in 0..n {
                for chain in &mut chains {
                    *chain = S::fma(*chain, a, b);
                }
            }
            black_box(chains.map(|c| S::sum(c)));
        }
    }
    let n = BATCH;
    // SAFETY: the device checked that `isa` is available.
    unsafe { on!(isa, body, (n: usize)) };
    let lanes = match isa.vectors() {
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => 16,
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => 8,
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => 4,
        Vectors::Portable => 4,
    };
    BATCH * 12 * lanes * 2
}

/// Computes multiply-adds of BF16 into F32, and returns the number of operations. The instruction
/// set [has them](Isa::multiplies_bf16).
fn bf16_ops() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn work() {
            use std::arch::x86_64::*;
            let ones = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(1.0));
            let mut chains = [_mm512_setzero_ps(); 12];
            for _ in 0..BATCH {
                for chain in &mut chains {
                    *chain = _mm512_dpbf16_ps(*chain, ones, ones);
                }
            }
            black_box(chains);
        }
        // SAFETY: the caller checked that the instruction set multiplies BF16.
        unsafe { work() };
        BATCH * 12 * 32 * 2
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no kernel multiplies BF16 on this architecture")
}

/// Computes multiply-adds of bytes into 32-bit sums with the instructions of the matrix kernels,
/// and returns the number of operations.
fn int8(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            unsafe fn work() {
                use std::arch::x86_64::*;
                let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
                let mut chains = [_mm512_setzero_si512(); 12];
                for _ in 0..BATCH {
                    for chain in &mut chains {
                        *chain = _mm512_dpbusd_epi32(*chain, a, b);
                    }
                }
                black_box(chains.map(|c| _mm512_reduce_add_epi32(c)));
            }
            // SAFETY: the device checked that `isa`, here AVX-512, is available.
            unsafe { work() };
            BATCH * 12 * 64 * 2
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            #[target_feature(enable = "avx2")]
            unsafe fn work() {
                use std::arch::x86_64::*;
                let (b, ones) = (_mm256_set1_epi8(black_box(5)), _mm256_set1_epi16(black_box(1)));
                let mut chains = [_mm256_set1_epi8(black_box(3)); 10];
                for _ in 0..BATCH {
                    for chain in &mut chains {
                        let pairs = _mm256_maddubs_epi16(b, *chain);
                        *chain = _mm256_add_epi32(*chain, _mm256_madd_epi16(pairs, ones));
                    }
                }
                black_box(chains);
            }
            // SAFETY: the device checked that `isa`, here AVX2, is available.
            unsafe { work() };
            BATCH * 10 * 32 * 2
        }
        Isa::Amx | Isa::Neon | Isa::Dotprod | Isa::I8mm => {
            // SAFETY: the device checked that `isa` is available.
            BATCH * unsafe { crate::kernels::linear::int8_products(isa, BATCH) }
        }
        Isa::Scalar => scalar_int8_ops(),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => scalar_int8_ops(),
    }
}

/// Like [`int8`], in plain Rust.
fn scalar_int8_ops() -> usize {
    let (a, b) = (black_box([3i8; 64]), black_box([5i8; 64]));
    for _ in 0..BATCH / 16 {
        let mut sums = [0i32; 16];
        for i in 0..64 {
            sums[i % 16] += i32::from(a[i]) * i32::from(b[i]);
        }
        black_box(sums);
    }
    BATCH / 16 * 64 * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_plausible_on_every_instruction_set() {
        let pool = Pool::new(1, &[], false).unwrap();
        for isa in Isa::available() {
            let peaks = measure(&pool, isa);
            for figure in [
                peaks.read_bytes_per_second,
                peaks.int8_ops_per_second,
                peaks.bf16_ops_per_second,
                peaks.f32_ops_per_second,
            ] {
                assert!((1e8..1e14).contains(&figure), "{isa}: {peaks:?}");
            }
        }
    }
}
