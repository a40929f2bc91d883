//! Translates the structs that every GPU's kernels read of a step.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let kernels = kernel_build::crate_folder().join("src/kernels");
    kernel_build::write_out("arguments.rs", &kernel_build::structs(&kernels, &["step_parts.h"])?)?;
    Ok(())
}
