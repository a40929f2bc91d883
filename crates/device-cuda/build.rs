//! Generates the host's view of the kernels. It has their argument structs and constants,
//! translated from headers, and their sources, for the compiler at run time. There is also, if
//! `cargo xtask cuda-kernels` has made it, the archive of compiled kernels.

#[path = "src/persistent/general.rs"]
mod general;
#[path = "build/persistent.rs"]
mod persistent;

/// The headers under `src/kernels/` in an order in which each struct comes before its users.
const HEADERS: [&str; 4] =
    ["linear/arguments.h", "arguments.h", "gemm/arguments.h", "persistent/arguments.h"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in ["build.rs", "build/persistent.rs", "src/persistent/general.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let root = kernel_build::crate_folder();
    let (kernels, of_all_gpus) = (root.join("src/kernels"), root.join("../device-gpu/src/kernels"));
    kernel_build::write_out("arguments.rs", &kernel_build::structs(&kernels, &HEADERS)?)?;
    let constants = std::fs::read_to_string(kernels.join("persistent/arguments.h"))?;
    kernel_build::write_out("persistent.rs", &persistent::constants(&constants)?)?;

    let mut sources = kernel_build::sources(&kernels, &["cu", "cuh", "h"])?;
    sources.extend(kernel_build::sources(&of_all_gpus, &["h"])?);
    for kernel in general::prebuilt() {
        let printed = kernel_build::write_out(&kernel.file().replace('/', "-"), &kernel.text(None))?;
        sources.push((kernel.file(), printed));
    }
    sources.sort();
    let doc = "Sources by their paths under `kernels/`, in order.";
    kernel_build::write_out("sources.rs", &kernel_build::embed("SOURCES", doc, "", &sources))?;

    let folder = root.join("compiled");
    println!("cargo:rerun-if-changed={}", folder.display());
    let archive = folder.join("kernels.bin");
    let compiled = match archive.exists() {
        true => format!("include_bytes!({archive:?})"),
        false => "&[]".to_owned(),
    };
    kernel_build::write_out("compiled.rs", &format!("const COMPILED: &[u8] = {compiled};\n"))?;
    Ok(())
}
