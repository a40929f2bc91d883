//! Instruction sets of the kernels, detected once at start.

use std::sync::OnceLock;

/// An instruction set that kernels are written for.
///
/// It is a value, not a `cfg(target_feature)`. One binary contains every variant of its
/// architecture, and a table of function pointers is filled from an `Isa` once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust for the architecture's baseline: the reference that runs anywhere.
    Scalar,
    /// 128-bit vectors of every 64-bit Arm.
    Neon,
    /// NEON with `sdot`, four products of bytes in each 32-bit lane (Apple M1, Cortex-A76, Neoverse
    /// N1 and later).
    Dotprod,
    /// NEON with `sdot` and `smmla`, products of 2 by 8 bytes with 8 by 2 (Apple M2, Cortex-X2,
    /// Neoverse V1 and later).
    I8mm,
    /// 256-bit vectors: AVX2, FMA and F16C (Haswell, Zen 1 and later).
    Avx2,
    /// 512-bit vectors: AVX-512 F, BW, VL, DQ and VNNI (Cascade Lake, Ice Lake, Zen 4 and later).
    Avx512,
    /// AVX-512 with products of BF16 numbers (Cooper Lake, Zen 4 and later).
    Avx512Bf16,
    /// AVX-512 with AMX, products of tiles of 16 by 64 bytes with 64 by 16 (Sapphire Rapids and
    /// later).
    Amx,
}

/// Vectors that this architecture can have; each is one implementation of `simd::Simd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Plain Rust.
    Portable,
    /// 128 bits: [`Isa::Neon`] and its extensions.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// 256 bits: [`Isa::Avx2`].
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits: [`Isa::Avx512`] and its extensions.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Every variant, slowest first.
    pub const ALL: [Isa; 8] =
        [Isa::Scalar, Isa::Neon, Isa::Dotprod, Isa::I8mm, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// Vectors of the instruction set. One that only adds matrix instructions has those of its
    /// predecessor.
    pub fn vectors(self) -> Vectors {
        match self {
            Isa::Scalar => Vectors::Portable,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::Dotprod | Isa::I8mm => Vectors::Neon,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Vectors::Avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => Vectors::Avx512,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::Dotprod | Isa::I8mm => Vectors::Portable,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => Vectors::Portable,
        }
    }

    /// True if BF16 products are an instruction that is faster than F32 products. With AMX,
    /// `vdpbf16ps` was measured to be slower (`kernels/linear/NOTES.md`).
    pub fn multiplies_bf16(self) -> bool {
        self == Isa::Avx512Bf16
    }

    /// The fastest instruction set that this processor runs.
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar))
    }

    /// Instruction sets that this processor runs, slowest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// True if the processor supports it and the operating system saves its registers.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Dotprod.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Dotprod | Isa::I8mm => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && amx_is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => false,
        }
    }

    /// Name on the command line: `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// The variant with that name, even if this processor does not run it.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

/// True if the processor has AMX for bytes and the system allows this process to use it. Linux
/// saves the 8 KB of tiles only for a process that requested them (`arch_prctl`,
/// Documentation/arch/x86/xstate.rst). Without the request the first tile instruction kills the
/// process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_is_available() -> bool {
    static GIVEN: OnceLock<bool> = OnceLock::new();
    *GIVEN.get_or_init(|| {
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // CPUID leaf 7, edx: amx-tile and amx-int8.
        let wanted = 1 << 24 | 1 << 25;
        let leaves = std::arch::x86_64::__cpuid(0).eax;
        leaves >= 7
            && std::arch::x86_64::__cpuid_count(7, 0).edx & wanted == wanted
            // SAFETY: `SYS_arch_prctl` with this request takes two integers, reads no memory, and
            // only enables the saving of tiles.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
    })
}

/// Always false: the request exists on Linux only.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_is_available() -> bool {
    false
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_is_among_the_available() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Scalar));
        assert_eq!(available.last(), Some(&Isa::detect()));
    }

    #[test]
    fn names_read_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("mmx"), None);
    }
}
