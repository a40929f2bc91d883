//! Writes Rust from the kernels, which are the only definition of argument structs and of function
//! constants, and embeds their sources.

// The tables of points. The codecs use the rest of this module, which is dead code here.
#[allow(dead_code)]
#[path = "../weights/src/codec/grid.rs"]
mod grid;

use std::path::PathBuf;

/// The headers under `src/kernels/`, in an order in which each struct comes before those that have
/// it as a field.
const HEADERS: [&str; 4] =
    ["arguments.h", "linear/arguments.h", "attention/arguments.h", "sampling/arguments.h"];

/// Headers with function constants, the Rust module of each, and the prefix of their names.
const CONSTANTS: [(&str, &str, &str); 4] = [
    ("constants.h", "constant", "FC_"),
    ("linear/constants.h", "linear", "LINEAR_"),
    ("join.h", "join", "JOIN_"),
    ("attention/constants.h", "attention", "ATTENTION_"),
];

/// Files of kernels begin with this pragma. Apple's compiler otherwise contracts a product and a
/// sum to `fma` even in its safe mode, so results would differ between files. Kernels write `fma`
/// where they want it. The line numbers after it are the file's own.
const NO_CONTRACTION: &str = "#pragma METAL fp contract(off)\n#line 1\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let kernels = kernel_build::crate_folder().join("src/kernels");
    let of_all_gpus = kernel_build::crate_folder().join("../device-gpu/src/kernels");
    kernel_build::write_out("arguments.rs", &kernel_build::structs(&kernels, &HEADERS)?)?;

    let mut headers: Vec<(String, PathBuf)> = kernel_build::sources(&kernels, &["h"])?;
    headers.extend(kernel_build::sources(&of_all_gpus, &["h"])?);
    headers.push(("linear/grid_points.h".to_owned(), kernel_build::write_out("grid_points.h", &points())?));
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

/// The header with the codebooks of the IQ types.
fn points() -> String {
    println!("cargo:rerun-if-changed=../weights/src/codec/grid.rs");
    let tables: [(&str, &[u16]); 6] = [
        ("IQ1", &grid::IQ1),
        ("IQ2_XXS", &grid::IQ2_XXS),
        ("IQ2_XS", &grid::IQ2_XS),
        ("IQ2_S", &grid::IQ2_S),
        ("IQ3_XXS", &grid::IQ3_XXS),
        ("IQ3_S", &grid::IQ3_S),
    ];
    let mut header =
        "// Printed by build.rs from crates/weights/src/codec/grid.rs.\n#pragma once\n".to_owned();
    for (name, points) in tables {
        header += &format!("\nconstant ushort {name}_POINTS[{}] = {{\n", points.len());
        for line in points.chunks(16) {
            let numbers: Vec<String> = line.iter().map(|point| format!("0x{point:04x}")).collect();
            header += &format!("    {},\n", numbers.join(", "));
        }
        header += "};\n";
    }
    header
}
