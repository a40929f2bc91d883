//! The file: in order, streamed, under its name only when it is whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use super::encode::{self, Parts};
use super::{Action, Error, Format, Options, Plan, Planned, Result, Wanted, architecture};
use crate::{BlockType, Checkpoint, Metadata, Naming, PlaneSlices, Tensor, Value, base, gguf};

/// Files of a folder that belong to the model and are neither weights nor metadata already.
const SMALL_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
];

/// The largest of them: three times the largest tokenizer.json in use.
const MAX_FILE: u64 = 128 << 20;

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Tensors whose bytes stayed.
    pub n_copied: usize,
    /// Tensors whose integers and scales moved.
    pub n_repacked: usize,
    /// Tensors that were encoded.
    pub n_encoded: usize,
    /// Tensors and bytes of each type that was written, by its name.
    pub types: BTreeMap<String, (usize, u64)>,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// The small files that belong to a model, `(name, text)`: those beside the weights of a folder, or those that a `.base`
/// file carries.
///
/// # Errors
/// One cannot be read, is too large, or is no text.
pub fn files_of(path: &Path, checkpoint: &Checkpoint) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for (key, value) in checkpoint.metadata.iter() {
        if let (Some(name), Value::Str(text)) = (key.strip_prefix(base::FILES_PREFIX), value) {
            files.push((name.to_owned(), text.clone()));
        }
    }
    if !path.is_dir() {
        return Ok(files);
    }
    for name in SMALL_FILES {
        let file = path.join(name);
        let io = |source| Error::Io { file: file.clone(), source };
        match std::fs::metadata(&file) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(io(e)),
            Ok(found) if found.len() > MAX_FILE => {
                let found = format!("{} bytes", found.len());
                return Err(
                    crate::Error::malformed(&file, "size", found, format!("at most {MAX_FILE}")).into()
                );
            }
            Ok(_) => files.push((name.to_owned(), std::fs::read_to_string(&file).map_err(io)?)),
        }
    }
    Ok(files)
}

/// Write `output` as `plan` says. `source` is the name of the file or folder, for the header; `files` are kept in a
/// `.base` file ([`files_of`]); `progress` hears the bytes of each tensor that is written.
///
/// # Errors
/// The output is there already, cannot be written, or a value does not fit its new type. What was written is removed.
pub fn run(
    checkpoint: &Checkpoint,
    plan: &Plan,
    source: &str,
    files: &[(String, String)],
    output: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    let mut out = Output::create(output, options.force, plan.n_bytes(checkpoint))?;
    let report = match options.target.format {
        Format::Base => write_base(checkpoint, plan, source, files, &mut out, options, progress)?,
        Format::Gguf => write_gguf(checkpoint, plan, &mut out, options, progress)?,
    };
    Ok(Report { file_bytes: out.publish()?, ..report })
}

fn write_base(
    checkpoint: &Checkpoint,
    plan: &Plan,
    source: &str,
    files: &[(String, String)],
    out: &mut Output,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    let wrong = |error| out.base_error(error);
    let mut writer = base::Writer::new(architecture(checkpoint), checkpoint.naming);
    writer.field(
        "source",
        serde_json::json!({ "format": checkpoint.format, "filename": source, "sha256": "" }),
    );
    if let Some(profile) = &options.profile {
        writer.field("quant_profile", profile.name().into());
    }
    if checkpoint.naming != Naming::Gguf
        && let Some(text) = checkpoint.metadata.str(base::TOKENIZER_KEY)
    {
        let json = serde_json::from_str(text)
            .map_err(|e| crate::Error::malformed(Path::new(source), base::TOKENIZER_KEY, e, "JSON"))?;
        writer.field("tokenizer", json);
    }
    writer.metadata(&own_keys(&checkpoint.metadata)).map_err(wrong)?;
    for (name, text) in files {
        writer.file(name, text).map_err(wrong)?;
    }
    for planned in &plan.tensors {
        let tensor = &checkpoint.tensors[planned.tensor];
        writer.tensor(&tensor.name, &tensor.shape, planned.block).map_err(wrong)?;
    }
    let mut body = writer.begin(&mut out.file).map_err(|e| base_error(&out.path, out.needed, e))?;
    let report = stream(checkpoint, plan, progress, |data, planes| {
        body.tensor_data(data, planes).map_err(|e| base_error(&out.path, out.needed, e))
    })?;
    body.finish().map_err(|e| base_error(&out.path, out.needed, e))?;
    Ok(report)
}

fn write_gguf(
    checkpoint: &Checkpoint,
    plan: &Plan,
    out: &mut Output,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    if checkpoint.naming != Naming::Gguf {
        return Err(Error::Naming(checkpoint.naming));
    }
    let wrong = |error| gguf_error(&out.path, out.needed, error);
    let mut writer = gguf::Writer::new();
    let file_type = match options.target.wanted {
        Wanted::Keep => None,
        Wanted::Type { block, .. } => file_type(block),
    };
    for (key, value) in own_keys(&checkpoint.metadata).iter() {
        if key != FILE_TYPE || file_type.is_none() {
            writer.value(key, value).map_err(wrong)?;
        }
    }
    if let Some(file_type) = file_type {
        writer.metadata(FILE_TYPE, gguf::MetaValue::U32(file_type)).map_err(wrong)?;
        if checkpoint.metadata.get(QUANTIZATION_VERSION).is_none() {
            writer.metadata(QUANTIZATION_VERSION, gguf::MetaValue::U32(2)).map_err(wrong)?;
        }
    }
    for planned in &plan.tensors {
        let tensor = &checkpoint.tensors[planned.tensor];
        writer.tensor(&tensor.name, &tensor.shape, planned.block).map_err(wrong)?;
    }
    let mut body = writer.begin(&mut out.file).map_err(|e| gguf_error(&out.path, out.needed, e))?;
    let report = stream(checkpoint, plan, progress, |data, _| {
        body.tensor_data(data).map_err(|e| gguf_error(&out.path, out.needed, e))
    })?;
    body.finish().map_err(|e| gguf_error(&out.path, out.needed, e))?;
    Ok(report)
}

const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: &str = "general.quantization_version";

/// llama.cpp's number for a file most of whose matrices are of this type; of several mixes the medium one.
fn file_type(block: BlockType) -> Option<u32> {
    use BlockType::*;
    Some(match block {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q8_0 => 7,
        Q5_0 => 8,
        Q5_1 => 9,
        Q2_K => 10,
        Q3_K => 12,
        Q4_K => 15,
        Q5_K => 17,
        Q6_K => 18,
        IQ4_NL => 25,
        IQ4_XS => 30,
        BF16 => 32,
        MXFP4 => 38,
        _ => return None,
    })
}

/// The keys that belong to the model: not what says how a file was split, nor what a `.base` file added.
fn own_keys(metadata: &Metadata) -> Metadata {
    let mut own = Metadata::default();
    for (key, value) in metadata.iter() {
        if !["split.", base::HEADER_PREFIX, base::FILES_PREFIX].iter().any(|p| key.starts_with(p)) {
            own.insert(key.to_owned(), value.clone());
        }
    }
    own
}

/// Hand every tensor's bytes to `write`, in the plan's order.
fn stream(
    checkpoint: &Checkpoint,
    plan: &Plan,
    progress: &mut dyn FnMut(u64),
    mut write: impl FnMut(&[u8], PlaneSlices) -> Result<()>,
) -> Result<Report> {
    let mut report = Report::default();
    for planned in &plan.tensors {
        let tensor = &checkpoint.tensors[planned.tensor];
        let n_bytes = match converted(tensor, planned)? {
            None => {
                write(&tensor.data, tensor.planes.as_slices())?;
                tensor.n_bytes() as u64
            }
            Some(parts) => {
                write(&parts.data, parts.planes())?;
                (parts.data.len() + parts.scales.len() + parts.biases.len()) as u64
            }
        };
        match planned.action {
            Action::Copy => report.n_copied += 1,
            Action::Repack => report.n_repacked += 1,
            Action::Encode => report.n_encoded += 1,
        }
        let of_type = report.types.entry(planned.block.to_string()).or_default();
        *of_type = (of_type.0 + 1, of_type.1 + n_bytes);
        progress(n_bytes);
    }
    Ok(report)
}

/// The new bytes; `None` where the old ones are right.
fn converted(tensor: &Tensor, planned: &Planned) -> Result<Option<Parts>> {
    match planned.action {
        Action::Copy => Ok(None),
        Action::Repack => match encode::repack(tensor, planned.block) {
            Some(parts) => Ok(Some(parts)),
            None => Err(Error::Lossy { tensor: tensor.name.clone(), from: tensor.block, to: planned.block }),
        },
        Action::Encode => encode::encode(tensor, planned.block).map(Some),
    }
}

/// A file beside the one that is to be, which takes its place when it is whole, and is removed when it is not.
struct Output {
    /// Where it will be.
    path: PathBuf,
    /// Where it is.
    partial: PathBuf,
    file: BufWriter<File>,
    force: bool,
    needed: u64,
}

impl Output {
    fn create(path: &Path, force: bool, needed: u64) -> Result<Output> {
        if path.is_dir() || (path.exists() && !force) {
            return Err(Error::Exists { file: path.to_owned() });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(|e| io_error(path, needed, e))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Output { path: path.to_owned(), partial, file, force, needed })
    }

    fn base_error(&self, error: base::WriteError) -> Error {
        base_error(&self.path, self.needed, error)
    }

    /// Give it its name; its bytes.
    fn publish(mut self) -> Result<u64> {
        let wrong = |e| io_error(&self.path, self.needed, e);
        std::io::Write::flush(&mut self.file).map_err(wrong)?;
        self.file.get_ref().sync_all().map_err(wrong)?;
        let n_bytes = self.file.get_ref().metadata().map_err(wrong)?.len();
        // Somebody else may have made it meanwhile.
        if self.path.exists() && !self.force {
            return Err(Error::Exists { file: self.path.clone() });
        }
        std::fs::rename(&self.partial, &self.path).map_err(wrong)?;
        Ok(n_bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Gone already when it has its name.
        _ = std::fs::remove_file(&self.partial);
    }
}

fn base_error(path: &Path, needed: u64, error: base::WriteError) -> Error {
    match error {
        base::WriteError::Io(source) => io_error(path, needed, source),
        other => Error::Base(other),
    }
}

fn gguf_error(path: &Path, needed: u64, error: gguf::WriteError) -> Error {
    match error {
        gguf::WriteError::Io(source) => io_error(path, needed, source),
        other => Error::Gguf(other),
    }
}

fn io_error(path: &Path, needed: u64, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::DiskFull { file: path.to_owned(), needed }
        }
        _ => Error::Io { file: path.to_owned(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let error = |kind: ErrorKind| io_error(Path::new("out.base"), 77, kind.into());
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let error = base_error(Path::new("out.base"), 77, base::WriteError::Io(kind.into())).to_string();
            assert!(error.contains("out.base: the disk is full, 77 bytes"), "{error}");
        }
        assert!(matches!(error(ErrorKind::PermissionDenied), Error::Io { .. }));
    }
}
