//! Programs whose models Ingle reads, and references to such models.

use std::fmt;

/// A program that keeps models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
}

/// A model in another program's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRef {
    /// The program that owns the store.
    pub program: Program,
    /// Ollama: `name[:tag]`, `namespace/name[:tag]` or `registry/namespace/name[:tag]`; LM Studio:
    /// `publisher/repository/file.gguf`.
    pub name: String,
}

impl Program {
    /// All programs.
    pub const ALL: [Program; 2] = [Program::Ollama, Program::LmStudio];

    /// The prefix of references to the program's models.
    pub fn prefix(self) -> &'static str {
        match self {
            Program::Ollama => "ollama:",
            Program::LmStudio => "lmstudio:",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Program::Ollama => "Ollama",
            Program::LmStudio => "LM Studio",
        })
    }
}
