//! From Metal source to a library on disk.

use crate::cache::{self, Key, file_error};
use crate::clang::Clang;
use crate::error::Error;
use crate::library::{ConstantDeclaration, Function, Library, Parameter, ParameterKind};
use crate::rewrite;
use crate::sources::{ACCESS, HEADERS, RUNNER, RUNTIME, STANDARD};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// How sources are compiled.
#[derive(Debug, Clone)]
pub struct Options {
    /// The clang to use: a path or a name in PATH. None takes the newest that is found.
    pub clang: Option<PathBuf>,
    /// A folder for compiled libraries, made where it is missing. Processes may share it.
    pub cache: PathBuf,
    /// A sanitizer to run under, in a process of its own, instead of the checks that are always on.
    pub sanitizer: Sanitizer,
    /// Whether bytes are counted (see [`crate::Counters`]).
    pub counting: bool,
    /// Macros defined before the source, with their values.
    pub defines: Vec<(String, String)>,
}

impl Options {
    /// The defaults, with compiled libraries kept in `cache`.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Options {
            clang: None,
            cache: cache.into(),
            sanitizer: Sanitizer::None,
            counting: false,
            defines: Vec::new(),
        }
    }
}

/// clang's sanitizers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sanitizer {
    /// None: the emulator's own checks, in this process.
    #[default]
    None,
    /// AddressSanitizer and UndefinedBehaviorSanitizer, which see private arrays too.
    AddressUndefined,
    /// ThreadSanitizer: races between the threads of a threadgroup, as where a barrier is missing.
    Thread,
}

/// How a library was compiled, and what it takes to run it.
#[derive(Debug, Clone)]
pub(crate) struct Mode {
    pub counting: bool,
    /// The program that runs dispatches under a sanitizer, and that sanitizer.
    pub runner: Option<(Arc<Path>, Sanitizer)>,
}

/// Compiles Metal sources.
#[derive(Debug)]
pub struct Compiler {
    clang: Clang,
    options: Options,
    mode: Mode,
    /// The folder of headers and the runtime's objects.
    runtime: PathBuf,
}

impl Compiler {
    /// Finds clang and builds the runtime, unless the cache has it.
    ///
    /// # Errors
    ///
    /// [`Error::NoClang`], [`Error::Runtime`] where parts of the compiler are missing, or those of files.
    pub fn new(options: Options) -> Result<Self, Error> {
        let clang = Clang::find(options.clang.as_deref())?;
        let mut options = options;
        fs::create_dir_all(&options.cache).map_err(file_error(&options.cache))?;
        options.cache = options.cache.canonicalize().map_err(file_error(&options.cache))?;
        let mut compiler = Compiler {
            clang,
            options,
            mode: Mode { counting: false, runner: None },
            runtime: PathBuf::new(),
        };
        compiler.build_runtime()?;
        Ok(compiler)
    }

    /// The clang that is used: the first line of its `--version`.
    pub fn clang_version(&self) -> &str {
        &self.clang.version
    }

    /// Compiles `source`, one translation unit. `name` is what messages call it; `includes` are the headers that it may
    /// include, by the names that it uses. Names are relative paths.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] where the source has what the emulator does not execute, [`Error::Compile`] with clang's messages,
    /// or those of files.
    pub fn compile(&self, name: &str, source: &str, includes: &[(&str, &str)]) -> Result<Library, Error> {
        let key = self.key("library", name, source, includes);
        let folder = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, false)?;
            let mut arguments = self.arguments();
            let c = cache::write(folder, "library.cpp", &rewritten.text)?;
            arguments.extend(self.include_flags());
            arguments.extend(strings(&["-w", "-c", path(&c), "-o", "library.o"]));
            let output = self.clang.run(folder, &arguments)?;
            if !output.status.success() {
                return Err(Error::Compile { name: name.to_owned(), messages: messages(&output.stderr) });
            }
            let mut link = strings(&["-shared", "-o", "library.so", "library.o"]);
            for object in self.objects() {
                link.push(path(&self.runtime.join(object)).to_owned());
            }
            link.push("-lm".to_owned());
            let output = self.clang.run(folder, &link)?;
            if !output.status.success() {
                return Err(Error::Compile { name: name.to_owned(), messages: messages(&output.stderr) });
            }
            cache::write(folder, "functions.txt", describe(&rewritten.functions, &rewritten.constants))?;
            Ok(())
        })?;
        let table = folder.join("functions.txt");
        let text = fs::read_to_string(&table).map_err(file_error(&table))?;
        let (functions, constants) = parse(&text);
        Ok(Library { path: folder.join("library.so"), functions, constants, mode: self.mode.clone() })
    }

    /// Checks `source` with real address spaces, as C++ for OpenCL: assigning a `threadgroup` pointer to a `device` one, or
    /// writing to `constant`, which run mode does not see, are errors here. Nothing is made.
    ///
    /// # Errors
    ///
    /// Those of [`Compiler::compile`].
    pub fn check_strict(&self, name: &str, source: &str, includes: &[(&str, &str)]) -> Result<(), Error> {
        let key = self.key("strict", name, source, includes);
        let made = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, true)?;
            let c = cache::write(folder, "strict.cl", &rewritten.text)?;
            let headers = self.runtime.join("metal_stdlib.h");
            let arguments = strings(&[
                "-cc1",
                "-x",
                "clcpp",
                "-fdeclspec",
                "-cl-std=clc++2021",
                "-triple",
                "x86_64-linux-gnu",
                "-fsyntax-only",
                "-w",
                "-ferror-limit",
                "20",
                "-include",
                path(&headers),
                path(&c),
            ]);
            let output = self.clang.run(folder, &arguments)?;
            if !output.status.success() {
                return Err(Error::Compile { name: name.to_owned(), messages: messages(&output.stderr) });
            }
            Ok(())
        });
        made.map(|_| ())
    }

    fn key(&self, what: &str, name: &str, source: &str, includes: &[(&str, &str)]) -> Key {
        let mut key = Key::new(what).with(path(&self.runtime)).with(name).with(source);
        for (define, value) in &self.options.defines {
            key = key.with(define).with(value);
        }
        for (name, text) in includes {
            key = key.with(name).with(text);
        }
        key
    }

    /// Preprocesses and rewrites.
    fn rewrite(
        &self,
        folder: &Path,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
        strict: bool,
    ) -> Result<rewrite::Rewritten, Error> {
        for (name, text) in includes.iter().chain([&(name, source)]) {
            let plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
            if name.is_empty() || !plain || name.contains(['"', '\\', '\n', ':']) {
                return Err(Error::Name((*name).to_owned()));
            }
            cache::write(folder, &format!("src/{name}"), text)?;
        }
        let standard = self.runtime.join("standard");
        let mut arguments = strings(&[
            "-E",
            "-x",
            "c++",
            "-std=c++17",
            "-undef",
            "-nostdinc",
            "-w",
            "-isystem",
            path(&standard),
            "-I",
            "src",
            "-D__METAL__=1",
            "-D__METAL_MACOS__=1",
            "-D__METAL_VERSION__=320",
            "-D__HAVE_BFLOAT__=1",
            "-D__HAVE_SIMDGROUP_MATRIX__=1",
            "-D__HAVE_SIMDGROUP_REDUCTION__=1",
            "-D__METAL_EMULATOR__=1",
        ]);
        for (define, value) in &self.options.defines {
            arguments.push(format!("-D{define}={value}"));
        }
        arguments.push(format!("src/{name}"));
        let output = self.clang.run(folder, &arguments)?;
        if !output.status.success() {
            return Err(Error::Compile { name: name.to_owned(), messages: messages(&output.stderr) });
        }
        let text = callers_names(&String::from_utf8_lossy(&output.stdout));
        Ok(rewrite::rewrite(&text, strict)?)
    }

    /// Flags for kernels and for the runtime, whatever the mode. Multiply and add stay two operations, so that results do not depend
    /// on the host's processor or on what was inlined.
    fn common() -> Vec<String> {
        let wide = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        let mut flags = strings(&[
            "-x",
            "c++",
            "-std=c++20",
            "-O2",
            "-fPIC",
            "-ffreestanding",
            "-fno-exceptions",
            "-fno-rtti",
            "-fvisibility=hidden",
            "-fno-stack-protector",
            "-ffp-contract=off",
            "-nostdinc",
        ]);
        flags.push(if wide { "-march=x86-64-v3" } else { "-march=x86-64" }.to_owned());
        flags
    }

    /// Flags for kernels.
    fn arguments(&self) -> Vec<String> {
        let mut flags = Self::common();
        flags.extend(strings(&[
            "-fdeclspec",
            "-g1",
            "-gdwarf-4",
            "-fdebug-compilation-dir=/metal",
            "-ferror-limit=20",
            "-Xclang",
            "-ffloat16-excess-precision=none",
        ]));
        flags.extend(match self.options.sanitizer {
            // The instrumentation of AddressSanitizer with a runtime of our own: see cpp/access.cpp.
            Sanitizer::None => strings(&[
                "-fsanitize=address,alignment,bounds,shift,integer-divide-by-zero",
                "-fno-sanitize-recover=all",
                "-fsanitize-address-use-after-return=never",
                "-mllvm",
                "-asan-memory-access-callback-prefix=msl_",
                "-mllvm",
                "-asan-instrumentation-with-call-threshold=0",
                "-mllvm",
                "-asan-mapping-scale=4",
                "-mllvm",
                "-asan-opt-same-temp=0",
                "-mllvm",
                "-asan-stack=0",
                "-mllvm",
                "-asan-globals=0",
            ]),
            Sanitizer::AddressUndefined => strings(&[
                "-fsanitize=address,undefined",
                "-fno-sanitize=function,vptr",
                "-fno-sanitize-recover=all",
            ]),
            Sanitizer::Thread => strings(&["-fsanitize=thread"]),
        });
        flags
    }

    fn include_flags(&self) -> Vec<String> {
        strings(&["-include", path(&self.runtime.join("metal_stdlib.h"))])
    }

    fn objects(&self) -> &'static [&'static str] {
        if self.options.sanitizer == Sanitizer::None { &["runtime.o", "access.o"] } else { &["runtime.o"] }
    }

    /// Headers, the runtime's objects and, for a sanitizer, the program that runs dispatches.
    fn build_runtime(&mut self) -> Result<(), Error> {
        let sanitizer = self.options.sanitizer;
        let mut key = Key::new("runtime").with(path(&self.clang.path)).with(&self.clang.version);
        for flag in self.arguments() {
            key = key.with(flag);
        }
        for (name, text) in HEADERS.iter().chain([&RUNTIME, &ACCESS, &RUNNER]) {
            key = key.with(name).with(text);
        }
        key = key.with([u8::from(self.options.counting)]);
        self.runtime = cache::folder(&self.options.cache, key, |folder| {
            for (name, text) in HEADERS.iter().chain([&RUNTIME, &ACCESS, &RUNNER]) {
                cache::write(folder, name, text)?;
            }
            for name in STANDARD {
                cache::write(folder, &format!("standard/{name}"), "")?;
            }
            let units: &[&str] =
                if sanitizer == Sanitizer::None { &["runtime", "access"] } else { &["runtime"] };
            for unit in units {
                let mut arguments = Self::common();
                arguments.extend(strings(&[
                    "-fno-strict-aliasing",
                    "-fno-builtin",
                    "-c",
                    &format!("{unit}.cpp"),
                    "-o",
                    &format!("{unit}.o"),
                ]));
                match sanitizer {
                    Sanitizer::None if self.options.counting => arguments.push("-DMSL_COUNT".to_owned()),
                    Sanitizer::None => {}
                    Sanitizer::AddressUndefined => arguments.push("-DMSL_ASAN".to_owned()),
                    Sanitizer::Thread => arguments.push("-DMSL_TSAN".to_owned()),
                }
                self.run_runtime(folder, &arguments)?;
            }
            let flags = match sanitizer {
                Sanitizer::None => return Ok(()),
                Sanitizer::AddressUndefined => "-fsanitize=address,undefined",
                Sanitizer::Thread => "-fsanitize=thread",
            };
            let mut arguments = strings(&[
                "-x",
                "c++",
                "-std=c++20",
                "-O1",
                "-g1",
                "-fno-exceptions",
                "-fno-rtti",
                "-nostdinc++",
            ]);
            arguments.extend(strings(&[
                "runner.cpp",
                "-rdynamic",
                flags,
                "-fno-sanitize=function,vptr",
                "-ldl",
                "-o",
                "runner",
            ]));
            self.run_runtime(folder, &arguments)
        })?;
        let runner =
            (sanitizer != Sanitizer::None).then(|| (Arc::from(self.runtime.join("runner")), sanitizer));
        self.mode = Mode { counting: self.options.counting, runner };
        Ok(())
    }

    fn run_runtime(&self, folder: &Path, arguments: &[String]) -> Result<(), Error> {
        let output = self.clang.run(folder, arguments)?;
        if output.status.success() {
            return Ok(());
        }
        let messages = messages(&output.stderr);
        let hint = match self.options.sanitizer {
            Sanitizer::None => {
                " (it needs a linker and the C library: apt-get install binutils libc6-dev)".to_owned()
            }
            _ => format!(
                " (sanitizers are a package of their own: apt-get install libclang-rt-{}-dev)",
                self.clang.major
            ),
        };
        Err(Error::Runtime { hint, messages })
    }
}

/// Preprocessed text whose line markers name files as the caller does, instead of where they lie.
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

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// A path below the cache as text. The cache's own was checked, and names in it are ours or the caller's strings.
fn path(p: &Path) -> &str {
    p.to_str().unwrap_or_default()
}

fn messages(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().take(80).collect();
    lines.join("\n")
}

/// Functions and constants as text, for the cache: one thing a line, fields separated by tabs, types last.
fn describe(functions: &[Function], constants: &[ConstantDeclaration]) -> String {
    let mut text = String::new();
    for c in constants {
        text.push_str(&format!("constant\t{}\t{}\t{}\t{}\n", c.index, c.size, c.name, c.type_name));
    }
    for f in functions {
        let needed: Vec<String> = f.constants.iter().map(u16::to_string).collect();
        text.push_str(&format!(
            "function\t{}\t{}\t{}\n",
            f.max_threads.unwrap_or(0),
            needed.join(","),
            f.name
        ));
        for p in &f.parameters {
            let (kind, at) = match p.kind {
                ParameterKind::Buffer(i) => ("buffer", i.to_string()),
                ParameterKind::Threadgroup(i) => ("threadgroup", i.to_string()),
                ParameterKind::Position(name) => ("position", name.to_owned()),
            };
            let condition = p.condition.as_deref().unwrap_or("");
            text.push_str(&format!(
                "{kind}\t{at}\t{}\t{}\t{condition}\t{}\n",
                u8::from(p.writable),
                p.name,
                p.type_name
            ));
        }
    }
    text
}

/// The inverse of [`describe`]. The file is this crate's own, under a hash of what made it: lines it does not know are skipped.
fn parse(text: &str) -> (Vec<Function>, Vec<ConstantDeclaration>) {
    let (mut functions, mut constants): (Vec<Function>, Vec<ConstantDeclaration>) = Default::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["constant", index, size, name, type_name] => constants.push(ConstantDeclaration {
                index: index.parse().unwrap_or_default(),
                size: size.parse().unwrap_or_default(),
                name: name.to_owned(),
                type_name: type_name.to_owned(),
            }),
            ["function", max, needed, name] => functions.push(Function {
                name: name.to_owned(),
                parameters: Vec::new(),
                max_threads: max.parse().ok().filter(|n| *n > 0),
                constants: needed.split(',').filter_map(|n| n.parse().ok()).collect(),
            }),
            [kind, at, writable, name, condition, type_name] => {
                let index = at.parse().unwrap_or_default();
                let kind = match kind {
                    "buffer" => ParameterKind::Buffer(index),
                    "threadgroup" => ParameterKind::Threadgroup(index),
                    _ => ParameterKind::Position(rewrite::position(at).unwrap_or_default()),
                };
                if let Some(f) = functions.last_mut() {
                    f.parameters.push(Parameter {
                        name: name.to_owned(),
                        type_name: type_name.to_owned(),
                        kind,
                        writable: writable == "1",
                        condition: (!condition.is_empty()).then(|| condition.to_owned()),
                    });
                }
            }
            _ => {}
        }
    }
    (functions, constants)
}
