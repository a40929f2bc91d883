//! `ingle convert`: convert a model to another file format or to other types.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use formats::convert::{self, Format, Options, Plan, Profile, Report, Target};
use hub::{ModelRef, Progress};
use model::{GgufExport, ModelSpec};
use serde_json::json;
use weights::Source;
use weights::{Access, Checkpoint, Naming};

use crate::args::{FetchArgs, ModelName, VerifyArgs};
use crate::load;
use crate::output::{self, Style, Table};
use crate::progress::Bar;
use crate::tell::tell;

/// Prefix of the name of a written image encoder.
const TOWER_PREFIX: &str = "mmproj-";

/// Convert a model to a .base or GGUF file
#[derive(Args)]
#[command(after_help = "\
Types for .base files are keep, f32, f16, bf16, q2 to q6 and q8. The q types are groups of integers
with a scale and an offset. Their names may end in -g32, -g64 or -g128 (the size of a group), -bf16,
-f16 or -e8m0 (the type of the scales), and -sym (no offsets). By default a group has 32 values for
q2 and q3, 64 for q4 to q6 and 128 for q8, and scales are bf16.

Types for GGUF files are gguf, which keeps the types of the source, and gguf:q4_k, gguf:q8_0 and so
on. The metadata and the tokenizer of a Hugging Face or MLX model are translated to GGUF's. Metadata
that GGUF cannot express is an error, or a note if readers do not need it. The image encoder of a
model becomes a second file, mmproj-FILE.

Only matrices are quantised. Norms, biases, routers and position embeddings keep their types. The
embedding and the output matrix get one step more precision, because their errors reach the answer
directly. Rows whose length is not a multiple of the group get smaller groups.

A profile sets the types of single tensors. It is a file of lines PATTERN = TYPE; the first match
counts.

Tensors that are already quantised are copied, or repacked to another format if nothing is lost.
--requantize encodes them again.

Examples:
  ingle convert folder/ -o model.base --to q4
  ingle convert minilm:l6 -o minilm.base
  ingle convert model.gguf -o model.base --to q6 --requantize
  ingle convert folder/ -o model.gguf --to gguf:q8_0
  ingle convert model.base -o model.gguf --to gguf
  ingle convert folder/ -o model.base --to q4 --profile fine.txt   (a line: *.down_proj.weight = q6)")]
pub struct Convert {
    /// The model: a catalog name, a path or hf:org/repo[/file][@revision]
    model: ModelName,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The type of the matrices
    #[arg(long, value_name = "TYPE", default_value = "keep")]
    to: String,

    /// Read the types of single tensors from this file
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Encode quantised tensors again
    ///
    /// This loses precision a second time.
    #[arg(long)]
    requantize: bool,

    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,

    /// Print a report in JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,
}

impl Convert {
    pub fn run(self) -> anyhow::Result<()> {
        let target = Target::parse(&self.to)?;
        let profile = self.profile.as_deref().map(|file| Profile::read(file, target.format)).transpose()?;
        let options = Options { target, profile, requantize: self.requantize, force: self.force };
        if self.output.exists() && !self.force {
            bail!("{} already exists; --force replaces it", self.output.display());
        }
        platform::check_replaceable(&self.output).with_context(|| self.output.display().to_string())?;
        let path = load::fetch(&self.model, &self.fetch)?;
        let start = Instant::now();
        let opened = load::open_checkpoint(&path, Access::Map, &self.verify)?;
        let source_bytes = opened.file_bytes;
        let (source, tower, files): (Box<dyn Source>, _, _) = match target.format {
            Format::Gguf => {
                let (source, tower) = with_gguf_names(&self.model, &path, opened)?;
                (source, tower, Vec::new())
            }
            Format::Base => {
                let files = convert::files_of(&path, &opened)?;
                (Box::new(opened), None, files)
            }
        };
        let tower_file = self.output.with_file_name(format!(
            "{}{}",
            TOWER_PREFIX,
            self.output.file_name().unwrap_or_default().to_string_lossy()
        ));
        if tower.is_some() && tower_file.exists() && !self.force {
            bail!("{} already exists; --force replaces it", tower_file.display());
        }
        let plan = Plan::new(&*source, &options)?;
        for line in &plan.unmatched {
            tell!("note: the profile's {line} matches no tensor");
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut bar = Bar::default();
        bar.start(&self.output.display().to_string(), Some(plan.n_bytes(&*source)));
        remove_on_interrupt(&self.output)?;
        let done = convert::run(&*source, &plan, &name, &files, &self.output, &options, &mut |bytes| {
            bar.advance(bytes);
        });
        bar.finish();
        if let (Ok(_), Some(tower)) = (&done, tower) {
            // The encoder keeps its types: it is small, and its errors reach every token.
            let options = Options { target: Target::parse("gguf")?, profile: None, ..options };
            let plan = Plan::new(&tower, &options)?;
            convert::run(&tower, &plan, &name, &[], &tower_file, &options, &mut |_| {})?;
            tell!("note: the image encoder is in {}", tower_file.display());
        }
        self.report(source_bytes, &plan, &done?, start.elapsed().as_secs_f64())
    }

    fn report(&self, source_bytes: u64, plan: &Plan, report: &Report, seconds: f64) -> anyhow::Result<()> {
        if self.json {
            let types: serde_json::Map<_, _> = report
                .types
                .iter()
                .map(|(name, (tensors, bytes))| (name.clone(), json!({ "tensors": tensors, "bytes": bytes })))
                .collect();
            return output::print_json(&json!({
                "file": self.output.to_string_lossy(), "bytes": report.file_bytes, "source_bytes": source_bytes, "types": types,
                "copied": report.n_copied, "moved": report.n_repacked, "encoded": report.n_encoded,
                "unmatched": plan.unmatched, "seconds": seconds,
            }));
        }
        let mut table = Table::new(&["type", "tensors>", "bytes>"]);
        for (name, (tensors, bytes)) in &report.types {
            table.row(vec![name.clone(), tensors.to_string(), output::bytes(*bytes)]);
        }
        table.print(Style::Plain)?;
        output::print_line(&format!(
            "\n{}: {} from {}, in {}; {} tensors copied, {} moved without loss, {} encoded",
            self.output.display(),
            output::bytes(report.file_bytes),
            output::bytes(source_bytes),
            output::seconds(seconds),
            report.n_copied,
            report.n_repacked,
            report.n_encoded
        ))
    }
}

/// Removes the incomplete output at Ctrl-C.
fn remove_on_interrupt(output: &Path) -> anyhow::Result<()> {
    let partial = convert::partial_path(output);
    ctrlc::set_handler(move || {
        _ = std::fs::remove_file(&partial);
        // The shell's prompt then begins below the progress bar.
        tell!("");
        // 128 + SIGINT, as shells expect.
        std::process::exit(130);
    })?;
    Ok(())
}

/// The checkpoint with GGUF's names, and the image encoder for a second file. Notes list the parts
/// that are left out.
fn with_gguf_names(
    model: &ModelName,
    path: &Path,
    checkpoint: Checkpoint,
) -> anyhow::Result<(Box<dyn Source>, Option<GgufExport>)> {
    match checkpoint.naming {
        Naming::Gguf => return Ok((Box::new(checkpoint), None)),
        Naming::HuggingFace => {}
        Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => bail!(
            "{}: its keys and tensors cannot be translated to GGUF; expected a Hugging Face or MLX folder, a .base file \
             made from one, or a GGUF file. `--to keep` writes a .base file instead",
            checkpoint.format
        ),
    }
    let spec = ModelSpec::from_checkpoint(&checkpoint)?;
    let tokenizer = match path.is_dir() {
        true => text::gguf_from_folder(path, spec.n_vocab),
        false => text::gguf_from_base(&checkpoint.metadata, spec.n_vocab),
    };
    let tokenizer = tokenizer.context("the tokenizer cannot be written to a GGUF file")?;
    let keys = tokenizer.as_ref().map(|tokenizer| &tokenizer.metadata);
    let export = model::to_gguf(&checkpoint, &spec, &name_of(model, path)?, keys)?;
    let tower = model::to_mmproj(&checkpoint, &spec, &name_of(model, path)?)?;
    let mut notes = export.notes.clone();
    match tokenizer {
        Some(tokenizer) => notes.extend(tokenizer.notes),
        None => notes
            .push("the source has no tokenizer.json, so the new file accepts token ids, not text".to_owned()),
    }
    if let [first, rest @ ..] = &export.unused_tensors[..] {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        notes.push(format!("left out because the model does not use them: {first}{more}"));
    }
    notes.iter().for_each(|note| tell!("note: {note}"));
    Ok((Box::new(export), tower))
}

/// The name of a model: of its repository, in the catalog, or of its folder or file, without the
/// extension.
fn name_of(model: &ModelName, path: &Path) -> anyhow::Result<String> {
    let name = match model.reference()? {
        ModelRef::Hub(place) => place.repo.rsplit('/').next().map(str::to_owned),
        ModelRef::Catalog(name) => Some(name),
        ModelRef::Store(place) => {
            let name = place.name.rsplit('/').next().unwrap_or_default();
            Some(name.strip_suffix(".gguf").unwrap_or(name).to_owned())
        }
        ModelRef::Path(_) => {
            let path = path.canonicalize().with_context(|| path.display().to_string())?;
            let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
            name.map(|name| name.to_string_lossy().into_owned())
        }
    };
    Ok(name.unwrap_or_default())
}
