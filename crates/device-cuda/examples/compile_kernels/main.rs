//! Compiles every kernel for the given architectures, without a GPU. It writes the archive that the
//! next build embeds in the binary, and the table of registers and spills that CI compares.
//!
//! `compile_kernels [--nvrtc PATH] [--check] [--only TEXT] ARCHITECTURE...` (`cargo xtask
//! cuda-kernels` fetches NVRTC and calls it). `--check` writes nothing, and fails if the table
//! differs from the recorded one.

// The crate is empty on systems without CUDA, and so is this program.
#[cfg(any(target_os = "linux", target_os = "windows"))]
mod kernels;

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn main() -> kernels::Fallible<()> {
    kernels::main()
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
fn main() {}
