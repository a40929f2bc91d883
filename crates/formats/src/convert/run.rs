//! Writes the output file in order, streamed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use super::encode::{self, Parts};
use super::file_type::{FILE_TYPE, file_type};
use super::output::{Output, base_error, gguf_error};
use super::progress::{Counted, Progress};
use super::{Action, Error, Format, Options, Plan, Planned, Result, architecture};
use crate::{base, gguf};
use weights::{Checkpoint, Metadata, Naming, PlaneSlices, Tensor, Value};
use weights::{Declaration, Source};

/// Files of a folder that belong to the model and are neither weights nor metadata.
const SMALL_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
];

/// Largest size of such a file: three times the largest tokenizer.json in use.
const MAX_FILE: u64 = 128 << 20;

/// Statistics of a conversion.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Tensors that were copied.
    pub n_copied: usize,
    /// Tensors that were repacked.
    pub n_repacked: usize,
    /// Tensors that were encoded.
    pub n_encoded: usize,
    /// Tensors and bytes of each written type, by its name.
    pub types: BTreeMap<String, (usize, u64)>,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Reads the small files that belong to a model, `(name, text)`: those beside the weights of a
/// folder, or those in a `.base` file.
///
/// # Errors
/// A file cannot be read, is too large, or is not text.
pub fn files_of(path: &Path, checkpoint: &Checkpoint) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for (key, value) in checkpoint.metadata.iter() {
        if let (Some(name), Value::Str(text)) = (key.strip_prefix(weights::keys::FILES_PREFIX), value) {
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

/// Writes `output` by the plan. `name` is that of the source's file or folder, for the header; a
/// `.base` file stores `files` ([`files_of`]). `progress` is called with bytes made, many times
/// within a large tensor.
///
/// # Errors
/// The output exists or cannot be written, a tensor cannot be made, or a value does not fit its new
/// type. A partial output is removed.
pub fn run(
    source: &dyn Source,
    plan: &Plan,
    name: &str,
    files: &[(String, String)],
    output: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    let mut out = Output::create(output, options.force, plan.n_bytes(source))?;
    let progress = &Progress::new(progress);
    let report = match options.target.format {
        Format::Base => write_base(source, plan, name, files, &mut out, options, progress)?,
        Format::Gguf => write_gguf(source, plan, &mut out, options, progress)?,
    };
    Ok(Report { file_bytes: out.publish()?, ..report })
}

/// The declaration of a planned tensor.
fn declared<'a>(declarations: &[Declaration<'a>], planned: &Planned) -> Result<Declaration<'a>> {
    let (i, n_tensors) = (planned.tensor, declarations.len());
    declarations.get(i).copied().ok_or(Error::Source(weights::SourceError::NoTensor { i, n_tensors }))
}

fn write_base(
    source: &dyn Source,
    plan: &Plan,
    name: &str,
    files: &[(String, String)],
    out: &mut Output,
    options: &Options,
    progress: &Progress<'_>,
) -> Result<Report> {
    let Output { path, needed, file, .. } = out;
    let wrong = |error| base_error(path, *needed, error);
    let metadata = source.metadata();
    let mut writer = base::BaseWriter::new(architecture(source), source.naming());
    let from = serde_json::json!({ "format": source.format(), "filename": name, "sha256": "" });
    writer.field("source", from);
    if let Some(profile) = &options.profile {
        writer.field("quant_profile", profile.name().into());
    }
    if source.naming() != Naming::Gguf
        && let Some(text) = metadata.str(weights::keys::TOKENIZER_KEY)
    {
        let json = serde_json::from_str(text)
            .map_err(|e| crate::Error::malformed(Path::new(name), weights::keys::TOKENIZER_KEY, e, "JSON"))?;
        writer.field("tokenizer", json);
    }
    writer.metadata(&own_keys(metadata)).map_err(wrong)?;
    for (name, text) in files {
        writer.file(name, text).map_err(wrong)?;
    }
    let declarations = source.declarations();
    for planned in &plan.tensors {
        let tensor = declared(&declarations, planned)?;
        writer.tensor(tensor.name, tensor.shape, planned.block).map_err(wrong)?;
    }
    let mut body = writer.begin(Counted { file, progress }).map_err(wrong)?;
    let report =
        stream(source, plan, progress, |data, planes| body.tensor_data(data, planes).map_err(wrong))?;
    body.finish().map_err(wrong)?;
    Ok(report)
}

fn write_gguf(
    source: &dyn Source,
    plan: &Plan,
    out: &mut Output,
    options: &Options,
    progress: &Progress<'_>,
) -> Result<Report> {
    if source.naming() != Naming::Gguf {
        return Err(Error::Naming(source.naming()));
    }
    let Output { path, needed, file, .. } = out;
    let wrong = |error| gguf_error(path, *needed, error);
    let metadata = source.metadata();
    let declarations = source.declarations();
    let mut writer = gguf::Writer::new();
    let file_type = file_type(options.target.wanted, metadata, plan, &declarations);
    for (key, value) in own_keys(metadata).iter() {
        if key != FILE_TYPE || file_type.is_none() {
            writer.value(key, value).map_err(wrong)?;
        }
    }
    if let Some(file_type) = file_type {
        writer.metadata(FILE_TYPE, gguf::MetaValue::U32(file_type)).map_err(wrong)?;
        if metadata.get(QUANTIZATION_VERSION).is_none() {
            writer.metadata(QUANTIZATION_VERSION, gguf::MetaValue::U32(2)).map_err(wrong)?;
        }
    }
    for planned in &plan.tensors {
        let tensor = declared(&declarations, planned)?;
        writer.tensor(tensor.name, tensor.shape, planned.block).map_err(wrong)?;
    }
    let mut body = writer.begin(Counted { file, progress }).map_err(wrong)?;
    let report = stream(source, plan, progress, |data, _| body.tensor_data(data).map_err(wrong))?;
    body.finish().map_err(wrong)?;
    Ok(report)
}

const QUANTIZATION_VERSION: &str = "general.quantization_version";

/// The model's own keys, without those of split files and those that reading a `.base` file added.
fn own_keys(metadata: &Metadata) -> Metadata {
    let mut own = Metadata::default();
    for (key, value) in metadata.iter() {
        if !["split.", base::HEADER_PREFIX, weights::keys::FILES_PREFIX].iter().any(|p| key.starts_with(p)) {
            own.insert(key.to_owned(), value.clone());
        }
    }
    own
}

/// Passes every tensor's bytes to `write`, in the plan's order.
fn stream(
    source: &dyn Source,
    plan: &Plan,
    progress: &Progress<'_>,
    mut write: impl FnMut(&[u8], PlaneSlices) -> Result<()>,
) -> Result<Report> {
    let mut report = Report::default();
    let declarations = source.declarations();
    for planned in &plan.tensors {
        progress.begin(planned.n_bytes(&declared(&declarations, planned)?));
        let tensor = source.tensor(planned.tensor)?;
        let parts = converted(&tensor, planned, progress)?;
        progress.count_written();
        let n_bytes = match parts {
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
        progress.end();
    }
    Ok(report)
}

/// The new bytes; `None` if the old ones stay.
fn converted(tensor: &Tensor, planned: &Planned, progress: &Progress<'_>) -> Result<Option<Parts>> {
    match planned.action {
        Action::Copy => Ok(None),
        Action::Repack => match encode::repack(tensor, planned.block) {
            Some(parts) => Ok(Some(parts)),
            None => Err(Error::Lossy { tensor: tensor.name.clone(), from: tensor.block, to: planned.block }),
        },
        Action::Encode => {
            encode::encode(tensor, planned.block, &mut |n_bytes| progress.advance(n_bytes)).map(Some)
        }
    }
}
