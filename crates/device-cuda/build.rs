//! Gives the host what the kernels say: their argument structs, translated from the headers that are
//! the only definition; their sources, for the compiler at run time; and, where `cargo xtask
//! cuda-kernels` has made it, the archive of compiled kernels.
//!
//! A struct of a header is `struct Name { ... };`, one field a line: `uint`, `int`, `float`, `ulong`,
//! a pointer, or a struct that stands before it. Anything else stops the build.

#[path = "src/persistent/general.rs"]
mod general;
#[path = "build/persistent.rs"]
mod persistent;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The headers under `src/kernels/` in an order in which each struct stands before its users.
const HEADERS: [&str; 5] =
    ["step.h", "linear/arguments.h", "arguments.h", "gemm/arguments.h", "persistent/arguments.h"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (kernels, out) = (root.join("src/kernels"), PathBuf::from(env::var("OUT_DIR")?));
    let (mut rust, mut names) = (String::new(), Vec::new());
    for header in HEADERS {
        let text = fs::read_to_string(kernels.join(header))?;
        translate(&text, &mut names, &mut rust).map_err(|reason| format!("{header}: {reason}"))?;
    }
    let layouts: String = names.iter().map(|name| format!("layout_of_{name}(),")).collect();
    writeln!(rust, "#[cfg(test)] fn layouts() -> Vec<Layout> {{ vec![{layouts}] }}")?;
    fs::write(out.join("arguments.rs"), rust)?;
    let constants = persistent::constants(&fs::read_to_string(kernels.join("persistent/arguments.h"))?)?;
    fs::write(out.join("persistent.rs"), constants)?;
    println!("cargo:rerun-if-changed=build/persistent.rs");
    println!("cargo:rerun-if-changed=src/persistent/general.rs");
    println!("cargo:rerun-if-changed={}", kernels.display());
    let mut files = Vec::new();
    list(&kernels, &kernels, &mut files)?;
    let on_disk = files.into_iter().map(|file| (format!("include_str!({:?})", kernels.join(&file)), file));
    let printed = general::prebuilt().map(|kernel| (format!("{:?}", kernel.text(None)), kernel.file()));
    let mut files: Vec<(String, String)> = on_disk.chain(printed).map(|(text, file)| (file, text)).collect();
    files.sort();
    let mut sources = String::from("const SOURCES: &[(&str, &str)] = &[\n");
    for (file, text) in files {
        writeln!(sources, "({file:?}, {text}),")?;
    }
    fs::write(out.join("sources.rs"), sources + "];\n")?;
    let folder = root.join("compiled");
    println!("cargo:rerun-if-changed={}", folder.display());
    let archive = folder.join("kernels.bin");
    let compiled = match archive.exists() {
        true => format!("include_bytes!({archive:?})"),
        false => "&[]".to_owned(),
    };
    fs::write(out.join("compiled.rs"), format!("const COMPILED: &[u8] = {compiled};\n"))?;
    Ok(())
}

/// The sources under a folder, by their paths from `root` with forward slashes.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            list(root, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh" || e == "h") {
            let name = path.strip_prefix(root)?.to_str().ok_or("a name that is not UTF-8")?;
            files.push(name.replace('\\', "/"));
        }
    }
    Ok(())
}

/// Add the structs of a header to `rust`, and their names to `names`.
fn translate(text: &str, names: &mut Vec<String>, rust: &mut String) -> Result<(), String> {
    let (mut lines, mut comment) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("//") {
            writeln!(comment, "///{words}").map_err(|e| e.to_string())?;
            continue;
        }
        let above = std::mem::take(&mut comment);
        let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) else {
            continue;
        };
        let (mut fields, mut offsets) = (String::new(), String::new());
        for line in lines.by_ref().take_while(|line| *line != "};") {
            let (code, words) = line.split_once("//").unwrap_or((line, ""));
            let field = code.trim().strip_suffix(';').and_then(|field| field.rsplit_once(' '));
            let (kind, field) = field.ok_or_else(|| format!("{name}: '{line}' is not 'TYPE NAME;'"))?;
            let (kind, field) = match (field.strip_prefix('*'), kind) {
                (Some(field), _) => ("u64", field),
                (None, "uint") => ("u32", field),
                (None, "int") => ("i32", field),
                (None, "float") => ("f32", field),
                (None, "ulong") => ("u64", field),
                (None, known) if names.iter().any(|name| name == known) => (known, field),
                (None, other) => {
                    return Err(format!("{name}.{field}: '{other}' is not a type that is known here"));
                }
            };
            let doc = if words.is_empty() { String::new() } else { format!("#[doc = {words:?}]") };
            fields += &format!("{doc} pub {field}: {kind},");
            offsets += &format!("({field:?}, std::mem::offset_of!({name}, {field})),");
        }
        *rust += &format!(
            "{above}#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]\n#[repr(C)]\n\
             pub struct {name} {{ {fields} }}\n\
             #[cfg(test)] #[allow(non_snake_case)] fn layout_of_{name}() -> Layout {{\n\
             (\"{name}\", size_of::<{name}>(), vec![{offsets}]) }}\n"
        );
        names.push(name.to_owned());
    }
    Ok(())
}
