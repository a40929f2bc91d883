//! Compiles Metal source to a library on disk.

use crate::cache::{self, Key, file_error};
use crate::clang::Clang;
use crate::error::Error;
use crate::library::{Function, Library};
use crate::options::{Mode, Options};
use crate::runtime::Runtime;
use crate::{flags, rewrite, table};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Compiles Metal sources.
#[derive(Debug)]
pub struct Compiler {
    pub(crate) clang: Clang,
    pub(crate) options: Options,
    pub(crate) runtime: Runtime,
    mode: Mode,
}

impl Compiler {
    /// Finds clang, and builds the runtime unless it is cached.
    ///
    /// # Errors
    ///
    /// [`Error::NoClang`], [`Error::Runtime`] if parts of the compiler are missing, or file errors.
    pub fn new(options: Options) -> Result<Self, Error> {
        let clang = Clang::find(options.clang.as_deref())?;
        let mut options = options;
        fs::create_dir_all(&options.cache).map_err(file_error(&options.cache))?;
        options.cache = options.cache.canonicalize().map_err(file_error(&options.cache))?;
        if options.cache.to_str().is_none() {
            let source =
                std::io::Error::new(std::io::ErrorKind::InvalidInput, "the cache's path must be UTF-8");
            return Err(Error::File { path: options.cache, source });
        }
        let runtime = Runtime::build(&clang, &options)?;
        let runner = runtime.runner.clone().map(|program| (program, options.sanitizer));
        let Options { counting, numerics, watchdog, .. } = options;
        let mode = Mode { counting, numerics, watchdog, runner };
        Ok(Compiler { clang, options, runtime, mode })
    }

    /// First line of `--version` of the clang in use.
    pub fn clang_version(&self) -> &str {
        &self.clang.version
    }

    /// Compiles `source`, one translation unit. `name` is its name in messages; `includes` are the
    /// headers that it may include, by the names that it uses. Names are relative paths.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the source uses something that the emulator does not support,
    /// [`Error::Compile`] with clang's messages, or file errors.
    pub fn compile(&self, name: &str, source: &str, includes: &[(&str, &str)]) -> Result<Library, Error> {
        self.compile_some(name, source, includes, None)
    }

    /// Compiles one function of `source`, by its host name, without the other instantiations. This
    /// is much faster if there are many.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`]; [`Error::Refused`] if there is no such function.
    pub fn compile_function(
        &self,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
        function: &str,
    ) -> Result<Library, Error> {
        self.compile_some(name, source, includes, Some(function))
    }

    fn compile_some(
        &self,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
        only: Option<&str>,
    ) -> Result<Library, Error> {
        let failed = |messages| Error::Compile { name: name.to_owned(), messages };
        let what = rewrite::What { only, unroll: self.options.counting, ..rewrite::What::RUN };
        let key = self.key("rewritten", name, source, includes).with(only.unwrap_or_default());
        let rewritten = cache::folder(&self.options.cache, key.with([u8::from(what.unroll)]), |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, what)?;
            cache::write(folder, "library.cpp", &rewritten.text)?;
            let table = table::describe(&rewritten.functions, &rewritten.constants);
            cache::write(folder, "functions.txt", table)?;
            Ok(())
        })?;
        let read = |path: PathBuf| fs::read_to_string(&path).map_err(file_error(&path));
        let text = read(rewritten.join("library.cpp"))?;
        // An object depends only on the headers that its source includes.
        let flags = self.kernel_flags();
        let key = self.clang.key("object").with(cache::text(&self.runtime.headers)).with(&text);
        let key = flags.iter().fold(key, |key, flag| key.with(flag));
        let compiled = cache::folder(&self.options.cache, key, |folder| {
            self.translate(folder, name, &text, &flags, (flags::OBJECT, "library.o"))
        })?;
        let object = compiled.join("library.o");
        let inputs: Vec<&str> =
            self.runtime.objects.iter().chain([&object]).map(|p| cache::text(p)).collect();
        let key = inputs.iter().fold(self.clang.key("library"), |key, input| key.with(input));
        let linked = cache::folder(&self.options.cache, key, |folder| {
            let mut arguments = flags::words("-shared -o library.so");
            arguments.extend(inputs.iter().map(|i| (*i).to_owned()));
            arguments.push("-lm".to_owned());
            self.clang.run(folder, &arguments)?.map_err(failed)?;
            Ok(())
        })?;
        let (functions, constants) = table::parse(&read(rewritten.join("functions.txt"))?);
        Ok(Library { path: linked.join("library.so"), functions, constants, mode: self.mode.clone() })
    }

    /// Rewrites `source` and passes it through clang's front end, all instantiations included, and
    /// returns its functions. It takes a fraction of the time of [`Compiler::compile`].
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`].
    pub fn parse(&self, name: &str, source: &str, includes: &[(&str, &str)]) -> Result<Vec<Function>, Error> {
        let flags = self.kernel_flags();
        let key = self.key("parsed", name, source, includes);
        let made = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, rewrite::What::RUN)?;
            self.translate(folder, name, &rewritten.text, &flags, (flags::NOTHING, "library.o"))?;
            let table = table::describe(&rewritten.functions, &rewritten.constants);
            cache::write(folder, "functions.txt", table)?;
            Ok(())
        })?;
        let path = made.join("functions.txt");
        Ok(table::parse(&fs::read_to_string(&path).map_err(file_error(&path))?).0)
    }

    /// Checks `source` with real address spaces, as C++ for OpenCL. Assigning a `threadgroup`
    /// pointer to a `device` pointer, or writing to `constant`, is an error here, while run mode
    /// accepts both. Nothing is compiled.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`].
    pub fn check_strict(&self, name: &str, source: &str, includes: &[(&str, &str)]) -> Result<(), Error> {
        let key = self.key("strict", name, source, includes);
        let made = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, rewrite::What::STRICT)?;
            let cl = cache::write(folder, "strict.cl", &rewritten.text)?;
            let header = self.runtime.headers.join("metal_stdlib.h");
            let mut arguments = flags::words(flags::STRICT);
            if self.options.tensors {
                arguments.push("-DMSL_TENSORS".to_owned());
            }
            arguments.extend(["-include", cache::text(&header), cache::text(&cl)].map(str::to_owned));
            let failed = |messages| Error::Compile { name: name.to_owned(), messages };
            self.clang.run(folder, &arguments)?.map_err(failed)?;
            Ok(())
        });
        made.map(|_| ())
    }

    /// Functions of `source` in which a compiler may contract a product and a sum to `fma`: those
    /// with arithmetic that no `#pragma METAL fp contract(off)` covers. They are found in clang's
    /// output before optimisation. If there are none, [`Numerics::contract`] changes no
    /// instruction, and so no bit.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`].
    pub fn contractible(
        &self,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
    ) -> Result<Vec<String>, Error> {
        let flags = flags::contractible();
        let key = self.key("contractible", name, source, includes);
        let key = flags.iter().fold(key, |key, flag| key.with(flag));
        let made = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, rewrite::What::RUN)?;
            self.translate(folder, name, &rewritten.text, &flags, (flags::TEXT, "library.ll"))?;
            let path = folder.join("library.ll");
            let text = fs::read_to_string(&path).map_err(file_error(&path))?;
            cache::write(folder, "contractible.txt", contractible_functions(&text).join("\n"))?;
            fs::remove_file(&path).map_err(file_error(&path))
        })?;
        let path = made.join("contractible.txt");
        let text = fs::read_to_string(&path).map_err(file_error(&path))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Flags of kernels.
    fn kernel_flags(&self) -> Vec<String> {
        let mut flags = flags::kernel(self.options.sanitizer, self.options.numerics, self.options.tensors);
        if self.options.newer_language {
            flags.extend(flags::words(flags::NEWER_LANGUAGE));
        }
        flags
    }

    /// Compiles a rewritten source in `folder` to `out`, which holds a flag and the file's name.
    fn translate(
        &self,
        folder: &Path,
        name: &str,
        text: &str,
        flags: &[String],
        (what, out): (&str, &str),
    ) -> Result<(), Error> {
        let cpp = cache::write(folder, "library.cpp", text)?;
        let header = self.parsed_header(flags)?;
        let mut arguments = [flags, &flags::words(what)].concat();
        arguments
            .extend(["-include-pch", cache::text(&header), cache::text(&cpp), "-o", out].map(str::to_owned));
        let failed = |messages| Error::Compile { name: name.to_owned(), messages };
        self.clang.run(folder, &arguments)?.map_err(failed)?;
        Ok(())
    }

    /// The emulator's header, parsed once for all sources with these flags; parsing takes two
    /// thirds of the time of a short source.
    fn parsed_header(&self, flags: &[String]) -> Result<PathBuf, Error> {
        let header = self.runtime.headers.join("metal_stdlib.h");
        let key = self.clang.key("header").with(cache::text(&header));
        let key = flags.iter().fold(key, |key, flag| key.with(flag));
        let folder = cache::folder(&self.options.cache, key, |folder| {
            let mut arguments = [flags, &flags::words(flags::HEADER)].concat();
            arguments.extend([cache::text(&header), "-o", "metal_stdlib.pch"].map(str::to_owned));
            let failed = |messages| Error::Compile { name: "metal_stdlib.h".to_owned(), messages };
            self.clang.run(folder, &arguments)?.map_err(failed)?;
            Ok(())
        })?;
        Ok(folder.join("metal_stdlib.pch"))
    }

    /// A key of all inputs of a rewritten source.
    pub(crate) fn key(&self, what: &str, name: &str, source: &str, includes: &[(&str, &str)]) -> Key {
        let mut key = self.clang.key(what).with(cache::text(&self.runtime.headers)).with(name).with(source);
        key = key.with([u8::from(self.options.tensors)]).with(self.options.defines.len().to_le_bytes());
        for (define, value) in &self.options.defines {
            key = key.with(define).with(value);
        }
        for (name, text) in includes {
            key = key.with(name).with(text);
        }
        key
    }

    /// Preprocesses and rewrites.
    pub(crate) fn rewrite(
        &self,
        folder: &Path,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
        what: rewrite::What<'_>,
    ) -> Result<rewrite::Rewritten, Error> {
        for (name, text) in includes.iter().chain([&(name, source)]) {
            let plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
            if name.is_empty() || !plain || name.contains(['"', '\\', '\n', ':']) {
                return Err(Error::Name((*name).to_owned()));
            }
            cache::write(folder, &format!("src/{name}"), text)?;
        }
        let standard = self.runtime.headers.join("standard");
        let mut arguments = flags::words(flags::PREPROCESS);
        arguments.extend(flags::version(self.options.tensors));
        arguments.extend(["-isystem", cache::text(&standard), "-I", "src"].map(str::to_owned));
        arguments.extend(self.options.defines.iter().map(|(define, value)| format!("-D{define}={value}")));
        arguments.push(format!("src/{name}"));
        let failed = |messages| Error::Compile { name: name.to_owned(), messages };
        let text = callers_names(&self.clang.run(folder, &arguments)?.map_err(failed)?);
        Ok(rewrite::rewrite(&text, what)?)
    }
}

/// Names of the functions in LLVM's text with a product or a sum that has the flag `contract`, or
/// that clang itself joined.
fn contractible_functions(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut function = "";
    for line in text.lines() {
        if let Some((_, rest)) = line.strip_prefix("define ").and_then(|line| line.split_once('@')) {
            function = rest.split('(').next().unwrap_or(rest);
        }
        // Calls and negations have the flag too, without effect.
        let words = ["fmul contract", "fadd contract", "fsub contract", "@llvm.fmuladd"];
        let is_one = words.iter().any(|word| line.contains(word));
        if line.starts_with("  ") && is_one && found.last().is_none_or(|last| last != function) {
            found.push(function.to_owned());
        }
    }
    found
}

/// Preprocessed text with the caller's file names in its line markers instead of paths on disk.
fn callers_names(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("# ").and_then(|l| l.split_once('"')) {
            Some((number, rest)) if rest.starts_with("src/") || rest.starts_with("./src/") => {
                let (name, flags) = rest.rsplit_once('"').unwrap_or((rest, ""));
                let mut parts: Vec<&str> = Vec::new();
                for part in name.trim_start_matches("./").split('/').skip(1) {
                    match part {
                        ".." => drop(parts.pop()),
                        "." => {}
                        part => parts.push(part),
                    }
                }
                out.push_str(&format!("# {number}\"{}\"{flags}", parts.join("/")));
            }
            _ => out.push_str(line),
        }
    }
    out
}
