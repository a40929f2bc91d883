//! `ingle convert`: a model into another file, or into other types.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use formats::convert::{self, Format, Options, Plan, Profile, Report, Target};
use formats::{Access, Checkpoint, Naming};
use hub::Progress;
use serde_json::json;

use crate::args::{FetchArgs, VerifyArgs};
use crate::load;
use crate::output::{self, Style, Table};
use crate::progress::Bar;

/// Convert a model to a .base or GGUF file, in other types if asked for
#[derive(Args)]
#[command(after_help = "\
Types for .base files: keep, f32, f16, bf16; q2 to q6 and q8 for groups of integers with a scale and an offset, to which may
be added -g32, -g64 or -g128 (values that share a scale), -bf16, -f16 or -e8m0 (what scales are stored as) and -sym (no
offsets). Without these, groups are 32 for q2 and q3, 64 for q4 to q6, 128 for q8, and scales bf16.
For GGUF files: gguf keeps the types; gguf:q4_k, gguf:q8_0 and so on.

Quantised are matrices. Norms, biases, routers and position embeddings stay as they are; the embedding and the head become one
step finer than the rest, for their errors go straight into what the model says. Rows that are not whole groups get smaller
ones. A profile decides for single tensors: a file of lines PATTERN = TYPE, of which the first that matches counts.

Tensors that are quantised already are only moved where that loses nothing; --requantize encodes them again.

Examples:
  ingle convert folder/ -o model.base --to q4
  ingle convert minilm:l6 -o minilm.base
  ingle convert model.gguf -o model.base --to q6 --requantize
  ingle convert model.base -o model.gguf --to gguf
  ingle convert folder/ -o model.base --to q4 --profile fine.txt       with a line such as: *.down_proj.weight = q6")]
pub struct Convert {
    /// A catalog name, a path to a GGUF or .base file or a folder, or hf:org/repo[/file][@revision]
    model: String,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// What matrices become
    #[arg(long, value_name = "TYPE", default_value = "keep")]
    to: String,

    /// Types of single tensors, before --to: lines PATTERN = TYPE
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Encode tensors that are quantised already: they lose a second time
    #[arg(long)]
    requantize: bool,

    /// Replace the file if it is there
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,

    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

impl Convert {
    pub fn run(self) -> anyhow::Result<()> {
        let target = Target::parse(&self.to)?;
        let profile = self.profile.as_deref().map(|file| Profile::read(file, target.format)).transpose()?;
        let options = Options { target, profile, requantize: self.requantize, force: self.force };
        if self.output.exists() && !self.force {
            bail!("{} is there already; --force replaces it", self.output.display());
        }
        let path = load::fetch(&self.model, &self.fetch)?;
        let start = Instant::now();
        let opened = load::open_checkpoint(&path, Access::Map, &self.verify)?;
        let files = convert::files_of(&path, &opened)?;
        let checkpoint = match target.format {
            Format::Gguf => with_gguf_names(opened)?,
            Format::Base => opened,
        };
        let plan = Plan::new(&checkpoint, &options)?;
        for line in &plan.unmatched {
            eprintln!("note: the profile's {line} matches no tensor");
        }
        let source = path.file_name().unwrap_or_default().to_string_lossy();
        let mut bar = Bar::default();
        bar.start(&self.output.display().to_string(), Some(plan.n_bytes(&checkpoint)));
        let done = convert::run(&checkpoint, &plan, &source, &files, &self.output, &options, &mut |bytes| {
            bar.advance(bytes);
        });
        bar.finish();
        self.report(&checkpoint, &plan, &done?, start.elapsed().as_secs_f64())
    }

    fn report(&self, from: &Checkpoint, plan: &Plan, report: &Report, seconds: f64) -> anyhow::Result<()> {
        if self.json {
            let types: serde_json::Map<_, _> = report
                .types
                .iter()
                .map(|(name, (tensors, bytes))| (name.clone(), json!({ "tensors": tensors, "bytes": bytes })))
                .collect();
            return output::print_json(&json!({
                "file": self.output, "bytes": report.file_bytes, "source_bytes": from.file_bytes, "types": types,
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
            output::bytes(from.file_bytes),
            output::seconds(seconds),
            report.n_copied,
            report.n_repacked,
            report.n_encoded
        ))
    }
}

/// A GGUF file has GGUF's names, whatever the source has.
fn with_gguf_names(checkpoint: Checkpoint) -> anyhow::Result<Checkpoint> {
    match checkpoint.naming {
        Naming::Gguf => Ok(checkpoint),
        _ => bail!(
            "{}: the names of its keys and tensors are not GGUF's, and translating them is not built; \
             expected a GGUF file, or a .base file that was made from one. A .base file can be written from it",
            checkpoint.format
        ),
    }
}
