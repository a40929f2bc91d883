//! `ingle verify`: check that a `.base` file is whole, and who signed it.
//!
//! The command stays because a `.base` file carries checksums and a signature, which readers must
//! be able to check before they trust a download.

use std::path::PathBuf;

use clap::Args;
use formats::base;
use serde_json::json;
use weights::Access;

use crate::args::FileOrText;
use crate::output;

/// Verify the checksums of a .base file, and its signature
#[derive(Args)]
#[command(after_help = "\
The exit status is 1 if a checksum or the signature is wrong, or if --key is given and the file is
not signed. The message names the tensor.

Examples:
  ingle verify model.base
  ingle verify model.base --key my.key.pub --json")]
pub struct Verify {
    /// The .base file
    file: PathBuf,

    /// The public key that must have signed the file
    ///
    /// The file of the key, or its 64 hexadecimal digits.
    #[arg(long, value_name = "FILE|HEX")]
    key: Option<FileOrText>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub fn run(self) -> anyhow::Result<()> {
        let key = self.key.as_ref().map(FileOrText::public_key).transpose()?;
        let file = base::read(&self.file, Access::Map)?;
        if let Some(key) = &key {
            file.verify_signature(key)?;
        }
        let n_checked = file.verify_checksums()?;
        let n_tensors = file.checkpoint().tensors.len();
        let signed_by = file.signed_by();
        let signature = match (signed_by, &key) {
            (Some(_), Some(_)) => "valid",
            (Some(_), None) => "not checked",
            (None, _) => "none",
        };
        if self.json {
            return output::print_json(&json!({
                "file": self.file.to_string_lossy(), "tensors": n_tensors, "checksums": n_checked, "signature": signature,
                "signed_by": signed_by,
            }));
        }
        output::print_line(&format!(
            "{}: {n_checked} checksums of {n_tensors} tensors are right",
            self.file.display()
        ))?;
        output::print_line(&match signed_by {
            None => "not signed".to_owned(),
            Some(id) if key.is_some() => format!("signed by {id}: the signature is valid"),
            Some(id) => format!("claims to be signed by {id}; verify that with --key"),
        })
    }
}
