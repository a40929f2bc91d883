//! Counts what the emulator accepts of another project's kernels: for each `.metal` file of a
//! folder, whether it parses, with how many functions, and whether its address spaces fit.
//!
//!     cargo run -p metal-emulator --example foreign -- FOLDER [PART OF A NAME]
//!
//! Headers are found by their paths in the folder. README.md has the results for two projects.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: foreign FOLDER [PART OF A NAME]")?;
    let part = arguments.next().unwrap_or_default();
    let (mut sources, mut headers) = (Vec::new(), Vec::new());
    collect(std::path::Path::new(&folder), "", &mut sources, &mut headers)?;
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    let mut options = metal_emulator::Options::new(std::env::temp_dir().join("metal-emulator-foreign"));
    options.newer_language = true;
    let compiler = metal_emulator::Compiler::new(options)?;
    let (mut parsed, mut functions, mut strict) = (0, 0, 0);
    sources.retain(|(name, _)| name.contains(&part));
    for (name, text) in &sources {
        match compiler.parse(name, text, &headers) {
            Ok(list) => {
                println!("{name}: {} functions", list.len());
                parsed += 1;
                functions += list.len();
            }
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        }
        match compiler.check_strict(name, text, &headers) {
            Ok(()) => strict += 1,
            Err(error) => println!("{name}, strict: {error}"),
        }
    }
    println!("{parsed} of {} files with {functions} functions; {strict} in strict mode", sources.len());
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {}

/// Names and texts of a folder's sources and headers, ordered by name.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
type Files = Vec<(String, String)>;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn collect(
    folder: &std::path::Path,
    prefix: &str,
    sources: &mut Files,
    headers: &mut Files,
) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => collect(&path, &format!("{name}/"), sources, headers)?,
            Some("metal") => sources.push((name, std::fs::read_to_string(&path)?)),
            Some("h") => headers.push((name, std::fs::read_to_string(&path)?)),
            Some(_) | None => {}
        }
    }
    Ok(())
}
