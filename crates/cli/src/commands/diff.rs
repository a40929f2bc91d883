//! `ingle diff`: find the first command at which two devices disagree.

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
Each device runs the prompt as one step, repeatedly, up to each command of the first device's plan.
Values that both devices have in memory are compared. A difference is the root mean square of the
differences, divided by the root mean square of the value.

The exit status is 1 if a value differs by more than --bound.

Examples:
  ingle diff smollm2:135m --between cpu,reference
  ingle diff model.gguf --between metal-emulated,reference --bound 0.01 --tokens 1,2,3 --all")]
pub struct Diff {
    /// The two devices, by their names for --device
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2, required = true)]
    between: Vec<DeviceName>,

    /// The text
    #[arg(short, long, default_value = "The quick brown fox jumps over", conflicts_with = "tokens")]
    prompt: String,

    /// Token ids instead of a text
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Option<Vec<u32>>,

    /// Largest difference that is allowed
    ///
    /// 8-bit activations differ by up to 0.1 after many layers, two f32 devices by 0.001.
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    bound: f64,

    /// Print every value
    ///
    /// Without this flag only the first value that differs is printed.
    #[arg(long)]
    all: bool,

    /// Print a JSON array
    ///
    /// Its objects have the keys node, op, layer, value, rms, at and found.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,
}

impl Diff {
    pub fn run(self) -> anyhow::Result<()> {
        let [first, second] = self.between[..] else {
            anyhow::bail!("--between needs two devices, for example cpu,reference");
        };
        let args = &self.model.load.device;
        // --gpus applies to one of the two; the other device computes the whole model.
        let of_gpus =
            if self.between.contains(&DeviceName::Cuda) { DeviceName::Cuda } else { DeviceName::Reference };
        let device = |name| {
            let gpus = if name == of_gpus { args.gpus.clone() } else { Vec::new() };
            load::device(&DeviceArgs { device: name, gpus, ..args.clone() }.options())
        };
        let (a, b) = (device(first)?, device(second)?);
        let options = self.model.options()?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let tokens = match &self.tokens {
            Some(tokens) => tokens.clone(),
            None => model.need_tokenizer()?.encode_with_bos(&self.prompt, Specials::Parse)?,
        };
        let mut found = Vec::new();
        let mut first_apart = None;
        engine::diff(&model, [&a, &b], &options.engine_options(), &tokens, &mut |value| {
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
                .context("no value is in memory on both devices")?;
            if !self.json {
                output::print_line(&format!(
                    "{n} values agree; the largest difference is {:.2e}, at {}",
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
