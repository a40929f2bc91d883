//! Headers, runtime objects and the sanitizers' runner, for compiling, linking and running
//! libraries.

use crate::cache::{self, Key};
use crate::clang::Clang;
use crate::error::Error;
use crate::flags;
use crate::options::{Options, Sanitizer};
use crate::sources::{ACCESS, HEADERS, RUNNER, RUNTIME, STANDARD, TENSORS, TENSORS_TEXT};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of the runtime, built once and cached.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// The folder of headers; `#include <...>` searches `standard` in it.
    pub headers: PathBuf,
    /// Objects that every library is linked with.
    pub objects: Vec<PathBuf>,
    /// The program that runs dispatches under a sanitizer.
    pub runner: Option<Arc<Path>>,
}

impl Runtime {
    /// Builds the files that are not cached.
    pub fn build(clang: &Clang, options: &Options) -> Result<Self, Error> {
        let sources = || HEADERS.iter().chain([&RUNTIME, &ACCESS, &RUNNER]);
        let key = sources().fold(Key::new("headers"), |key, (name, text)| key.with(name).with(text));
        let headers = cache::folder(&options.cache, key, |folder| {
            for (name, text) in sources() {
                cache::write(folder, name, text)?;
            }
            let standard = STANDARD.iter().map(|name| (name, ""));
            standard.chain(TENSORS.iter().map(|name| (name, TENSORS_TEXT))).try_for_each(|(name, text)| {
                cache::write(folder, &format!("standard/{name}"), text).map(|_| ())
            })
        })?;
        let units: &[&str] =
            if options.sanitizer == Sanitizer::None { &["runtime", "access"] } else { &["runtime"] };
        let runtime_flags = flags::runtime(options.sanitizer, options.counting);
        let runner_flags = flags::runner(options.sanitizer);
        let mut key = clang.key("runtime").with(cache::text(&headers));
        for flag in runtime_flags.iter().chain(runner_flags.iter().flatten()) {
            key = key.with(flag);
        }
        let folder = cache::folder(&options.cache, key, |folder| {
            for unit in units {
                let mut arguments = runtime_flags.clone();
                let source = headers.join(format!("{unit}.cpp"));
                arguments.extend(["-c", cache::text(&source), "-o", &format!("{unit}.o")].map(str::to_owned));
                run(clang, options, folder, &arguments)?;
            }
            let Some(mut arguments) = runner_flags.clone() else { return Ok(()) };
            let source = headers.join("runner.cpp");
            arguments.extend([cache::text(&source), "-ldl", "-o", "runner"].map(str::to_owned));
            run(clang, options, folder, &arguments)
        })?;
        let objects = units.iter().map(|unit| folder.join(format!("{unit}.o"))).collect();
        let runner = runner_flags.is_some().then(|| Arc::from(folder.join("runner")));
        Ok(Runtime { headers, objects, runner })
    }
}

fn run(clang: &Clang, options: &Options, folder: &Path, arguments: &[String]) -> Result<(), Error> {
    clang.run(folder, arguments)?.map_err(|messages| {
        let hint = match options.sanitizer {
            Sanitizer::None => {
                " (it needs a linker and the C library: apt-get install binutils libc6-dev)".to_owned()
            }
            Sanitizer::AddressUndefined | Sanitizer::Thread => format!(
                " (sanitizers are a separate package: apt-get install libclang-rt-{}-dev)",
                clang.major
            ),
        };
        Error::Runtime { hint, messages }
    })?;
    Ok(())
}
