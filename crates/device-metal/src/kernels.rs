//! The shader sources, embedded: one kernel one file, at the path that the CPU device's kernel has.
//!
//! A file is a translation unit of its own, with the headers that it includes. [`Kernel::source`]
//! gives it with the headers pasted in, for a compiler that has no file system; the emulator gets
//! the headers beside it.
//!
//! Past 600 lines with its lists: of files, and of the constants and names by which kernels are chosen.

use device::{Activation, KvType, Pooling, RopeStyle};
use weights::{BlockType, ScaleType};

macro_rules! sources {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!(concat!("kernels/", $path)))),*] };
}

/// Files of kernels begin with this: Apple's compiler contracts a product and a sum to `fma` otherwise,
/// even in its safe mode, and one file would give other bits than another. Kernels write `fma` where
/// they want it. The line numbers after it are the file's own.
macro_rules! kernel_files {
    ($($path:literal),* $(,)?) => {
        &[$((
            $path,
            concat!("#pragma METAL fp contract(off)\n#line 1\n", include_str!(concat!("kernels/", $path))),
        )),*]
    };
}

/// Headers by the name that they are included by.
pub const HEADERS: &[(&str, &str)] = sources![
    "activation.h",
    "arguments.h",
    "attention/arguments.h",
    "attention/constants.h",
    "attention/decode.h",
    "attention/merge.h",
    "attention/parts.h",
    "attention/prefill.h",
    "attention/scores.h",
    "attention/vectors.h",
    "constants.h",
    "embed.h",
    "expert_linear.h",
    "instantiate.h",
    "join.h",
    "key_bias.h",
    "kv_store.h",
    "linear/affine.h",
    "linear/arguments.h",
    "linear/bf16.h",
    "linear/block.h",
    "linear/constants.h",
    "linear/f16.h",
    "linear/f32.h",
    "linear/float.h",
    "linear/gemm.h",
    "linear/gemv.h",
    "linear/grid.h",
    "linear/iq1_m.h",
    "linear/iq1_s.h",
    "linear/iq2_s.h",
    "linear/iq2_xs.h",
    "linear/iq2_xxs.h",
    "linear/iq3_s.h",
    "linear/iq3_xxs.h",
    "linear/iq4_nl.h",
    "linear/iq4_xs.h",
    "linear/k_scales.h",
    "linear/joined.h",
    "linear/kernels.h",
    "linear/merged.h",
    "linear/mxfp4.h",
    "linear/neighbours.h",
    "linear/nvfp4.h",
    "linear/parameters.h",
    "linear/q1_0.h",
    "linear/q2_k.h",
    "linear/q3_k.h",
    "linear/q4_0.h",
    "linear/q4_1.h",
    "linear/q4_k.h",
    "linear/q5_0.h",
    "linear/q5_1.h",
    "linear/q5_k.h",
    "linear/q6_k.h",
    "linear/q8_0.h",
    "linear/target.h",
    "linear/tensor.h",
    "linear/tq1_0.h",
    "linear/tq2_0.h",
    "reduce.h",
    "rotate.h",
    "route.h",
    "sampling/arguments.h",
    "sampling/rank.h",
    "scan.h",
    "scan_chunks.h",
    "step.h",
];

/// Kernel files by path.
pub const FILES: &[(&str, &str)] = kernel_files![
    "activate.metal",
    "adapters.metal",
    "add.metal",
    "argmax.metal",
    "attention.metal",
    "clamped.metal",
    "columns.metal",
    "cross_attention.metal",
    "cross_scores.metal",
    "expert_bias.metal",
    "expert_groups.metal",
    "expert_sum.metal",
    "gate.metal",
    "gate_clamped.metal",
    "gated_delta.metal",
    "input.metal",
    "join.metal",
    "join_heads.metal",
    "kv_write.metal",
    "layer_norm.metal",
    "linear/affine_2.metal",
    "linear/affine_3.metal",
    "linear/affine_4.metal",
    "linear/affine_5.metal",
    "linear/affine_6.metal",
    "linear/affine_8.metal",
    "linear/bf16.metal",
    "linear/f16.metal",
    "linear/f32.metal",
    "linear/i16_rows.metal",
    "linear/i8_rows.metal",
    "linear/iq1_m.metal",
    "linear/iq1_s.metal",
    "linear/iq2_s.metal",
    "linear/iq2_xs.metal",
    "linear/iq2_xxs.metal",
    "linear/iq3_s.metal",
    "linear/iq3_xxs.metal",
    "linear/iq4_nl.metal",
    "linear/iq4_xs.metal",
    "linear/mixed.metal",
    "linear/mxfp4.metal",
    "linear/nvfp4.metal",
    "linear/q1_0.metal",
    "linear/q2_k.metal",
    "linear/q3_k.metal",
    "linear/q4_0.metal",
    "linear/q4_1.metal",
    "linear/q4_k.metal",
    "linear/q5_0.metal",
    "linear/q5_1.metal",
    "linear/q5_k.metal",
    "linear/q6_k.metal",
    "linear/q8_0.metal",
    "linear/tq1_0.metal",
    "linear/tq2_0.metal",
    "ordinals.metal",
    "peaks.metal",
    "pool.metal",
    "probes.metal",
    "qk_rope_kv.metal",
    "rms_norm.metal",
    "rope.metal",
    "route.metal",
    "sampling/penalties.metal",
    "sampling/sample.metal",
    "scale.metal",
    "select_rows.metal",
    "selective_scan.metal",
    "self_attention.metal",
    "short_conv.metal",
    "softcap.metal",
    "unfold.metal",
];

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

    /// The text of the file; `None`: there is no such file.
    pub fn text(&self) -> Option<&'static str> {
        FILES.iter().find(|(path, _)| *path == self.file).map(|(_, text)| *text)
    }

    /// The file with the headers pasted in, each once. A compiler names lines by file and as they are
    /// there.
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

/// What the sources and some names are known by: 16 hexadecimal digits.
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

/// Indices of function constants, as `constants.h` lists them.
pub mod constant {
    /// A norm, or a route, multiplies by a weight.
    pub const HAS_WEIGHT: u16 = 0;
    /// A residual is added.
    pub const HAS_RESIDUAL: u16 = 1;
    /// A bias is added.
    pub const HAS_BIAS: u16 = 2;
    /// An [`activation`](super::activation).
    pub const ACTIVATION: u16 = 3;
    /// A [`kv_kind`](super::kv_kind).
    pub const KV_TYPE: u16 = 4;
    /// Query heads are normalised.
    pub const Q_NORM: u16 = 5;
    /// Key heads are normalised.
    pub const K_NORM: u16 = 6;
    /// A [`rope`](super::rope) of query heads.
    pub const Q_ROPE: u16 = 7;
    /// A [`rope`](super::rope) of key heads.
    pub const K_ROPE: u16 = 8;
    /// The norm of query heads has a weight.
    pub const Q_WEIGHT: u16 = 9;
    /// The norm of key heads has a weight.
    pub const K_WEIGHT: u16 = 10;
    /// Key heads also go to the arena.
    pub const K_OUT: u16 = 11;
    /// Weights of the chosen sum to 1.
    pub const NORMALISE: u16 = 12;
    /// A [`pooling`](super::pooling).
    pub const POOLING: u16 = 13;
    /// A [`rope`](super::rope).
    pub const ROPE: u16 = 14;
    /// The largest is that of several, each the largest of a part of the row.
    pub const BESTS: u16 = 15;
    /// Value heads are normalised.
    pub const V_NORM: u16 = 16;
    /// The norms of query and key heads are of all heads of a row together.
    pub const WHOLE_ROWS: u16 = 17;
    /// Experts are chosen, not only ordered.
    pub const ROUTES: u16 = 18;
    /// Keys are stored without what is known of them.
    pub const KEY_BIAS: u16 = 19;
    /// Scores of experts are sigmoids, not a softmax.
    pub const SIGMOID: u16 = 25;
    /// Experts are chosen in groups.
    pub const GROUPS: u16 = 26;
    /// Heads take the heads that they share in turn.
    pub const TILED: u16 = 27;
    /// Each row of a state has a decay of its own.
    pub const STEP_PER_ROW: u16 = 28;
}

/// Indices of function constants, as `linear/constants.h` lists them.
pub mod linear {
    /// x is normalised first.
    pub const NORM: u16 = 0;
    /// Each weight has a bias.
    pub const BIAS: u16 = 1;
    /// A residual is added.
    pub const RESIDUAL: u16 = 2;
    /// Weight 0 is a gate, weight 1 goes up.
    pub const GATE: u16 = 3;
    /// An [`activation`](super::activation).
    pub const ACTIVATION: u16 = 4;
    /// Weights multiplied with one x.
    pub const WEIGHTS: u16 = 5;
    /// SIMD-groups that share a row of a weight.
    pub const SPLIT: u16 = 6;
    /// The largest output of each threadgroup is written too.
    pub const ARGMAX: u16 = 7;
    /// Outputs are bounded.
    pub const SOFTCAP: u16 = 8;
    /// Rows are not whole vectors.
    pub const SCALAR: u16 = 9;
    /// Columns that share a scale.
    pub const AFFINE_GROUP: u16 = 10;
    /// A [`scale_kind`](super::scale_kind).
    pub const AFFINE_SCALE: u16 = 11;
    /// No offsets.
    pub const AFFINE_SYMMETRIC: u16 = 12;
    /// Each chosen expert has its own part of x.
    pub const OWN_INPUT: u16 = 13;
    /// On the tensor units of Metal 4.
    pub const TENSOR: u16 = 14;
    /// The chosen experts' products are weighed and added.
    pub const EXPERTS_SUM: u16 = 15;
    /// A dense product runs in the same dispatch.
    pub const BESIDE: u16 = 16;
    /// The product is a gate of rows that are given.
    pub const UP: u16 = 17;
    /// Products of a row count as much as a gate of the row lets through.
    pub const ROW_GATE: u16 = 18;
}

/// Indices of function constants, as `join.h` lists them.
pub mod join {
    /// The branch's norm has a weight.
    pub const WEIGHT: u16 = 20;
    /// The branch is the sum of two, each after a norm of its own.
    pub const PAIR: u16 = 21;
    /// The second of the pair, or the branch, is a weighed sum of parts.
    pub const PARTS: u16 = 22;
    /// How many norms of the sum follow.
    pub const NORMS: u16 = 23;
    /// The branch has a norm of its own.
    pub const NORM: u16 = 24;
}

/// Indices of function constants, as `attention/constants.h` lists them.
pub mod attention {
    /// Columns of a head.
    pub const HEAD_DIM: u16 = 32;
    /// Query heads that a threadgroup makes at once.
    pub const HEADS: u16 = 33;
    /// Scores are bounded.
    pub const SOFTCAP: u16 = 34;
    /// A logit of each head takes part in the sum.
    pub const SINKS: u16 = 35;
    /// A row sees only so many positions.
    pub const WINDOW: u16 = 36;
    /// Positions are split over threadgroups.
    pub const SPLIT: u16 = 37;
    /// Norm, turn and store are part of it.
    pub const FUSED: u16 = 38;
    /// Query heads are normalised.
    pub const Q_NORM: u16 = 39;
    /// Key heads are normalised.
    pub const K_NORM: u16 = 40;
    /// The norm of query heads has a weight.
    pub const Q_WEIGHT: u16 = 41;
    /// The norm of key heads has a weight.
    pub const K_WEIGHT: u16 = 42;
    /// A [`rope`](super::rope) of query heads.
    pub const Q_ROPE: u16 = 43;
    /// A [`rope`](super::rope) of key heads.
    pub const K_ROPE: u16 = 44;
    /// Value heads are normalised.
    pub const V_NORM: u16 = 45;
    /// The norms of query and key heads are of all heads of a row together.
    pub const WHOLE_ROWS: u16 = 46;
    /// Keys are stored without what is known of them.
    pub const KEY_BIAS: u16 = 47;
    /// The window begins at the last multiple of its length.
    pub const CHUNKED: u16 = 48;
    /// A row sees the rows of its span after it, too.
    pub const BOTH_WAYS: u16 = 49;
    /// Lanes that share a key, and keys that they share.
    pub const KEY_LANES: u16 = 50;
}

/// A KV type in the names of kernels.
pub const fn kv_name(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        // Of these three there are none: `profile::KV_TYPES`.
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

/// As `linear/constants.h` numbers them.
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
    use std::path::Path;

    fn files(folder: &Path, prefix: &str, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => files(&entry.path(), &format!("{name}/"), out),
                false => out.push(name),
            }
        }
    }

    #[test]
    fn every_file_is_embedded() {
        let mut found = Vec::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels"), "", &mut found);
        for name in found.iter().filter(|name| name.ends_with(".metal")) {
            assert!(FILES.iter().any(|(path, _)| path == name), "{name} is not in FILES");
        }
        for name in found.iter().filter(|name| name.ends_with(".h")) {
            assert!(HEADERS.iter().any(|(path, _)| path == name), "{name} is not in HEADERS");
        }
    }

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

    /// The constants' numbers are those of the header.
    #[test]
    fn constants_are_those_of_the_header() {
        let header = HEADERS.iter().find(|(path, _)| *path == "constants.h").unwrap().1;
        for (name, index) in [
            ("HAS_WEIGHT", constant::HAS_WEIGHT),
            ("HAS_RESIDUAL", constant::HAS_RESIDUAL),
            ("HAS_BIAS", constant::HAS_BIAS),
            ("ACTIVATION", constant::ACTIVATION),
            ("KV_TYPE", constant::KV_TYPE),
            ("Q_NORM", constant::Q_NORM),
            ("K_NORM", constant::K_NORM),
            ("Q_ROPE", constant::Q_ROPE),
            ("K_ROPE", constant::K_ROPE),
            ("Q_WEIGHT", constant::Q_WEIGHT),
            ("K_WEIGHT", constant::K_WEIGHT),
            ("K_OUT", constant::K_OUT),
            ("NORMALISE", constant::NORMALISE),
            ("POOLING", constant::POOLING),
            ("ROPE", constant::ROPE),
            ("BESTS", constant::BESTS),
            ("V_NORM", constant::V_NORM),
            ("WHOLE_ROWS", constant::WHOLE_ROWS),
            ("ROUTES", constant::ROUTES),
            ("KEY_BIAS", constant::KEY_BIAS),
            ("SIGMOID", constant::SIGMOID),
            ("GROUPS", constant::GROUPS),
            ("TILED", constant::TILED),
            ("STEP_PER_ROW", constant::STEP_PER_ROW),
        ] {
            let line = format!("#define FC_{name} {index} ");
            assert!(header.contains(&line), "{line}");
        }
    }

    /// The tables of points are the codecs', number for number.
    #[test]
    fn grids_are_those_of_the_codecs() {
        use weights::codec::grid::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
        let text = header("linear/grid.h").unwrap();
        let tables: [(&str, &[u16]); 6] = [
            ("IQ1", &IQ1),
            ("IQ2_XXS", &IQ2_XXS),
            ("IQ2_XS", &IQ2_XS),
            ("IQ2_S", &IQ2_S),
            ("IQ3_XXS", &IQ3_XXS),
            ("IQ3_S", &IQ3_S),
        ];
        for (name, expected) in tables {
            let (_, rest) = text.split_once(&format!("{name}_POINTS[{}] = {{", expected.len())).unwrap();
            let numbers = rest.split_once('}').unwrap().0.split(',').map(str::trim);
            let hexadecimal = |n: &str| u16::from_str_radix(n.strip_prefix("0x").unwrap(), 16).unwrap();
            let found: Vec<u16> = numbers.filter(|n| !n.is_empty()).map(hexadecimal).collect();
            assert!(found == expected, "{name}");
        }
        assert_eq!(text.matches("constant ushort ").count(), tables.len());
    }
}
