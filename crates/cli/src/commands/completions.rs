//! `ingle completions`: print scripts that complete commands and flags in a shell.

use clap::Args;

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = "\
Example:
  ingle completions bash > ~/.local/share/bash-completion/completions/ingle")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

impl Completions {
    pub fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::usage::command(), "ingle", &mut script);
        std::io::Write::write_all(&mut std::io::stdout(), &script)?;
        Ok(())
    }
}
