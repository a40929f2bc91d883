//! Every type on every instruction set of this machine, compared with f64 arithmetic on the values
//! of the codecs. Shapes are odd, and weights end where readable memory ends.

mod activation;
mod memory;

use super::activation::*;
use super::*;
use device_testing::{Rng, block_types, random_bytes};
use memory::{Aligned, Guarded};
use weights::codec::dequantize_rows;
use weights::{Affine, BlockType, PlaneSlices, ScaleType};

/// Bytes of a matrix: values, scales and offsets.
#[derive(Default)]
struct MatrixBytes {
    values: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Every type, and affine types that have no quantiser.
fn all_types() -> impl Iterator<Item = BlockType> {
    let unsigned = [(4, 32), (8, 128)]
        .into_iter()
        .filter_map(|(bits, group)| Affine::new(bits, group, ScaleType::E8M0, false).map(BlockType::Affine));
    block_types().into_iter().chain(unsigned)
}

/// Rows of random bytes, every bit pattern of the codes, with scales of plausible size.
fn random_weights(block: BlockType, n_rows: usize, n_cols: usize, random: &mut Rng) -> MatrixBytes {
    let plane = |row_bytes: usize, random: &mut Rng| -> Vec<u8> {
        let mut bytes = vec![0; n_rows * row_bytes];
        match block {
            BlockType::Affine(affine) => {
                for bytes in bytes.chunks_exact_mut(affine.scale().bytes()) {
                    let value = random.normal() * 0.02;
                    match affine.scale() {
                        ScaleType::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
                        ScaleType::F16 => bytes.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
                        ScaleType::BF16 => bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
                        ScaleType::E8M0 => bytes[0] = 118 + random.bits() as u8 % 12,
                    }
                }
            }
            _ => {
                for bytes in bytes.as_chunks_mut().0 {
                    *bytes = (random.normal().abs() * 1000.0 + 50.0).to_le_bytes();
                }
            }
        }
        bytes
    };
    let scales = plane(block.row_scale_bytes(n_cols), random);
    let biases = plane(block.row_bias_bytes(n_cols), random);
    MatrixBytes { values: random_values(block, n_rows, n_cols, random), scales, biases }
}

fn random_values(block: BlockType, n_rows: usize, n_cols: usize, random: &mut Rng) -> Vec<u8> {
    use BlockType::*;
    if BlockType::GGUF_EXTRA.contains(&block) {
        return random_bytes(random, block, n_rows * n_cols, 0.1);
    }
    let mut bytes: Vec<u8> = (0..n_rows * block.row_bytes(n_cols)).map(|_| random.bits() as u8).collect();
    let f16_fields: &[usize] = match block {
        F32 | F16 | BF16 => {
            for value in bytes.chunks_exact_mut(block.block_bytes()) {
                weights::codec::quantize_row(block, &[random.normal()], value);
            }
            return bytes;
        }
        MXFP4 => {
            for block in bytes.chunks_exact_mut(17) {
                block[0] = 118 + block[0] % 12;
            }
            return bytes;
        }
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q6_K => &[208],
        Q3_K => &[108],
        Q2_K => &[80, 82],
        _ => return bytes,
    };
    for chunk in bytes.chunks_exact_mut(block.block_bytes()) {
        for &at in f16_fields {
            let scale = half::f16::from_f32(random.normal() * 0.02);
            chunk[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

/// Weights that a quantiser made from normal values; random weights for a type without one.
fn quantised_weights(block: BlockType, n_rows: usize, n_cols: usize, random: &mut Rng) -> MatrixBytes {
    if !block.has_quantizer() {
        return random_weights(block, n_rows, n_cols, random);
    }
    let mut values = vec![0; n_rows * block.row_bytes(n_cols)];
    for row in values.chunks_exact_mut(block.row_bytes(n_cols)) {
        let values: Vec<f32> = (0..n_cols).map(|_| random.normal()).collect();
        weights::codec::quantize_row(block, &values, row);
    }
    MatrixBytes { values, ..MatrixBytes::default() }
}

/// A problem with its answer in f64.
struct Case {
    block: BlockType,
    n_rows: usize,
    n_cols: usize,
    n: usize,
    values: Guarded,
    scales: Guarded,
    biases: Guarded,
    acts: Aligned,
    stride: usize,
    /// Activation rows rounded to BF16, for kernels that read BF16.
    rounded: Aligned,
    /// `(n, n_rows)` products with the quantised activations.
    exact: Vec<f64>,
    /// `(n, n_rows)` sums of the magnitudes of the products.
    magnitude: Vec<f64>,
    /// `(n, n_rows)` products with the original activations.
    unquantised: Vec<f64>,
    /// `(n, n_rows)` bounds on the change of a product by quantising the activations.
    quantising: Vec<f64>,
}

impl Case {
    fn new(
        block: BlockType,
        n_rows: usize,
        n_cols: usize,
        n: usize,
        bytes: &MatrixBytes,
        random: &mut Rng,
    ) -> Case {
        let guarded = [&bytes.values, &bytes.scales, &bytes.biases].map(|bytes| Guarded::new(bytes));
        let kind = linear_kernel(block, n_cols, Isa::Scalar).activation;
        // A distance larger than the row, as for rows of a wider matrix.
        let stride = kind.row_bytes(n_cols).next_multiple_of(64) + 64 * (n_rows % 2);
        let mut acts = Aligned::new(stride * n);
        let mut x_original = Vec::new();
        let rounded_bytes = ActivationKind::Bf16.row_bytes(n_cols);
        let mut rounded = Aligned::new(rounded_bytes * n);
        let mut x_used = Vec::new();
        let mut half_step = Vec::new();
        for i in 0..n {
            let mut x: Vec<f32> = (0..n_cols).map(|_| random.normal()).collect();
            // Groups have very different sizes, and one is zero.
            for (g, group) in x.chunks_mut(32).enumerate() {
                let factor = [1.0, 30.0, 0.001, 0.0, 1.0][(g + i) % 5];
                group.iter_mut().for_each(|v| *v *= factor);
            }
            if block == BlockType::BF16 {
                // Numbers that kernels in BF16 do not round.
                x.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
            }
            let row = acts.as_mut_ptr().wrapping_add(i * stride);
            // SAFETY: each row has room for its form, and the scalar instruction set is always
            // available.
            unsafe {
                kind.write_row(Isa::Scalar, x.as_ptr(), n_cols, row);
                let row = rounded.as_mut_ptr().add(i * rounded_bytes);
                ActivationKind::Bf16.write_row(Isa::Scalar, x.as_ptr(), n_cols, row);
            }
            match kind {
                ActivationKind::F32 | ActivationKind::Bf16 => {
                    x_used.extend(x.iter().map(|&v| f64::from(v)));
                    half_step.extend(x.iter().map(|_| 0.0));
                }
                ActivationKind::Q8 => {
                    // SAFETY: the row was written above.
                    unsafe {
                        let q8 = ActRow(row).q8(n_cols);
                        for k in 0..n_cols {
                            let scale = f64::from(*q8.scale.add(k / 32));
                            x_used.push(f64::from(*q8.q.add(k)) * scale);
                            half_step.push(scale * 0.5);
                        }
                    }
                }
            }
            x_original.extend(x.iter().map(|&v| f64::from(v)));
        }
        let mut values = vec![0f32; n_cols];
        let (mut exact, mut magnitude) = (vec![0f64; n * n_rows], vec![0f64; n * n_rows]);
        let (mut unquantised, mut quantising) = (exact.clone(), exact.clone());
        for r in 0..n_rows {
            let row_bytes = block.row_bytes(n_cols);
            let [row, scales, biases] = [0, 1, 2].map(|i| guarded[i].bytes());
            let planes = PlaneSlices { scales, biases }.rows(block, n_cols, r..r + 1);
            dequantize_rows(block, n_cols, &row[r * row_bytes..(r + 1) * row_bytes], planes, &mut values);
            for i in 0..n {
                for k in 0..n_cols {
                    let (w, x) = (f64::from(values[k]), x_used[i * n_cols + k]);
                    exact[i * n_rows + r] += w * x;
                    magnitude[i * n_rows + r] += (w * x).abs();
                    unquantised[i * n_rows + r] += w * x_original[i * n_cols + k];
                    quantising[i * n_rows + r] += w.abs() * half_step[i * n_cols + k];
                }
            }
        }
        let [values, scales, biases] = guarded;
        Case {
            block,
            n_rows,
            n_cols,
            n,
            values,
            scales,
            biases,
            acts,
            stride,
            rounded,
            exact,
            magnitude,
            unquantised,
            quantising,
        }
    }

    fn w(&self) -> WeightRows {
        let planes = PlaneSlices { scales: self.scales.bytes(), biases: self.biases.bytes() };
        WeightRows::new(self.block, self.n_cols, self.values.bytes(), planes)
    }

    fn kernel(&self, isa: Isa) -> LinearKernel {
        linear_kernel(self.block, self.n_cols, isa)
    }

    /// The matrix as the kernels of an instruction set read it. Interleaved tiles end where
    /// readable memory ends.
    fn matrix(&self, isa: Isa) -> (WeightRows, Option<Guarded>) {
        let Some(interleave) = self.kernel(isa).interleave else { return (self.w(), None) };
        let tile_bytes = (interleave.tile_bytes)(self.n_cols);
        assert_eq!(tile_bytes % 64, 0);
        let mut tiles = Aligned::new(tile_bytes * self.n_rows.div_ceil(TILE_ROWS));
        for (tile, r0) in (0..self.n_rows).step_by(TILE_ROWS).enumerate() {
            let n_rows = TILE_ROWS.min(self.n_rows - r0);
            // SAFETY: the rows are rows of the matrix, and the tile has room for its bytes.
            unsafe {
                let out = tiles.as_mut_ptr().add(tile * tile_bytes);
                (interleave.tile)(self.w(), self.n_cols, r0, n_rows, out);
            }
        }
        let tiles = Guarded::new(&tiles.bytes()[..tile_bytes * self.n_rows.div_ceil(TILE_ROWS)]);
        (self.w().interleaved(tiles.bytes().as_ptr(), self.n_cols, interleave), Some(tiles))
    }

    /// The first `n` activation rows in the form that the kernels of an instruction set read.
    fn rows(&mut self, isa: Isa, n: usize) -> ActRows {
        match self.kernel(isa).activation {
            ActivationKind::Bf16 => {
                let stride = ActivationKind::Bf16.row_bytes(self.n_cols);
                ActRows { base: self.rounded.as_mut_ptr(), stride, n }
            }
            _ => ActRows { base: self.acts.as_mut_ptr(), stride: self.stride, n },
        }
    }

    fn gemv(&mut self, isa: Isa, i: usize, r0: usize, r1: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; r1 - r0];
        let (xs, (w, _tiles)) = (self.rows(isa, i + 1), self.matrix(isa));
        // SAFETY: the matrix, the activation row and `out` have the shapes of the case.
        unsafe { (self.kernel(isa).gemv)(w, self.n_cols, r0, r1, xs.row(i), out.as_mut_ptr()) };
        out
    }

    /// `(n, n_rows)` for the first `n` activation rows.
    fn gemm(&mut self, isa: Isa, n: usize) -> Vec<f32> {
        let kernel = self.kernel(isa);
        let mut scratch = Aligned::new((kernel.gemm_scratch_bytes)(self.n_cols));
        let mut out = vec![f32::NAN; n * self.n_rows];
        let xs = self.rows(isa, n);
        let (w, _tiles) = self.matrix(isa);
        for r0 in (0..self.n_rows).step_by(TILE_ROWS) {
            let n_rows = TILE_ROWS.min(self.n_rows - r0);
            let part = Part { r0, n_rows, k: 0, n: self.n_cols };
            let mut tile = vec![f32::NAN; n * TILE_ROWS];
            // SAFETY: the matrix, the activation rows, the scratch and `tile` have the shapes of
            // the case.
            unsafe { (kernel.gemm_tile)(w, self.n_cols, part, xs, scratch.as_mut_ptr(), tile.as_mut_ptr()) };
            for i in 0..n {
                for r in 0..n_rows {
                    out[i * self.n_rows + r0 + r] = tile[i * TILE_ROWS + r];
                }
            }
        }
        out
    }

    /// Like [`Self::gemm`], by the kernel for a few rows; `None` if there is none.
    fn few_rows(&mut self, isa: Isa, n: usize) -> Option<Vec<f32>> {
        let kernel = self.kernel(isa);
        let few_rows = kernel.few_rows?;
        let mut out = vec![f32::NAN; n * self.n_rows];
        let xs = self.rows(isa, n);
        for r0 in (0..self.n_rows).step_by(TILE_ROWS) {
            let n_rows = TILE_ROWS.min(self.n_rows - r0);
            let part = Part { r0, n_rows, k: 0, n: self.n_cols };
            let mut tile = vec![f32::NAN; n * TILE_ROWS];
            let no_scratch = std::ptr::null_mut();
            // SAFETY: the matrix, the activation rows and `tile` have the shapes of the case; the
            // kernel uses no scratch.
            unsafe { few_rows(self.w(), self.n_cols, part, xs, no_scratch, tile.as_mut_ptr()) };
            for i in 0..n {
                for r in 0..n_rows {
                    out[i * self.n_rows + r0 + r] = tile[i * TILE_ROWS + r];
                }
            }
        }
        Some(out)
    }

    fn check(&self, what: &str, isa: Isa, got: &[f32], first: usize) {
        for (j, &got) in got.iter().enumerate() {
            let j = first + j;
            // The inner products are exact integers, so the remaining error is the rounding of f32
            // sums. There are at most 24 groups and lanes here, each within 6e-8 of the magnitudes;
            // unsigned codes make these a few times larger.
            let bound = 1e-5 * self.magnitude[j] + 1e-12;
            let error = (f64::from(got) - self.exact[j]).abs();
            assert!(
                error <= bound,
                "{what} {} {isa}: (n_rows {}, n_cols {}, n {}) output {j}: {got}, expected {}, error {error:.3e} over {bound:.3e}",
                self.block,
                self.n_rows,
                self.n_cols,
                self.n,
                self.exact[j]
            );
            let error = (f64::from(got) - self.unquantised[j]).abs();
            assert!(
                error <= self.quantising[j] * 1.001 + bound,
                "{what} {} {isa}: {error:.3e} from the product with the activations before they were quantised",
                self.block
            );
        }
    }
}

/// Column counts: odd numbers of blocks, more than one pass of a panel, and arbitrary numbers for
/// plain types.
fn column_counts(block: BlockType) -> &'static [usize] {
    match block.block_len() {
        1 if block.has_planes() => &[1, 33, 64, 96, 517, 2048 + 96],
        1 => &[1, 7, 16, 33, 96, 160, 517],
        32 => &[32, 64, 96, 160, 1024 + 32, 2048 + 96],
        64 => &[64, 192, 320, 1024 + 64, 2048 + 192],
        128 => &[128, 384, 1024 + 128, 2048 + 128],
        _ => &[256, 512, 768, 1024 + 256],
    }
}

/// Least multiple of the block's length that is at least `n`.
fn whole_blocks(block: BlockType, n: usize) -> usize {
    n.next_multiple_of(block.block_len())
}

/// The kernels for a few rows guarantee the bits of `gemv`.
#[test]
fn few_rows_are_gemv_of_each() {
    let mut random = Rng::new(11);
    let mut n_kernels = 0;
    for (block, isa) in
        all_types().flat_map(|block| Isa::available().into_iter().map(move |isa| (block, isa)))
    {
        for &n_cols in column_counts(block) {
            if linear_kernel(block, n_cols, isa).few_rows.is_none() {
                continue;
            }
            n_kernels += 1;
            for n_rows in [1, 3, 16, 23] {
                let bytes = random_weights(block, n_rows, n_cols, &mut random);
                let mut case = Case::new(block, n_rows, n_cols, 15, &bytes, &mut random);
                let each: Vec<f32> = (0..15).flat_map(|i| case.gemv(isa, i, 0, n_rows)).collect();
                for n in 1..=15 {
                    let out = case.few_rows(isa, n).expect("the kernel is there");
                    assert_eq!(out, each[..n * n_rows], "{block} {isa} {n_rows} x {n_cols}, {n} rows");
                }
            }
        }
    }
    let has = |isa: &Isa| matches!(isa, Isa::Avx2 | Isa::Neon | Isa::Dotprod | Isa::I8mm);
    assert_eq!(n_kernels > 0, Isa::available().iter().any(has));
}

#[test]
fn gemv_agrees_with_f64() {
    let mut random = Rng::new(1);
    for block in all_types() {
        for (c, &n_cols) in column_counts(block).iter().enumerate() {
            for n_rows in (1..=9).chain([16, 33]) {
                let bytes = if (c + n_rows) % 2 == 0 {
                    random_weights(block, n_rows, n_cols, &mut random)
                } else {
                    quantised_weights(block, n_rows, n_cols, &mut random)
                };
                let mut case = Case::new(block, n_rows, n_cols, 1, &bytes, &mut random);
                for isa in Isa::available() {
                    let out = case.gemv(isa, 0, 0, n_rows);
                    case.check("gemv", isa, &out, 0);
                }
            }
        }
    }
}

#[test]
fn gemm_agrees_with_f64() {
    let mut random = Rng::new(2);
    for block in all_types() {
        for &n_cols in column_counts(block) {
            for (n_rows, n) in
                [(1, 1), (3, 2), (16, 3), (15, 7), (17, 8), (16, 9), (33, 17), (5, 33), (16, 12)]
            {
                let bytes = random_weights(block, n_rows, n_cols, &mut random);
                let mut case = Case::new(block, n_rows, n_cols, n, &bytes, &mut random);
                for isa in Isa::available() {
                    let out = case.gemm(isa, n);
                    case.check("gemm", isa, &out, 0);
                }
            }
        }
    }
}

#[test]
fn gemv_does_not_depend_on_how_rows_are_divided() {
    let mut random = Rng::new(3);
    for block in all_types() {
        let (n_rows, n_cols) = (45, whole_blocks(block, 224));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        let mut case = Case::new(block, n_rows, n_cols, 1, &bytes, &mut random);
        for isa in Isa::available() {
            let whole = case.gemv(isa, 0, 0, n_rows);
            // Interleaved rows must begin with a tile.
            let anywhere = [(1, 6), (3, 13), (12, 45)];
            let ranges = if case.kernel(isa).interleave.is_some() { &[][..] } else { &anywhere };
            for &(r0, r1) in [(0, 1), (0, 18), (16, 45), (32, 45), (16, 16)].iter().chain(ranges) {
                assert_eq!(case.gemv(isa, 0, r0, r1), whole[r0..r1], "{block} {isa} rows {r0}..{r1}");
            }
        }
    }
}

/// An embedding reads rows of the tiles that the head multiplies.
#[test]
fn interleaved_rows_have_the_values_of_the_file() {
    let mut random = Rng::new(6);
    for block in all_types() {
        let (n_rows, n_cols) = (21, whole_blocks(block, 352));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        let case = Case::new(block, n_rows, n_cols, 1, &bytes, &mut random);
        for isa in Isa::available() {
            let (matrix, _tiles) = case.matrix(isa);
            for row in 0..n_rows {
                let (mut found, mut expected) = (vec![f32::NAN; n_cols], vec![f32::NAN; n_cols]);
                let first = n_cols / 2 / block.block_len() * block.block_len();
                // SAFETY: the matrix has the row, and the columns are whole blocks.
                unsafe {
                    matrix.decode(row, 0..first, &mut found[..first]);
                    matrix.decode(row, first..n_cols, &mut found[first..]);
                    case.w().decode(row, 0..n_cols, &mut expected);
                }
                assert_eq!(found, expected, "{block} {isa} row {row}");
            }
        }
    }
}

#[test]
fn gemm_adds_as_gemv_where_it_says_so() {
    let mut random = Rng::new(5);
    for block in all_types() {
        let (n_rows, n_cols) = (21, whole_blocks(block, 1120));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        let mut case = Case::new(block, n_rows, n_cols, 14, &bytes, &mut random);
        for isa in
            Isa::available().into_iter().filter(|isa| case.kernel(*isa).gemm_adds_as_gemv).collect::<Vec<_>>()
        {
            let many = case.gemm(isa, 14);
            for i in 0..14 {
                assert_eq!(
                    case.gemv(isa, i, 0, n_rows),
                    many[i * n_rows..][..n_rows],
                    "{block} {isa} row {i}"
                );
            }
        }
    }
}

#[test]
fn gemm_does_not_depend_on_the_number_of_activation_rows() {
    let mut random = Rng::new(4);
    for block in all_types() {
        let (n_rows, n_cols) = (16, whole_blocks(block, 1120));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        // With this many rows every kernel unpacks its codes first, and has a rest of rows.
        let mut case = Case::new(block, n_rows, n_cols, 110, &bytes, &mut random);
        for isa in Isa::available() {
            let whole = case.gemm(isa, 110);
            for n in (1..=14).chain([29, 95, 96]) {
                assert_eq!(case.gemm(isa, n), whole[..n * n_rows], "{block} {isa} {n} rows");
            }
        }
    }
}

#[test]
fn gemm_equals_gemv_where_documented() {
    let mut random = Rng::new(5);
    for block in all_types() {
        let (n_rows, n_cols) = (17, whole_blocks(block, 416));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        let mut case = Case::new(block, n_rows, n_cols, 3, &bytes, &mut random);
        let rows: Vec<f32> = (0..3).flat_map(|i| case.gemv(Isa::Scalar, i, 0, n_rows)).collect();
        assert_eq!(case.gemm(Isa::Scalar, 3), rows, "{block}");
    }
}

/// The sums of a group's products are exact on all of Arm's instruction sets, and the other
/// operations are the same.
#[cfg(target_arch = "aarch64")]
#[test]
fn all_of_arm_gives_the_same_bits() {
    let arm: Vec<Isa> =
        Isa::available().into_iter().filter(|i| matches!(i, Isa::Neon | Isa::Dotprod | Isa::I8mm)).collect();
    let mut random = Rng::new(7);
    for block in all_types() {
        let (n_rows, n_cols) = (37, whole_blocks(block, 1184));
        let bytes = random_weights(block, n_rows, n_cols, &mut random);
        let mut case = Case::new(block, n_rows, n_cols, 11, &bytes, &mut random);
        for pair in arm.windows(2) {
            for n in [1, 2, 3, 4, 5, 6, 7, 11] {
                assert_eq!(case.gemm(pair[0], n), case.gemm(pair[1], n), "{block} {pair:?}, {n} rows");
            }
            // Types whose scales are stored apart have other sums of lanes.
            if case.kernel(pair[0]).interleave.is_some() {
                let [a, b] = [0, 1].map(|i| case.gemv(pair[i], 3, 0, n_rows));
                assert_eq!(a, b, "{block} {pair:?}");
            }
        }
    }
}
