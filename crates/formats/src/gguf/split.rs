//! Opens a GGUF file, and joins split sets.
//!
//! The files of a set are named `NAME-00001-of-00003.gguf`. Each has `split.no` (from 0) and
//! `split.count`. The first has the model's metadata and `split.tensors.count`, the number of
//! tensors in all files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::reader::{Part, parse_part};
use weights::{Access, Checkpoint, Error, LeftOut, Map, Naming, Result};

/// Opens a GGUF file, or all files of a split set from any of them. The files must be in one
/// folder.
///
/// # Errors
/// Names the file, the key or tensor, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    let part = open_part(path, access)?;
    // Tools that quantise a set into one file write a count of 0.
    let n_files = integer(&part, path, "split.count")?.unwrap_or(0).max(1);
    let parts =
        if n_files == 1 { vec![(path.to_owned(), part)] } else { open_set(path, part, n_files, access)? };
    join(parts)
}

fn open_part(path: &Path, access: Access) -> Result<Part> {
    parse_part(Map::open(path, access)?, path)
}

/// The value of an integer key; `None` if it is missing, an error if it is not an integer.
fn integer(part: &Part, path: &Path, key: &str) -> Result<Option<usize>> {
    match (part.metadata.get(key), part.metadata.usize(key)) {
        (None, _) => Ok(None),
        (_, Some(n)) => Ok(Some(n)),
        (Some(value), None) => Err(Error::malformed(
            path,
            format_args!("key {key:?}"),
            format_args!("{value:?}"),
            "an integer, 0 or more",
        )),
    }
}

/// Joins all files of the set to which `opened`, at `path`, belongs.
fn open_set(path: &Path, opened: Part, n_files: usize, access: Access) -> Result<Vec<(PathBuf, Part)>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name
        .strip_suffix(&format!("-of-{n_files:05}.gguf"))
        .and_then(|rest| Some((rest.get(..rest.len().checked_sub(6)?)?, rest.get(rest.len() - 6..)?)))
        .and_then(|(stem, number)| Some((stem, number.strip_prefix('-')?.parse::<usize>().ok()?)));
    let Some((stem, number)) = stem else {
        return Err(Error::malformed(
            path,
            "file name",
            format_args!("{name:?} with split.count {n_files}"),
            format_args!("NAME-00001-of-{n_files:05}.gguf"),
        ));
    };
    let mut opened = Some(opened);
    (0..n_files)
        .map(|no| {
            let path = path.with_file_name(format!("{stem}-{:05}-of-{n_files:05}.gguf", no + 1));
            let part = match opened.take_if(|_| no + 1 == number) {
                Some(part) => part,
                None => open_part(&path, access)?,
            };
            for (key, expected) in [("split.no", no), ("split.count", n_files)] {
                let found = integer(&part, &path, key)?;
                if found != Some(expected) {
                    let found = found.map_or("nothing".to_owned(), |n| n.to_string());
                    return Err(Error::malformed(&path, format_args!("key {key:?}"), found, expected));
                }
            }
            Ok((path, part))
        })
        .collect()
}

fn join(parts: Vec<(PathBuf, Part)>) -> Result<Checkpoint> {
    let n_files = parts.len();
    let mut parts = parts.into_iter();
    let Some((first_path, first)) = parts.next() else { unreachable!("a set has at least one file") };
    let n_expected = integer(&first, &first_path, "split.tensors.count")?;
    let mut checkpoint = Checkpoint {
        naming: Naming::Gguf,
        metadata: first.metadata,
        tensors: first.tensors,
        left_out: first.left_out,
        format: match n_files {
            1 => format!("GGUF v{}", first.version),
            n => format!("GGUF v{} in {n} files", first.version),
        },
        file_bytes: first.n_bytes as u64,
    };
    // Tensors that are not weights count too, and so do their names.
    let name = |t: &LeftOut| t.name.clone();
    let mut names: HashSet<String> = checkpoint.tensors.iter().map(|t| t.name.clone()).collect();
    names.extend(checkpoint.left_out.iter().map(name));
    for (path, part) in parts {
        for tensor in part.tensors {
            if !names.insert(tensor.name.clone()) {
                return Err(Error::malformed(
                    &path,
                    format_args!("tensor {:?}", tensor.name),
                    "the name a second time in the set",
                    "every name once",
                ));
            }
            checkpoint.tensors.push(tensor);
        }
        names.extend(part.left_out.iter().map(name));
        checkpoint.left_out.extend(part.left_out);
        checkpoint.file_bytes += part.n_bytes as u64;
    }
    let n_found = checkpoint.tensors.len() + checkpoint.left_out.len();
    match n_expected {
        Some(n) if n_files > 1 && n != n_found => Err(Error::malformed(
            &first_path,
            "key \"split.tensors.count\"",
            n,
            format_args!("{n_found}, as the set's files hold"),
        )),
        _ => Ok(checkpoint),
    }
}
