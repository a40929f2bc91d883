//! docs/codecs.md: size and error of each weight type. The test computes the page, except its part
//! on KV types (`crates/engine/tests/kv_types.rs`), and compares it.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use crate::common;
use std::fmt::Write;
use std::path::Path;

use formats::convert::{Target, Wanted};
use weights::codec::{affine, dequantize_rows, quantize_row};
use weights::{Access, BlockType, PlaneSlices};

const N_ROWS: usize = 128;
const N_COLS: usize = 1536;

/// Start of the part on KV types.
const KV_TYPES: &str = "\n# KV types\n";

/// A catalog model that is stored in f32.
const MODEL: &str = "minilm:l6";
const TENSOR: &str = "encoder.layer.0.output.dense.weight";

/// Values of `--to`.
const TYPES: [&str; 33] = [
    "f16",
    "bf16",
    "q8",
    "q8-g32",
    "q8-sym",
    "q8-e8m0",
    "q6",
    "q6-g32",
    "q5",
    "q5-g32",
    "q4",
    "q4-g32",
    "q4-g32-f16",
    "q4-g128",
    "q4-sym",
    "q4-e8m0",
    "q3",
    "q3-g64",
    "q2",
    "q2-g64",
    "gguf:q8_0",
    "gguf:q6_k",
    "gguf:q5_k",
    "gguf:q5_1",
    "gguf:q5_0",
    "gguf:q4_k",
    "gguf:q4_1",
    "gguf:q4_0",
    "gguf:iq4_xs",
    "gguf:iq4_nl",
    "gguf:mxfp4",
    "gguf:q3_k",
    "gguf:q2_k",
];

/// Normally distributed values, by the Box-Muller transform of SplitMix64: the same in each run.
fn gaussian(n: usize) -> Vec<f32> {
    let mut state = 2026u64;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut normal = || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| normal() as f32).collect()
}

fn real() -> Vec<f32> {
    let folder = common::ok(&["pull", MODEL]);
    let checkpoint = formats::open(Path::new(folder.trim()), Access::Map).unwrap();
    let tensor = checkpoint.tensor(TENSOR).unwrap();
    assert_eq!((tensor.n_cols(), tensor.block), (N_COLS, BlockType::F32));
    let mut values = tensor.to_f32();
    values.truncate(N_ROWS * N_COLS);
    values
}

/// Bits of a value, including scales and offsets.
fn bits(block: BlockType) -> f64 {
    let bytes = block.row_bytes(N_COLS) + block.row_scale_bytes(N_COLS) + block.row_bias_bytes(N_COLS);
    bytes as f64 * 8.0 / N_COLS as f64
}

/// RMS and maximum of the errors, both relative to the RMS of the values.
fn errors(block: BlockType, values: &[f32]) -> (f64, f64) {
    let mut parts = [block.row_bytes(N_COLS), block.row_scale_bytes(N_COLS), block.row_bias_bytes(N_COLS)]
        .map(|row| vec![0; row * N_ROWS]);
    let [data, scales, biases] = &mut parts;
    match block {
        BlockType::Affine(affine) => affine::quantize(affine, values, data, scales, biases),
        _ => quantize_row(block, values, data),
    }
    let mut decoded = vec![0.0; values.len()];
    dequantize_rows(block, N_COLS, data, PlaneSlices { scales, biases }, &mut decoded);
    let mean = |sum: f64| (sum / values.len() as f64).sqrt();
    let size = mean(values.iter().map(|&v| f64::from(v).powi(2)).sum());
    let error = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
    let all = || values.iter().zip(&decoded).map(error);
    (mean(all().map(|e| e * e).sum()) / size, all().fold(0.0, f64::max) / size)
}

#[test]
fn the_page_is_up_to_date() {
    let (gaussian, real) = (gaussian(N_ROWS * N_COLS), real());
    let mut page = format!(
        "# Size and error of the weight types\n\n\
         Errors of Ingle's own quantisers (plain least squares, no importance matrix), in percent of the\n\
         root mean square of the values: \"RMS\" is the root mean square of the errors, \"max\" the largest.\n\
         \"Gaussian\" are {} normally distributed values; \"real\" are the first {N_ROWS} rows of\n\
         `{TENSOR}` of all-MiniLM-L6-v2 (f32). Bits include scales and\n\
         offsets. The first column is the argument of `ingle convert --to`.\n\n\
         Written by `crates/cli/tests/codecs_table.rs`.\n\n\
         | --to | type | bits per weight | Gaussian RMS | Gaussian max | real RMS | real max |\n\
         | ---- | ---- | --------------: | -----------: | -----------: | -------: | -------: |\n",
        N_ROWS * N_COLS
    );
    for to in TYPES {
        let Wanted::Type { block, .. } = Target::parse(to).unwrap().wanted else { panic!("{to}") };
        let (a, b) = (errors(block, &gaussian), errors(block, &real));
        let percent = [a.0, a.1, b.0, b.1].map(|e| format!("{:.3}", e * 100.0)).join(" | ");
        writeln!(page, "| {to} | {block} | {:.4} | {percent} |", bits(block)).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/codecs.md");
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let (found, kv_types) = found.split_once(KV_TYPES).unwrap_or((&found, ""));
    if found != page {
        page = page + KV_TYPES + kv_types;
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("codecs.md");
        std::fs::write(&new, page).unwrap();
        panic!("docs/codecs.md is out of date; the new page is {}", new.display());
    }
}
