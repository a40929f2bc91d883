//! Writes the argument structs of the kernels in Rust, from the headers that the shader compiler
//! reads: the headers are their only definition. `src/arguments.rs` includes the result.
//!
//! A struct of a header is `struct Name { ... };`, with one field a line: a `uint`, an `int`, a
//! `float`, or a struct that stands before it, in the order of [`HEADERS`]. Anything else stops the
//! build. Comments become docs.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

/// The headers under `src/kernels/`, in an order in which each struct stands before those that have
/// it as a field.
const HEADERS: [&str; 5] =
    ["step.h", "arguments.h", "linear/arguments.h", "attention/arguments.h", "sampling/arguments.h"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let kernels = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("src/kernels");
    let (mut rust, mut names) = (String::new(), Vec::new());
    for header in HEADERS {
        let path = kernels.join(header);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path)?;
        translate(&text, &mut names, &mut rust).map_err(|reason| format!("{}: {reason}", path.display()))?;
    }
    let layouts: String = names.iter().map(|name| format!("layout_of_{name}(),")).collect();
    writeln!(rust, "#[cfg(test)] fn layouts() -> Vec<Layout> {{ vec![{layouts}] }}")?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("arguments.rs"), rust)?;
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
            let field = code.trim().strip_suffix(';').and_then(|field| field.split_once(' '));
            let (kind, field) = field.ok_or_else(|| format!("{name}: '{line}' is not 'TYPE NAME;'"))?;
            let kind = match kind {
                "uint" => "u32",
                "int" => "i32",
                "float" => "f32",
                known if names.iter().any(|name| name == known) => known,
                other => return Err(format!("{name}.{field}: '{other}' is not a type that is known here")),
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
