//! The project's source files, split into tokens where they are Rust or kernels.

use super::Finding;
use super::lexer::{self, Token};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The language of a file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    /// C++, CUDA or Metal.
    Cpp,
    /// Comments that begin with `#`: Python, shell, TOML, YAML.
    Hash,
    Markdown,
}

/// A text file of the project.
#[derive(Debug)]
pub struct File {
    /// The file's path from the root of the workspace.
    pub path: PathBuf,
    pub language: Language,
    pub text: String,
}

impl File {
    /// The file's tokens, if it is Rust or C++.
    pub fn tokens(&self) -> Vec<Token<'_>> {
        match self.language {
            Language::Rust | Language::Cpp => lexer::tokens(&self.text),
            Language::Hash | Language::Markdown => Vec::new(),
        }
    }

    /// The file's tokens without comments.
    pub fn code(&self) -> Vec<Token<'_>> {
        let mut tokens = self.tokens();
        tokens.retain(|token| token.kind != lexer::Kind::Comment);
        tokens
    }

    /// The folder of its crate, such as `crates/engine`.
    pub fn of_crate(&self) -> Option<&Path> {
        self.path.ancestors().find(|folder| folder.parent() == Some(Path::new("crates")))
    }

    /// True if the file is compiled only for tests, benchmarks or examples.
    pub fn is_test(&self) -> bool {
        let folders = ["tests", "benches", "examples", "bench", "emulator"];
        self.path.iter().any(|part| folders.iter().any(|folder| part == *folder))
            || self.path.file_stem().is_some_and(|stem| stem == "tests" || stem == "test")
    }

    /// A finding on a line of this file.
    pub fn finding(&self, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, text: text.into() }
    }
}

/// All files that the rules look at.
#[derive(Debug)]
pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// The sources below `root`, without fixtures and build outputs.
    ///
    /// # Errors
    ///
    /// A folder or a file that cannot be read.
    pub fn below(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        read(root, root, &mut files)?;
        Ok(Self { files })
    }

    /// The files in `language`.
    pub fn in_language(&self, language: Language) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.language == language)
    }

    /// The names that follow a keyword of `keywords` anywhere in our Rust files.
    pub fn names_after(&self, keywords: &[&str]) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for file in self.in_language(Language::Rust) {
            for pair in lexer::tokens(&file.text).windows(2) {
                if keywords.iter().any(|keyword| pair[0].is_word(keyword))
                    && pair[1].kind == lexer::Kind::Word
                {
                    names.insert(pair[1].text);
                }
            }
        }
        names
    }
}

/// Adds the sources of `folder`, by their paths from `root`.
fn read(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_hidden = name.starts_with('.') && name != ".ci" && name != ".github";
        if is_hidden || name == "target" || name == "fixtures" {
            continue;
        }
        if path.is_dir() {
            read(root, &path, files)?;
        } else if let Some(language) = language(&path) {
            let text = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
            files.push(File { path, language, text });
        }
    }
    Ok(())
}

fn language(path: &Path) -> Option<Language> {
    Some(match path.extension()?.to_str()? {
        "rs" => Language::Rust,
        "cu" | "cuh" | "h" | "hpp" | "cc" | "cpp" | "metal" => Language::Cpp,
        "py" | "sh" | "toml" | "yml" => Language::Hash,
        "md" => Language::Markdown,
        _ => return None,
    })
}

#[cfg(test)]
pub fn file(path: &str, text: &str) -> File {
    File { path: path.into(), language: language(Path::new(path)).unwrap(), text: text.to_owned() }
}
