//! The compilation, and its command line.

use ingle_device_cuda::{kernels, nvrtc::Nvrtc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A result whose error is printed.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Registers and spilled bytes of each kernel, by architecture, file and kernel.
type Table = BTreeMap<(String, String, String), (u32, u32)>;

/// Compiles the kernels for the architectures that the arguments name.
pub fn main() -> Fallible<()> {
    let (mut nvrtc, mut check, mut only, mut architectures) = (None, false, String::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--nvrtc" => nvrtc = arguments.next().map(PathBuf::from),
            "--only" => only = arguments.next().unwrap_or_default(),
            "--check" => check = true,
            _ => architectures.push(argument),
        }
    }
    let nvrtc = Nvrtc::load(nvrtc.as_deref())?;
    let jobs: Vec<(&str, &str)> = architectures
        .iter()
        .flat_map(|a| kernels::files(a).map(move |file| (a.as_str(), file)))
        .filter(|(_, file)| file.contains(&only))
        .collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Table::new(), Vec::new())));
    let work = || {
        while let Some((architecture, file)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = compile(&nvrtc, architecture, file);
            let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
            match result {
                Ok((hash, code, log)) => {
                    done.1.extend(numbers(architecture, file, &log));
                    done.0.push(((*architecture).to_owned(), (*file).to_owned(), hash, code));
                }
                Err(reason) => done.2.push(reason.to_string()),
            }
        }
    };
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..n_threads).for_each(|_| drop(scope.spawn(work))));
    let (mut entries, table, errors) = done.into_inner().unwrap_or_else(|e| e.into_inner());
    if !errors.is_empty() {
        return Err(errors.join("\n").into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (major, minor) = nvrtc.version();
    let place = root.join("src/kernels/REGISTERS.tsv");
    let text = print(&table, (major, minor));
    if check {
        let recorded = std::fs::read_to_string(&place)?;
        let known: std::collections::BTreeSet<&str> = recorded.lines().collect();
        let new: Vec<&str> = text.lines().filter(|line| !known.contains(line)).collect();
        return match new.is_empty() {
            true => Ok(()),
            false => Err(format!("not as recorded in {}:\n{}", place.display(), new.join("\n")).into()),
        };
    }
    entries.sort();
    let archive = kernels::archive(&entries);
    std::fs::create_dir_all(root.join("compiled"))?;
    std::fs::write(root.join("compiled/kernels.bin"), &archive)?;
    if only.is_empty() {
        std::fs::write(place, text)?;
    }
    println!("{} files of code, {} bytes, by NVRTC {major}.{minor}", entries.len(), archive.len());
    Ok(())
}

fn compile(nvrtc: &Nvrtc, architecture: &str, file: &str) -> Result<(String, Vec<u8>, String), String> {
    let text = |name| kernels::source(name).unwrap_or_default();
    let headers: Vec<(&str, &str)> =
        kernels::headers(file)?.into_iter().map(|name| (name, text(name))).collect();
    let compiled = nvrtc.compile(file, text(file), &headers, architecture, true)?;
    Ok((kernels::hash(file)?, kernels::deflate(&compiled.code), compiled.log))
}

/// Registers and spilled bytes of each kernel, parsed from the log of ptxas.
fn numbers(architecture: &str, file: &str, log: &str) -> Table {
    let mut table = Table::new();
    let (mut kernel, mut spilled) = (String::new(), 0);
    let number_before = |line: &str, word: &str| -> Option<u32> {
        line.split(word).next()?.trim().rsplit(' ').next()?.parse().ok()
    };
    for line in log.lines() {
        if let Some(name) =
            line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next())
        {
            (kernel, spilled) = (name.to_owned(), 0);
        } else if line.contains("bytes spill stores") {
            spilled = number_before(line, " bytes spill stores").unwrap_or(0);
        } else if let Some(registers) =
            line.split("Used ").nth(1).and_then(|rest| number_before(rest, " registers"))
        {
            let key = (architecture.to_owned(), file.to_owned(), kernel.clone());
            table.insert(key, (registers, spilled));
        }
    }
    table
}

fn print(table: &Table, (major, minor): (u32, u32)) -> String {
    let mut text = format!(
        "# Registers and spilled bytes of each kernel by NVRTC {major}.{minor}: cargo xtask cuda-kernels\n"
    );
    for ((architecture, file, kernel), (registers, spilled)) in table {
        text += &format!("{architecture}\t{file}\t{kernel}\t{registers}\t{spilled}\n");
    }
    text
}
