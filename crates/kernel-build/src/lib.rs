//! Code that the build scripts of GPU devices share. A kernel's header is the only definition of
//! the structs that the host passes to it: [`structs`] translates them to Rust. A kernel's file is
//! known by being in the folder: [`sources`] lists them, and [`embed`] prints the list as Rust.
#![deny(missing_docs)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The folder of the crate that is built.
pub fn crate_folder() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
}

/// Writes a file for `include!(concat!(env!("OUT_DIR"), "/NAME"))`, and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn write_out(name: &str, text: &str) -> io::Result<PathBuf> {
    let path = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name);
    fs::write(&path, text)?;
    Ok(path)
}

/// Translates the structs of headers to Rust: the text of `arguments.rs`, with a test-only function
/// `layouts` that lists each struct's name, size, and fields with their offsets.
///
/// A struct is `struct Name { ... };`, with one field a line, and comments above or after fields:
/// `uint`, `int`, `float`, `ulong`, a pointer (the address of memory of the GPU, a `u64`), or a
/// struct before it. Comments become docs. Each struct must come before those that have it as a
/// field, across `headers` too.
///
/// # Errors
/// A header that cannot be read, or a field of another form, with its file.
pub fn structs(folder: &Path, headers: &[&str]) -> Result<String, String> {
    let (mut rust, mut names) = (String::new(), Vec::new());
    for header in headers {
        let path = folder.join(header);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        translate(&text, &mut names, &mut rust).map_err(|reason| format!("{}: {reason}", path.display()))?;
    }
    let layouts: String = names.iter().map(|name| format!("layout_of_{name}(),")).collect();
    rust += &format!("#[cfg(test)] fn layouts() -> Vec<Layout> {{ vec![{layouts}] }}\n");
    Ok(rust)
}

/// Adds the structs of a header to `rust`, and their names to `names`.
fn translate(text: &str, names: &mut Vec<String>, rust: &mut String) -> Result<(), String> {
    let (mut lines, mut comment) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("//") {
            comment += &format!("///{words}\n");
            continue;
        }
        let above = std::mem::take(&mut comment);
        let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) else {
            continue;
        };
        let (mut fields, mut offsets) = (String::new(), String::new());
        for line in lines.by_ref().take_while(|line| *line != "};") {
            let (code, words) = line.split_once("//").unwrap_or((line, ""));
            if code.trim().is_empty() {
                fields += &format!("#[doc = {words:?}]");
                continue;
            }
            let field = code.trim().strip_suffix(';').and_then(|field| field.rsplit_once(' '));
            let (kind, field) = field.ok_or_else(|| format!("{name}: '{line}' is not 'TYPE NAME;'"))?;
            let (kind, field) = match (field.strip_prefix('*'), kind) {
                (Some(field), _) => ("u64", field),
                (None, "uint") => ("u32", field),
                (None, "int") => ("i32", field),
                (None, "float") => ("f32", field),
                (None, "ulong") => ("u64", field),
                (None, known) if names.iter().any(|name| name == known) => (known, field),
                (None, other) => return Err(format!("{name}.{field}: '{other}' is no known type")),
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

/// Lists the files under a folder that have one of these extensions, sorted by name: names and
/// paths. A name is the path from the folder, with forward slashes.
///
/// # Errors
/// The folder cannot be read, or a name is not UTF-8.
pub fn sources(folder: &Path, extensions: &[&str]) -> io::Result<Vec<(String, PathBuf)>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        println!("cargo:rerun-if-changed={}", next.display());
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
                let name = path.strip_prefix(folder).ok().and_then(Path::to_str);
                let name = name.ok_or_else(|| io::Error::other(format!("{}: not UTF-8", path.display())))?;
                found.push((name.replace('\\', "/"), path));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The Rust text of a constant, `(name, text)` of each source in the order of their names, whose
/// texts begin with `prefix`.
pub fn embed(constant: &str, doc: &str, prefix: &str, sources: &[(String, PathBuf)]) -> String {
    let mut rust = format!("#[doc = {doc:?}]\npub const {constant}: &[(&str, &str)] = &[\n");
    for (name, path) in sources {
        let _ = writeln!(rust, "({name:?}, concat!({prefix:?}, include_str!({path:?}))),");
    }
    rust + "];\n"
}

/// The Rust text of constants for the indices of function constants that a Metal header has, in
/// either of two forms, without `prefix`: `#define PREFIXNAME 3 // words`, or
/// `constant TYPE PREFIXNAME [[function_constant(3)]];` after lines of comments.
///
/// # Errors
/// The header cannot be read.
pub fn function_constants(header: &Path, prefix: &str) -> io::Result<String> {
    println!("cargo:rerun-if-changed={}", header.display());
    let (mut rust, mut comment, mut is_used) = (String::new(), String::new(), false);
    for line in fs::read_to_string(header)?.lines() {
        if let Some(words) = line.strip_prefix("//") {
            // A constant without a comment shares the comment of the previous constant.
            if std::mem::take(&mut is_used) {
                comment.clear();
            }
            comment += words;
            continue;
        }
        let found = match line.strip_prefix("#define ") {
            Some(rest) => {
                let (code, words) = rest.split_once("//").unwrap_or((rest, ""));
                if !words.is_empty() {
                    comment = words.to_owned();
                }
                code.trim().split_once(' ')
            }
            None => line.strip_prefix("constant ").and_then(|rest| {
                let (name, rest) = rest.split_once(" [[function_constant(")?;
                Some((name.rsplit(' ').next()?, rest.split(')').next()?))
            }),
        };
        if let Some((name, index)) = found
            && let Ok(index) = index.trim().parse::<u16>()
        {
            let short = name.strip_prefix(prefix).unwrap_or(name);
            let _ = writeln!(rust, "#[doc = {comment:?}]\npub const {short}: u16 = {index};");
            is_used = true;
        } else {
            comment.clear();
        }
    }
    Ok(rust)
}
