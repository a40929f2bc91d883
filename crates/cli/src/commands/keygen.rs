//! `ingle keygen`: make a pair of keys that sign and verify `.base` files.
//!
//! The command stays because `ingle sign` needs a key in this raw form, which common tools do not
//! write.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use formats::base::SecretKey;
use serde_json::json;

use crate::output;

/// Make a pair of ed25519 keys for signing .base files
#[derive(Args)]
#[command(after_help = "\
The secret key is a file of 32 bytes that only you can read. The public key, for `ingle verify`, is
written to a second file, whose name ends in .pub.

Examples:
  ingle keygen -o my.key
  ingle sign model.base --key my.key
  ingle verify model.base --key my.key.pub")]
pub struct Keygen {
    /// The file of the secret key
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Keygen {
    pub fn run(self) -> anyhow::Result<()> {
        let mut public_file = self.output.clone().into_os_string();
        public_file.push(".pub");
        let public_file = PathBuf::from(public_file);
        let key = SecretKey::generate().context("reading the system's random numbers")?;
        create(&self.output, &key.to_bytes(), 0o600)?;
        if let Err(error) = create(&public_file, &key.public().to_bytes(), 0o644) {
            // A secret key without its public key is useless.
            _ = std::fs::remove_file(&self.output);
            return Err(error);
        }
        let digits = hexadecimal(&key.public().to_bytes());
        if self.json {
            return output::print_json(
                &json!({ "secret": self.output.to_string_lossy(), "public": public_file.to_string_lossy(), "public_key": digits }),
            );
        }
        output::print_line(&format!(
            "secret key: {}\npublic key: {}\n            {digits}",
            self.output.display(),
            public_file.display()
        ))
    }
}

/// The bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a new file, with these permissions on Unix. An existing key is never overwritten: it
/// could not be restored.
fn create(file: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let written = options.open(file).and_then(|mut out| out.write_all(bytes));
    written.with_context(|| format!("writing {}", file.display()))
}
