//! Register demand of a kernel, as another GPU's compiler estimates it, and the number of its
//! conversion instructions.
//!
//! Apple publishes no assembler. NVIDIA's `ptxas` is public (PyPI: `nvidia-cuda-nvcc`), and its
//! GPUs also have 32-bit registers for each thread, without vectors. So the source is compiled with
//! real address spaces for `nvptx64`. Every function in which threads of a SIMD-group cooperate
//! becomes an opaque instruction with its operands and results. `ptxas` runs with decreasing
//! register limits until it must spill. (Without a limit it uses as many as hide latency best on
//! its own chips.) All functions are inlined.

use crate::cache;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::flags;
use std::path::Path;
use std::process::Command;

/// Most lines of an assembler's messages that are passed on.
const MOST_LINES: usize = 20;

/// Register limits that are tried.
const STEPS: [u32; 10] = [32, 48, 64, 80, 96, 112, 128, 160, 192, 224];

/// Demand of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registers {
    /// The smallest tried number of 32-bit registers of a thread (32, 48, 64, …) without spills.
    /// `None` if 224 are too few.
    pub n: Option<u32>,
    /// Bytes of a thread's arrays in memory, whose indices are not known at compile time.
    pub memory: u32,
    /// Number of instructions that convert to or from a floating-point type, before register
    /// allocation. Copies in unrolled loops count separately.
    pub conversions: u32,
}

impl Compiler {
    /// Demand of the kernels of a source, in the order of [`Self::compile`]. `constants` are values
    /// of its function constants, by index; the others are 0.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`], and [`Error::Start`] if `ptxas` cannot be started.
    pub fn registers(
        &self,
        name: &str,
        source: &str,
        includes: &[(&str, &str)],
        constants: &[(u16, u32)],
        ptxas: &Path,
    ) -> Result<Vec<(String, Registers)>, Error> {
        let failed = |messages| Error::Compile { name: name.to_owned(), messages };
        let table: Vec<String> =
            constants.iter().map(|(index, value)| format!("index == {index} ? {value} : ")).collect();
        let table = format!("-DMSL_CONSTANTS={}0", table.concat());
        let key = self
            .key("registers and conversions", name, source, includes)
            .with(flags::REGISTERS)
            .with(&table)
            .with(cache::text(ptxas));
        let mut names = Vec::new();
        let made = cache::folder(&self.options.cache, key, |folder| {
            let rewritten = self.rewrite(folder, name, source, includes, crate::rewrite::What::STRICT)?;
            names = rewritten.functions.iter().map(|f| f.name.clone()).collect();
            let cl = cache::write(folder, "registers.cl", &rewritten.text)?;
            let header = self.runtime.headers.join("metal_stdlib.h");
            let mut arguments = flags::words(flags::REGISTERS);
            let more = [&table, "-include", cache::text(&header), cache::text(&cl), "-o", "registers.ptx"];
            arguments.extend(more.map(str::to_owned));
            self.clang.run(folder, &arguments)?.map_err(failed)?;
            let path = folder.join("registers.ptx");
            let text = std::fs::read_to_string(&path).map_err(cache::file_error(&path))?;
            cache::write(folder, "entries.ptx", entries(&text))?;
            let mut messages = String::new();
            for n in STEPS {
                messages += &allocated(ptxas, folder, n)?.map_err(failed)?;
            }
            let (entries, conversions) = (entry_names(&text), conversions(&text));
            let lines = entries.iter().zip(conversions).map(|(name, n)| format!("{name} {n}\n"));
            cache::write(folder, "names.txt", lines.collect::<String>())?;
            cache::write(folder, "functions.txt", names.join("\n"))?;
            cache::write(folder, "messages.txt", messages)?;
            Ok(())
        })?;
        let read = |file: &str| {
            let path = made.join(file);
            std::fs::read_to_string(&path).map_err(cache::file_error(&path))
        };
        let (functions, mangled, messages) =
            (read("functions.txt")?, read("names.txt")?, read("messages.txt")?);
        let found = functions.lines().zip(mangled.lines()).filter_map(|(name, line)| {
            let (mangled, conversions) = line.split_once(' ')?;
            let (n, memory) = registers_of(mangled, &messages)?;
            Some((name.to_owned(), Registers { n, memory, conversions: conversions.parse().ok()? }))
        });
        Ok(found.collect())
    }
}

/// Output of `ptxas -v` for `entries.ptx` with a limit of `n` registers for each thread, or its
/// errors.
fn allocated(ptxas: &Path, folder: &Path, n: u32) -> Result<Result<String, String>, Error> {
    let start = |source| Error::Start { tool: ptxas.display().to_string(), source };
    let mut command = Command::new(ptxas);
    command.args(["-arch=sm_80", "-v", &format!("-maxrregcount={n}"), "entries.ptx", "-o", "/dev/null"]);
    let output = command.current_dir(folder).output().map_err(start)?;
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(Ok(text.into_owned()));
    }
    Ok(Err(text.lines().take(MOST_LINES).collect::<Vec<_>>().join("\n")))
}

/// Names of the kernels' functions: instances of templates are weak symbols, others plain.
fn entry_names(ptx: &str) -> Vec<String> {
    let line = |line: &str| {
        let rest = line.strip_prefix(".weak .func ").or_else(|| line.strip_prefix(".visible .func "))?;
        Some(rest.trim_end_matches(['(', ' ']).to_owned())
    };
    ptx.lines().filter_map(line).collect()
}

/// Number of instructions in each function that convert to or from a floating-point type.
fn conversions(ptx: &str) -> Vec<u32> {
    let mut found = vec![];
    for line in ptx.lines() {
        if line.starts_with(".weak .func ") || line.starts_with(".visible .func ") {
            found.push(0);
        }
        let instruction = line.split_whitespace().next().unwrap_or_default();
        let converts =
            instruction.starts_with("cvt.") && [".f16", ".f32"].iter().any(|t| instruction.contains(t));
        if let Some(n) = found.last_mut().filter(|_| converts) {
            *n += 1;
        }
    }
    found
}

/// The text with its functions as kernels, since `ptxas` allocates registers for kernels only.
fn entries(ptx: &str) -> String {
    let line = |line: &str| {
        let name = line.strip_prefix(".weak .func ").or_else(|| line.strip_prefix(".visible .func "));
        name.map_or_else(|| format!("{line}\n"), |name| format!(".visible .entry {name}\n"))
    };
    ptx.lines().map(line).collect()
}

/// [`Registers::n`] and [`Registers::memory`] of a function, from the messages of `ptxas -v`,
/// ordered by increasing register limit.
fn registers_of(function: &str, messages: &str) -> Option<(Option<u32>, u32)> {
    let mut of_function = messages
        .split("Compiling entry function ")
        .filter(|part| part.strip_prefix('\'').and_then(|part| part.split('\'').next()) == Some(function))
        .peekable();
    let before = |part: &str, word: &str| -> Option<u32> {
        part.split_once(word)?.0.split_whitespace().last()?.parse().ok()
    };
    of_function.peek()?;
    let (mut n, mut memory) = (None, 0);
    for (part, most) in of_function.zip(STEPS) {
        memory = before(part, " bytes stack frame")?;
        if before(part, " bytes spill stores")? == 0 {
            n = Some(most);
            break;
        }
    }
    Some((n, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read() {
        let messages = |spilled: u32, stack: u32| {
            format!(
                "ptxas info    : Compiling entry function 'twice' for 'sm_80'\n\
                 ptxas info    : Function properties for twice\n    \
                 {stack} bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads\n\
                 ptxas info    : Used 12 registers, used 0 barriers\n"
            )
        };
        let text = messages(24, 40) + &messages(0, 16) + &messages(0, 16);
        assert_eq!(registers_of("twice", &text), Some((Some(STEPS[1]), 16)));
        assert_eq!(registers_of("twice", &messages(8, 8)), Some((None, 8)));
        assert_eq!(registers_of("thrice", &text), None);
        let ptx = ".weak .func _Z4oncev(\n)\n.extern .func other\n.visible .func twice(\n";
        assert_eq!(entry_names(ptx), ["_Z4oncev", "twice"]);
        let body = ".weak .func a(\n)\n{\n\tcvt.rn.f32.u16 \t%f1, %rs1;\n\tcvt.u64.u32 %rd1, %r1;\n\tcvt.f32.f16 %f2, %rs2;\n}\n";
        assert_eq!(conversions(&(body.to_owned() + ptx)), [2, 0, 0]);
        assert!(entries(ptx).starts_with(".visible .entry _Z4oncev(\n"));
    }
}
