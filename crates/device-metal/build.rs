//! Writes what the host knows of the kernels, which are its only definition: the argument structs of
//! their headers, their function constants, and their sources.

use std::path::PathBuf;

/// The headers under `src/kernels/`, in an order in which each struct comes before those that have it
/// as a field.
const HEADERS: [&str; 4] =
    ["arguments.h", "linear/arguments.h", "attention/arguments.h", "sampling/arguments.h"];

/// Headers with function constants, the module of each, and what their names begin with.
const CONSTANTS: [(&str, &str, &str); 4] = [
    ("constants.h", "constant", "FC_"),
    ("linear/constants.h", "linear", "LINEAR_"),
    ("join.h", "join", "JOIN_"),
    ("attention/constants.h", "attention", "ATTENTION_"),
];

/// Files of kernels begin with this: Apple's compiler contracts a product and a sum to `fma` otherwise,
/// even in its safe mode, and one file would give other bits than another. Kernels write `fma` where
/// they want it. The line numbers after it are the file's own.
const NO_CONTRACTION: &str = "#pragma METAL fp contract(off)\n#line 1\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let kernels = kernel_build::crate_folder().join("src/kernels");
    let of_all_gpus = kernel_build::crate_folder().join("../device-gpu/src/kernels");
    kernel_build::write_out("arguments.rs", &kernel_build::structs(&kernels, &HEADERS)?)?;

    let mut headers: Vec<(String, PathBuf)> = kernel_build::sources(&kernels, &["h"])?;
    headers.extend(kernel_build::sources(&of_all_gpus, &["h"])?);
    headers.sort();
    let files = kernel_build::sources(&kernels, &["metal"])?;
    let sources =
        kernel_build::embed("HEADERS", "Headers by the name that they are included by.", "", &headers)
            + &kernel_build::embed("FILES", "Kernel files by path.", NO_CONTRACTION, &files);
    kernel_build::write_out("sources.rs", &sources)?;

    let mut constants = String::new();
    for (header, module, prefix) in CONSTANTS {
        let inside = kernel_build::function_constants(&kernels.join(header), prefix)?;
        constants += &format!(
            "/// Indices of function constants, as `{header}` lists them.\npub mod {module} {{\n{inside}}}\n"
        );
    }
    kernel_build::write_out("constants.rs", &constants)?;
    Ok(())
}
