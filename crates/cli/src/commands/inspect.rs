//! `ingle inspect`: show a model file, and the plans that are built from it.

use clap::Args;
use serde_json::json;
use weights::{Array, Checkpoint, Value};

use crate::args::{DeviceArgs, FetchArgs, ModelName, VerifyArgs};
use crate::load;
use crate::output::{self, Style, Table};

/// Show a model file: metadata, tensors, architecture
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle inspect smollm2:135m
  ingle inspect model.gguf --tensors
  ingle inspect model.gguf --plan           (the plan, and the plan after fusion)
  ingle inspect folder/ --missing           (the unknown parts of a model that is refused)
  ingle inspect folder/ --json")]
pub struct Inspect {
    /// The model: a catalog name, a path or hf:org/repo[/file][@revision]
    model: ModelName,

    /// List every tensor
    #[arg(long)]
    tensors: bool,

    /// Print the plan, and the plan fused for the device
    ///
    /// A speech model has three plans.
    #[arg(long)]
    plan: bool,

    /// List keys and tensors that are unknown or missing
    ///
    /// The file is compared with its own family, or with the family whose names fit best.
    #[arg(long, conflicts_with_all = ["tensors", "plan", "json"])]
    missing: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

impl Inspect {
    pub fn run(self) -> anyhow::Result<()> {
        let path = load::fetch(&self.model, &self.fetch)?;
        let access = self.device.access();
        let checkpoint = load::open_checkpoint(&path, access, &self.verify)?;
        let renamed = model::from_base(&checkpoint)?;
        let checkpoint = renamed.unwrap_or(checkpoint);
        if self.missing {
            return print_missing(&checkpoint);
        }
        let spec = model::ModelSpec::from_checkpoint(&checkpoint);
        if self.json {
            return self.print_json(&checkpoint, spec);
        }
        output::print_line(&format!(
            "{}\n{}, {}, {} tensors\n",
            path.display(),
            checkpoint.format,
            output::bytes(checkpoint.file_bytes),
            checkpoint.tensors.len()
        ))?;
        let mut metadata = Table::new(&["key", "value"]);
        for (key, value) in checkpoint.metadata.iter() {
            metadata.row(vec![key.into(), shorten(&show(value), 90)]);
        }
        metadata.print(Style::Plain)?;
        output::print_line("")?;
        if self.tensors {
            self.print_tensors(&checkpoint)?;
        } else {
            print_types(&checkpoint)?;
        }
        // An unknown model is shown, too; the reason why it is refused comes last.
        let spec = spec?;
        output::print_line(&spec.to_string())?;
        for name in &spec.unused_tensors {
            output::print_line(&format!("unused tensor: {name}"))?;
        }
        if self.plan {
            let device = load::device(&self.device.options())?;
            for (name, plan) in plans(&spec, &checkpoint)? {
                let fused = device_lower::fusion::fuse(&plan, device.fusion());
                output::print_line(&format!("{name}: {} ops\n\n{plan}", plan.nodes.len()))?;
                output::print_line(&format!(
                    "{name}, fused for {}: {} ops\n\n{fused}",
                    device.name(),
                    fused.nodes.len()
                ))?;
            }
        }
        Ok(())
    }

    fn print_tensors(&self, checkpoint: &Checkpoint) -> anyhow::Result<()> {
        let mut table = Table::new(&["tensor", "type", "shape", "bytes>"]);
        for t in &checkpoint.tensors {
            table.row(vec![
                t.name.clone(),
                t.block.to_string(),
                format!("{:?}", t.shape),
                t.n_bytes().to_string(),
            ]);
        }
        table.print(Style::Plain)?;
        output::print_line("")
    }

    fn print_json(
        &self,
        checkpoint: &Checkpoint,
        spec: model::Result<model::ModelSpec>,
    ) -> anyhow::Result<()> {
        let metadata: serde_json::Map<_, _> =
            checkpoint.metadata.iter().map(|(k, v)| (k.to_owned(), to_json(v))).collect();
        let tensors: Vec<_> = checkpoint
            .tensors
            .iter()
            .map(|t| {
                json!({
                    "name": t.name, "type": t.block.to_string(), "shape": t.shape, "bytes": t.n_bytes(),
                })
            })
            .collect();
        let mut all = json!({
            "format": checkpoint.format, "bytes": checkpoint.file_bytes, "metadata": metadata, "tensors": tensors,
        });
        match spec {
            Ok(spec) => {
                all["family"] = spec.family.title.into();
                all["parameters"] = spec.n_parameters.into();
                all["description"] = spec.to_string().into();
                all["unused_tensors"] = spec.unused_tensors.clone().into();
                if self.plan {
                    let device = load::device(&self.device.options())?;
                    for (name, plan) in plans(&spec, checkpoint)? {
                        let fused = device_lower::fusion::fuse(&plan, device.fusion());
                        all[name] = plan.to_string().lines().collect::<Vec<_>>().into();
                        all[format!("fused_{name}")] = fused.to_string().lines().collect::<Vec<_>>().into();
                    }
                }
            }
            Err(error) => all["error"] = error.to_string().into(),
        }
        output::print_json(&all)
    }
}

/// Prints names that no family reads, and names that the nearest family needs.
fn print_missing(checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let missing = model::Missing::of(checkpoint);
    let family = match missing.known {
        true => format!("family: {}", missing.family),
        false => {
            format!("found no family of this name; compared with the most similar family, {}", missing.family)
        }
    };
    output::print_line(&family)?;
    for (what, names) in [
        ("unknown key", &missing.unknown_keys),
        ("unknown tensor", &missing.unknown_tensors),
        ("missing", &missing.absent),
    ] {
        for name in names {
            output::print_line(&format!("{what}: {name}"))?;
        }
    }
    Ok(())
}

/// The checked plans of a model, with their names: one of a text model, three of a speech model.
fn plans(
    spec: &model::ModelSpec,
    checkpoint: &Checkpoint,
) -> anyhow::Result<Vec<(&'static str, device::Plan)>> {
    let plans = match model::SpeechSpec::from_checkpoint(checkpoint, spec)? {
        None => vec![("plan", spec.plan(checkpoint)?)],
        Some(speech) => {
            let plans = spec.speech_plans(checkpoint, &speech.alignment_heads)?;
            vec![
                ("encoder_plan", plans.encoder),
                ("decoder_plan", plans.decoder),
                ("align_plan", plans.align),
            ]
        }
    };
    for (_, plan) in &plans {
        plan.check()?;
    }
    Ok(plans)
}

/// Prints the number of tensors and bytes of each type, in the order of first use in the file.
fn print_types(checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let mut table = Table::new(&["type", "tensors>", "values>", "bytes>"]);
    let mut types = Vec::new();
    for tensor in &checkpoint.tensors {
        if !types.contains(&tensor.block) {
            types.push(tensor.block);
        }
    }
    for block in types {
        let of: Vec<_> = checkpoint.tensors.iter().filter(|t| t.block == block).collect();
        let values: usize = of.iter().map(|t| t.n_rows() * t.n_cols()).sum();
        let bytes: usize = of.iter().map(|t| t.n_bytes()).sum();
        table.row(vec![
            block.to_string(),
            of.len().to_string(),
            output::count(values as u64),
            output::bytes(bytes as u64),
        ]);
    }
    table.print(Style::Plain)?;
    output::print_line("")
}

fn show(value: &Value) -> String {
    match value {
        Value::Array(a) => {
            let shown: Vec<String> = (0..a.len().min(4)).map(|i| item(a, i).to_string()).collect();
            format!("{} items: {}{}", a.len(), shown.join(", "), if a.len() > 4 { ", …" } else { "" })
        }
        Value::Str(s) => format!("{s:?}"),
        Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::Null => to_json(value).to_string(),
    }
}

fn item(array: &Array, i: usize) -> serde_json::Value {
    match array {
        Array::Int(v) => v[i].into(),
        Array::Float(v) => f64::from(v[i]).into(),
        Array::Bool(v) => v[i].into(),
        Array::Str { .. } => String::from_utf8_lossy(array.str_bytes(i).unwrap_or_default()).into(),
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        // JSON numbers have at most 64 bits here; a larger integer becomes a string.
        Value::Int(i) => i64::try_from(*i).map_or_else(|_| i.to_string().into(), Into::into),
        Value::Float(f) => (*f).into(),
        Value::Bool(b) => (*b).into(),
        Value::Str(s) => s.as_str().into(),
        Value::Null => serde_json::Value::Null,
        Value::Array(a) => (0..a.len()).map(|i| item(a, i)).collect(),
    }
}

fn shorten(text: &str, n_chars: usize) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(n_chars).collect();
    if chars.next().is_some() { head + "…" } else { head }
}
