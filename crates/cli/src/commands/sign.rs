//! `ingle sign`: write a signature into a `.base` file.
//!
//! The command stays because no other tool can sign what `ingle convert` writes.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use formats::base::{self, SecretKey};
use serde_json::json;

use super::keygen::hexadecimal;
use crate::output;

/// Sign a .base file
#[derive(Args)]
#[command(after_help = "\
The signature covers the header and the bytes of all tensors, and replaces an existing signature.
Without --output the file itself is signed; the old file stays until the new one is complete.

Examples:
  ingle sign model.base --key my.key
  ingle sign model.base --key my.key -o signed.base --key-id \"me, 2026\"")]
pub struct Sign {
    /// The .base file
    file: PathBuf,

    /// The file of the secret key (`ingle keygen` makes one)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// The signer's name in the file
    ///
    /// [default: the first 16 digits of the public key]
    #[arg(long, value_name = "TEXT")]
    key_id: Option<String>,

    /// Write the signed file here, and keep the other unsigned
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the output file if it exists
    #[arg(long, requires = "output")]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Sign {
    pub fn run(self) -> anyhow::Result<()> {
        let key = SecretKey::read(&self.key)?;
        let public = hexadecimal(&key.public().to_bytes());
        let key_id = self.key_id.unwrap_or_else(|| public.chars().take(16).collect());
        if let Some(output) = self.output.as_ref().filter(|output| output.exists() && !self.force) {
            anyhow::bail!("{} already exists; --force replaces it", output.display());
        }
        let output = self.output.unwrap_or_else(|| self.file.clone());
        platform::check_replaceable(&output).with_context(|| output.display().to_string())?;
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let partial = output.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let signed = base::sign_file(&self.file, &partial, &key, &key_id)
            .map_err(anyhow::Error::from)
            .and_then(|()| {
                std::fs::rename(&partial, &output).with_context(|| format!("writing {}", output.display()))
            });
        if signed.is_err() {
            _ = std::fs::remove_file(&partial);
        }
        signed?;
        if self.json {
            return output::print_json(
                &json!({ "file": output.to_string_lossy(), "key_id": key_id, "public_key": public }),
            );
        }
        output::print_line(&format!(
            "{} is signed by {key_id}; its public key is\n{public}",
            output.display()
        ))
    }
}
