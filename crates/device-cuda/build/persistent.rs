//! Translates the constants of `kernels/persistent/arguments.h`, so that host and kernels have one
//! definition. The prefix `PERSISTENT_` is left out.
//!
//! - A value of an `enum` becomes a `u32`, since fields of the table hold them.
//! - `#define NAME NUMBER` becomes a `usize`.
//! - `#define NAME(a, b) EXPRESSION` becomes a `const fn` of `usize`.

use std::fmt::Write;

const PREFIX: &str = "PERSISTENT_";

/// The Rust text of a header's constants.
pub fn constants(header: &str) -> Result<String, String> {
    let (mut rust, mut in_enum) = (String::new(), false);
    let mut functions: Vec<(String, String)> = Vec::new();
    for line in header.lines() {
        let (code, doc) = line.split_once("//").unwrap_or((line, ""));
        let code = code.trim();
        let (name, kind, value) = if code.starts_with("enum ") {
            in_enum = true;
            continue;
        } else if in_enum {
            let Some(value) = code.strip_suffix(',') else {
                in_enum = code != "};";
                continue;
            };
            let (name, value) = value.split_once(" = ").ok_or_else(|| format!("'{line}'"))?;
            (name, "u32", value)
        } else {
            let Some(define) = code.strip_prefix("#define ") else { continue };
            let (name, value) = define.split_once(' ').ok_or_else(|| format!("'{line}'"))?;
            if let Some((name, first)) = name.split_once('(') {
                let (second, value) = value.split_once(") ").ok_or_else(|| format!("'{line}'"))?;
                let short = name.strip_prefix(PREFIX).unwrap_or(name).to_lowercase();
                let parameters = format!("{first} {second}").replace(',', ": usize,");
                let value = functions.iter().fold(value.to_owned(), |value, (macro_name, function)| {
                    value.replace(&format!("{macro_name}("), &format!("{function}("))
                });
                write(
                    &mut rust,
                    doc,
                    &format!("const fn {short}({parameters}: usize) -> usize {{ {value} }}"),
                )?;
                functions.push((name.to_owned(), short));
                continue;
            }
            (name, "usize", value.trim())
        };
        value.parse::<u32>().map_err(|_| format!("'{line}': expected a number"))?;
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        write(&mut rust, doc, &format!("const {name}: {kind} = {value};"))?;
    }
    Ok(rust)
}

fn write(rust: &mut String, doc: &str, item: &str) -> Result<(), String> {
    let doc = if doc.is_empty() { String::new() } else { format!("#[doc = {:?}] ", doc.trim()) };
    writeln!(rust, "{doc}pub {item}").map_err(|error| error.to_string())
}
