//! The embedded shader sources: one kernel one file, at the path of the CPU device's kernel.
//!
//! A file is a translation unit of its own, with the headers that it includes. [`Kernel::source`]
//! gives it with the headers pasted in, for a compiler that has no file system; the emulator gets
//! the headers beside it.
//! `build.rs` lists the files, and the indices of function constants that their headers define.

use device::{Activation, KvType, Pooling, RopeStyle};
use weights::{BlockType, ScaleType};

include!(concat!(env!("OUT_DIR"), "/sources.rs"));
include!(concat!(env!("OUT_DIR"), "/constants.rs"));

/// The text of a header.
pub fn header(name: &str) -> Option<&'static str> {
    HEADERS.iter().find(|(path, _)| *path == name).map(|(_, text)| *text)
}

/// A kernel function and its file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Path of the file under `kernels/`.
    pub file: &'static str,
    /// Name of the function.
    pub function: String,
}

impl Kernel {
    /// The function of the same name as its file.
    pub fn of(file: &'static str) -> Kernel {
        let name = file.rsplit('/').next().unwrap_or(file);
        Kernel { file, function: name.trim_end_matches(".metal").to_owned() }
    }

    /// The function and the file of a name.
    pub fn named(name: &str) -> Option<Kernel> {
        let mut files = FILES.iter().map(|(path, _)| *path);
        files.find(|path| path.strip_suffix(".metal") == Some(name)).map(Kernel::of)
    }

    /// The text of the file; `None`: there is no such file.
    pub fn text(&self) -> Option<&'static str> {
        FILES.iter().find(|(path, _)| *path == self.file).map(|(_, text)| *text)
    }

    /// The file with the headers pasted in, each once. A compiler names lines by file and as they
    /// are there.
    pub fn source(&self) -> Option<String> {
        let mut pasted = Vec::new();
        Some(paste(self.file, self.text()?, &mut pasted))
    }
}

/// A text with the headers that it includes pasted in, but for those that were pasted before.
fn paste(file: &str, text: &str, pasted: &mut Vec<&'static str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut number = 0;
    for line in text.lines() {
        number += 1;
        // The files of kernels begin with such a line.
        if line == "#line 1" {
            number = 0;
            out.push_str(&format!("#line 1 \"{file}\"\n"));
            continue;
        }
        let name = line.trim().strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match name.and_then(|name| HEADERS.iter().find(|(path, _)| *path == name)) {
            Some((path, text)) => {
                if !pasted.contains(path) {
                    pasted.push(path);
                    out.push_str(&format!("#line 1 \"{path}\"\n"));
                    out.push_str(&paste(path, text, pasted));
                    out.push_str(&format!("#line {} \"{file}\"\n", number + 1));
                } else {
                    out.push('\n');
                }
            }
            None if line.trim() == "#pragma once" => out.push('\n'),
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// A hash of the sources and of some names: 16 hexadecimal digits.
pub fn fingerprint(names: &[&str]) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for (path, text) in HEADERS.iter().chain(FILES) {
        hash.update(path);
        hash.update(text);
    }
    names.iter().for_each(|name| hash.update(name));
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A KV type in the names of kernels.
pub const fn kv_name(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        // Cache types I16, I8 and Fp8 have no kernels: `profile::KV_TYPES`.
        KvType::I16 => "i16",
        KvType::I8 => "i8",
        KvType::Fp8 => "fp8",
        KvType::Q8_0 => "q8_0",
    }
}

/// A type of weights in the names of kernels.
pub fn type_name(block: BlockType) -> String {
    match block {
        BlockType::Affine(affine) => format!("affine_{}", affine.bits()),
        block => block.name().to_lowercase(),
    }
}

/// The file with the kernels of a type of weights, if there is one.
pub fn linear_file(block: BlockType) -> Option<&'static str> {
    let wanted = format!("linear/{}.metal", type_name(block));
    FILES.iter().map(|(path, _)| *path).find(|path| *path == wanted)
}

/// The types in the names of the kernels of three weights and one row whose last weight has another
/// type, if there are such.
pub fn mixed_linear(block: BlockType, last: BlockType) -> Option<String> {
    use BlockType::*;
    const PAIRS: [(BlockType, BlockType); 6] =
        [(Q2_K, Q4_K), (Q3_K, Q5_K), (Q4_K, Q5_K), (Q4_K, Q6_K), (Q5_0, Q8_0), (Q5_K, Q6_K)];
    PAIRS.contains(&(block, last)).then(|| format!("{}_{}", type_name(block), type_name(last)))
}

/// Numbers of the types, as in `linear/constants.h`.
pub const fn scale_kind(kind: ScaleType) -> u32 {
    match kind {
        ScaleType::F32 => 0,
        ScaleType::F16 => 1,
        ScaleType::BF16 => 2,
        ScaleType::E8M0 => 3,
    }
}

/// As `activation.h` numbers them.
pub const fn activation(kind: Activation) -> u32 {
    match kind {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Relu => 3,
        Activation::Sigmoid => 4,
        Activation::Identity => 5,
        Activation::ReluSquared => 6,
        Activation::Softplus => 7,
    }
}

/// As `kv_store.h` numbers them.
pub const fn kv_kind(kind: KvType) -> u32 {
    match kind {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
        // Unknown there: `profile::KV_TYPES`.
        KvType::I16 | KvType::I8 | KvType::Fp8 => 3,
    }
}

/// As `rotate.h` numbers them.
pub const fn rope(style: Option<RopeStyle>) -> u32 {
    match style {
        None => 0,
        Some(RopeStyle::Half) => 1,
        Some(RopeStyle::Interleaved) => 2,
    }
}

/// As `pool.metal` numbers them.
pub const fn pooling(kind: Pooling) -> u32 {
    match kind {
        Pooling::Mean => 0,
        Pooling::First => 1,
        Pooling::Last => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_pasted_once() {
        for (file, _) in FILES {
            let source = Kernel::of(file).source().unwrap();
            assert!(!source.contains("#include \""), "{file}");
            assert!(source.matches("struct Span {").count() <= 1, "{file}");
            assert!(source.starts_with(&format!("#pragma METAL fp contract(off)\n#line 1 \"{file}\"\n")));
            // Every line is where its marker says.
            let (mut name, mut number) = ("", 0);
            for line in source.lines() {
                number += 1;
                if let Some((n, path)) = line.strip_prefix("#line ").and_then(|l| l.split_once(' ')) {
                    (name, number) = (path.trim_matches('"'), n.parse::<usize>().unwrap() - 1);
                } else if !line.trim().is_empty() && !name.is_empty() {
                    let text =
                        header(name).or_else(|| Kernel::of(FILES.iter().find(|(p, _)| *p == name)?.0).text());
                    let skipped = if name.ends_with(".metal") { 2 } else { 0 };
                    assert_eq!(
                        text.unwrap().lines().nth(number - 1 + skipped),
                        Some(line),
                        "{name}:{number}"
                    );
                }
            }
        }
    }
}
