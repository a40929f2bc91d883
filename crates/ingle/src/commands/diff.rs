//! `ingle diff`: the first command at which two devices disagree.

use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use text::Specials;

use crate::args::{DeviceArgs, DeviceName, ModelArgs};
use crate::output::{Style, Table};
use crate::{load, output};

/// Run a prompt on two devices and name the first command whose result differs
#[derive(Args)]
#[command(after_help = "\
Each device runs the prompt as one step, up to each command of the first one's plan in turn; values that both have in memory
are compared. A difference is the root mean square over the value, as a share of the value's own.

Exit status 1 if a value differs by more than --bound.

Examples:
  ingle diff smollm2:135m --between cpu,reference
  ingle diff model.gguf --between metal-emulated,reference --bound 0.01 --tokens 1,2,3 --all")]
pub struct Diff {
    /// The devices: two names as --device takes them
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2, required = true)]
    between: Vec<DeviceName>,

    /// The text
    #[arg(short, long, default_value = "The quick brown fox jumps over", conflicts_with = "tokens")]
    prompt: String,

    /// Token ids instead of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Option<Vec<u32>>,

    /// How far apart values may be. 8-bit activations are apart by up to 0.1 after many layers; two f32 devices by 0.001
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    bound: f64,

    /// Print every value, not only the first that differs
    #[arg(long)]
    all: bool,

    /// Print an array of {"node","op","layer","value","rms","at","found"}
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,
}

impl Diff {
    pub fn run(self) -> anyhow::Result<()> {
        let [first, second] = self.between[..] else {
            anyhow::bail!("--between takes two devices, for example cpu,reference");
        };
        let args = &self.model.load.device;
        // The other device computes the model alone.
        let of_gpus =
            if self.between.contains(&DeviceName::Cuda) { DeviceName::Cuda } else { DeviceName::Reference };
        let device = |name| {
            let gpus = if name == of_gpus { args.gpus.clone() } else { Vec::new() };
            load::device(&DeviceArgs { device: name, gpus, ..args.clone() })
        };
        let (a, b) = (device(first)?, device(second)?);
        let model = Arc::new(load::open(&self.model)?);
        let tokens = match &self.tokens {
            Some(tokens) => tokens.clone(),
            None => model.need_tokenizer()?.encode_with_bos(&self.prompt, Specials::Parse)?,
        };
        let mut found = Vec::new();
        let mut first_apart = None;
        engine::diff(&model, [&a, &b], &load::options(&self.model.load), &tokens, &mut |value| {
            let is_apart = value.rms.is_nan() || value.rms > self.bound;
            if is_apart && first_apart.is_none() {
                first_apart = Some(found.len());
            }
            found.push(value);
            Ok(self.all || !is_apart)
        })?;
        if self.json {
            output::print_json(&serde_json::to_value(&found)?)?;
        } else if self.all {
            let mut table = Table::new(&["node>", "layer>", "value", "difference>"]);
            for value in &found {
                let layer = value.layer.map_or(String::new(), |layer| layer.to_string());
                table.row(vec![
                    value.node.to_string(),
                    layer,
                    value.value.clone(),
                    format!("{:.2e}", value.rms),
                ]);
            }
            table.print(Style::Plain)?;
        }
        let name =
            |name: DeviceName| name.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
        let (first, second) = (name(first), name(second));
        let Some(apart) = first_apart else {
            let n = found.len();
            let worst = found
                .iter()
                .max_by(|a, b| a.rms.total_cmp(&b.rms))
                .context("no value is in memory on both")?;
            if !self.json {
                output::print_line(&format!(
                    "{n} values agree; the largest difference is {:.2e}, of {}",
                    worst.rms, worst.value
                ))?;
            }
            return Ok(());
        };
        let value = &found[apart];
        anyhow::bail!(
            "{first} and {second} disagree first at node {}: {}\n{} differs by {:.3e}; at row {}, column {} {first} has {} and \
             {second} has {}",
            value.node,
            value.op,
            value.value,
            value.rms,
            value.at.0,
            value.at.1,
            value.found.0,
            value.found.1
        )
    }
}
