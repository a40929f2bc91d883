//! The tests that need a GPU, as one program for a machine without a Rust toolchain (`cargo xtask
//! gpu-test` bundles it). Arguments choose by name: `gpu_test Linear promises "decoder 45"`.

// The crate is empty on systems without CUDA, and so is this program.
#[cfg(any(target_os = "linux", target_os = "windows"))]
mod on_gpu;

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn main() -> std::process::ExitCode {
    on_gpu::main()
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
fn main() {}
