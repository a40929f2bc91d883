//! Registers of each kernel, by NVIDIA's assembler instead of Apple's, which is not public; and the
//! kernel's conversion instructions (`metal_emulator::Registers`).
//!
//!     cargo run -p ingle-device-metal --example registers -- PTXAS [FILE ...]
//!
//! PTXAS is `ptxas` of PyPI's `nvidia-cuda-nvcc`. FILE is a file of kernels such as
//! `linear/q4_0.metal`; without any, all of them. Constants are those of an unsplit projection with
//! a norm and a residual, and of an attention with four heads of 128 columns per KV head.

/// LINEAR_NORM, LINEAR_RESIDUAL, LINEAR_WEIGHTS and LINEAR_SPLIT of `linear/constants.h`;
/// ATTENTION_HEAD_DIM, _HEADS and _KEY_LANES of `attention/constants.h`.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const CONSTANTS: [(u16, u32); 7] = [(0, 1), (2, 1), (5, 1), (6, 1), (32, 128), (33, 4), (50, 8)];

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use ingle_device_metal::kernels::{FILES, HEADERS};
    use metal_emulator::{Compiler, Options};

    let mut arguments = std::env::args().skip(1);
    let ptxas = arguments.next().ok_or("expected the path of ptxas")?;
    let wanted: Vec<String> = arguments.collect();
    if let Some(unknown) = wanted.iter().find(|name| FILES.iter().all(|(file, _)| file != name)) {
        return Err(format!("'{unknown}' is no file of kernels").into());
    }
    let compiler = Compiler::new(Options::new(std::env::temp_dir().join("ingle-registers")))?;
    println!("| kernel | registers | bytes in memory | conversions |\n|---|---|---|---|");
    for (file, source) in FILES {
        if wanted.is_empty() || wanted.iter().any(|name| name == file) {
            for (name, found) in compiler.registers(file, source, HEADERS, &CONSTANTS, ptxas.as_ref())? {
                let n = found.n.map_or_else(|| "more than 224".to_owned(), |n| n.to_string());
                println!("| {name} | {n} | {} | {} |", found.memory, found.conversions);
            }
        }
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the emulator runs on Linux on x86-64");
}
