//! Planes of matrices on the GPU, as `kernels/linear/codes.cuh` and `blocks.cuh` describe them, and
//! the conversion of a file's blocks to planes. This module needs no GPU.

use weights::codec;
use weights::codec::k_scales::unpack_q3_scales;
use weights::{Affine, BlockType, PlaneSlices, ScaleType};

/// The file of `kernels/linear/` whose kernels multiply by a matrix.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The file named after a type.
    Block(BlockType),
    /// The file for affine integers with this number of bits.
    Affine(u8),
}

/// Strides of the planes of a matrix, in bytes per row; 0: it has no such plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Stride of the codes.
    pub codes: usize,
    /// Stride of the upper bits of codes.
    pub high: usize,
    /// Stride of the scales.
    pub scales: usize,
    /// Stride of the data of 8 groups (256 columns), or of an affine type's offsets.
    pub supers: usize,
}

impl Strides {
    /// Bytes of a row in all planes.
    pub fn row(&self) -> usize {
        self.codes + self.high + self.scales + self.supers
    }

    /// The four strides, in the order of the fields.
    pub fn all(&self) -> [usize; 4] {
        [self.codes, self.high, self.scales, self.supers]
    }
}

/// The format of a matrix on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The kernels that multiply by it.
    pub kind: Kind,
    /// Number of columns.
    pub n_cols: usize,
    /// Strides of its planes.
    pub strides: Strides,
    /// Type of the scales of an affine type: `SCALE_*`, and `SYMMETRIC` if it has no offsets.
    pub scale_kind: u32,
    /// Size of a group of an affine type: `32 << group_shift` columns.
    pub group_shift: u32,
    /// The type of the matrix in its file.
    pub block: BlockType,
}

/// `SCALE_F32` (linear/arguments.h).
pub const SCALE_F32: u32 = 0;
/// `SCALE_F16`
pub const SCALE_F16: u32 = 1;
/// `SCALE_BF16`
pub const SCALE_BF16: u32 = 2;
/// `SYMMETRIC`
pub const SYMMETRIC: u32 = 4;

impl Kind {
    /// Path of the file, such as `linear/q4_0.cu`.
    pub fn file(self) -> String {
        match self {
            Kind::Block(block) => format!("linear/{}.cu", block.name().to_lowercase()),
            Kind::Affine(bits) => format!("linear/affine{bits}.cu"),
        }
    }

    /// Name of the C++ type that reads its rows (`linear/rows.cuh`), such as `RowsOfBlocks<Q4_0>`.
    pub fn rows(self) -> String {
        let (of, name) = match self {
            Kind::Block(block) if block.is_float() => ("Floats", block.name().to_uppercase()),
            Kind::Block(block) => ("Blocks", block.name().to_uppercase()),
            Kind::Affine(bits) => ("Blocks", format!("AFFINE{bits}")),
        };
        format!("RowsOf{of}<{name}>")
    }

    /// Returns true if activations stay in f32 with few rows.
    pub fn is_float(self) -> bool {
        matches!(self, Kind::Block(block) if block.is_float())
    }
}

impl Stored {
    /// The format for a type and a number of columns. Types without kernels are decoded to floats.
    /// This keeps their values, except that the rarest types are rounded to F16.
    pub fn new(block: BlockType, n_cols: usize) -> Stored {
        use BlockType::*;
        let groups = n_cols.div_ceil(32);
        let supers = n_cols.div_ceil(256);
        let planes = |codes: usize, high: usize, scales: usize, of_super: usize| Strides {
            codes: codes * groups,
            high: high * groups,
            scales: scales * groups,
            supers: of_super * supers,
        };
        let mut stored = Stored {
            kind: Kind::Block(block),
            n_cols,
            strides: Strides::default(),
            scale_kind: 0,
            group_shift: 0,
            block,
        };
        stored.strides = match block {
            F32 => planes(128, 0, 0, 0),
            F16 | BF16 => planes(64, 0, 0, 0),
            Q4_0 | IQ4_NL => planes(16, 0, 2, 0),
            Q4_1 => planes(16, 0, 4, 0),
            Q5_0 => planes(16, 4, 2, 0),
            Q5_1 => planes(16, 4, 4, 0),
            Q8_0 => planes(32, 0, 2, 0),
            Q2_K => planes(8, 0, 2, 4),
            Q3_K => planes(8, 4, 2, 2),
            Q4_K => planes(16, 0, 0, 16),
            Q5_K => planes(16, 4, 0, 16),
            Q6_K => planes(16, 8, 2, 2),
            IQ4_XS => planes(16, 0, 1, 2),
            MXFP4 => planes(16, 0, 1, 0),
            I8_ROWS => Strides { scales: 4, ..planes(32, 0, 0, 0) },
            Affine(affine) => {
                let (codes, high) = match affine.bits() {
                    2 => (8, 0),
                    3 => (8, 4),
                    4 => (16, 0),
                    5 => (16, 4),
                    6 => (16, 8),
                    _ => (32, 0),
                };
                let (bytes, scale_kind) = match affine.scale() {
                    ScaleType::F32 => (4, SCALE_F32),
                    ScaleType::F16 => (2, SCALE_F16),
                    ScaleType::BF16 | ScaleType::E8M0 => (2, SCALE_BF16),
                };
                stored.kind = Kind::Affine(affine.bits() as u8);
                stored.scale_kind = scale_kind | if affine.is_symmetric() { SYMMETRIC } else { 0 };
                stored.group_shift = (affine.group() / 32).trailing_zeros();
                let scales = n_cols.div_ceil(affine.group()) * bytes;
                let supers = if affine.is_symmetric() { 0 } else { scales };
                Strides { scales, supers, ..planes(codes, high, 0, 0) }
            }
            I16_ROWS => {
                stored.kind = Kind::Block(F32);
                planes(128, 0, 0, 0)
            }
            IQ2_XXS | IQ2_XS | IQ3_XXS | IQ1_S | IQ3_S | IQ2_S | IQ1_M | TQ1_0 | TQ2_0 | NVFP4 | Q1_0 => {
                stored.kind = Kind::Block(F16);
                planes(64, 0, 0, 0)
            }
        };
        stored
    }

    /// Writes a row of each plane to `out`, from the row's bytes, scales and offsets in the file.
    /// `scratch` holds decoded values.
    pub fn pack_row(&self, row: &[u8], planes: PlaneSlices<'_>, out: [&mut [u8]; 4], scratch: &mut Vec<f32>) {
        use BlockType::*;
        let [codes, high, scales, supers] = out;
        match self.block {
            F32 | F16 | BF16 => codes[..row.len()].copy_from_slice(row),
            Q4_0 | IQ4_NL | Q4_1 | Q5_0 | Q5_1 | Q8_0 | MXFP4 => {
                let groups = self.n_cols.div_ceil(32);
                let (n_scales, n_bits, n_codes) =
                    (scales.len() / groups, high.len() / groups, codes.len() / groups);
                for (i, block) in row.chunks_exact(n_scales + n_bits + n_codes).enumerate() {
                    scales[n_scales * i..][..n_scales].copy_from_slice(&block[..n_scales]);
                    if n_bits > 0 {
                        let bits = word(&block[n_scales..]);
                        high[4 * i..][..4].copy_from_slice(&pack_bits(|value| (bits >> value & 1) as u8));
                    }
                    codes[n_codes * i..][..n_codes].copy_from_slice(&block[n_scales + n_bits..]);
                }
            }
            Q4_K => pack_q4_k(row, codes, supers),
            Q5_K => pack_q5_k(row, [codes, high, supers]),
            Q6_K => pack_q6_k(row, [codes, high, scales, supers]),
            Q2_K => pack_q2_k(row, [codes, scales, supers]),
            Q3_K => pack_q3_k(row, [codes, high, scales, supers]),
            IQ4_XS => pack_iq4_xs(row, [codes, scales, supers]),
            I8_ROWS => {
                codes[..row.len()].copy_from_slice(row);
                // The file has a divisor. The codec multiplies by its rounded inverse.
                scales.copy_from_slice(&(1.0 / f32::from_bits(word(planes.scales))).to_le_bytes());
            }
            Affine(affine) => pack_affine(affine, self.n_cols, row, planes, [codes, high, scales, supers]),
            I16_ROWS => {
                scratch.resize(self.n_cols, 0.0);
                codec::dequantize_rows(self.block, self.n_cols, row, planes, scratch);
                let numbers = codes.chunks_exact_mut(4).zip(scratch.iter());
                numbers.for_each(|(out, x)| out.copy_from_slice(&x.to_le_bytes()));
            }
            IQ2_XXS | IQ2_XS | IQ3_XXS | IQ1_S | IQ3_S | IQ2_S | IQ1_M | TQ1_0 | TQ2_0 | NVFP4 | Q1_0 => {
                scratch.resize(self.n_cols, 0.0);
                codec::dequantize_rows(self.block, self.n_cols, row, planes, scratch);
                let numbers = codes.chunks_exact_mut(2).zip(scratch.iter());
                numbers.for_each(|(out, x)| out.copy_from_slice(&half::f16::from_f32(*x).to_le_bytes()));
            }
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Packs 32 values of 4 bits: byte `j` has value `j` in its low nibble, `j + 16` in its high one.
fn pack_nibbles(q: impl Fn(usize) -> u8) -> [u8; 16] {
    std::array::from_fn(|j| q(j) | q(j + 16) << 4)
}

/// Packs 32 values of 2 bits: byte `4 h + i` has value `16 h + 4 k + i` at bit `2 k`.
fn pack_crumbs(q: impl Fn(usize) -> u8) -> [u8; 8] {
    std::array::from_fn(|byte| {
        (0..4).fold(0, |bits, k| bits | q(16 * (byte / 4) + 4 * k + byte % 4) << (2 * k))
    })
}

/// Packs 32 single bits: byte `i` has value `4 k + i` at bit `k`.
fn pack_bits(q: impl Fn(usize) -> u8) -> [u8; 4] {
    std::array::from_fn(|i| (0..8).fold(0, |bits, k| bits | q(4 * k + i) << k))
}

/// Packs the headers and the low 4 bits of the codes of Q4_K and Q5_K, whose blocks have the low
/// bits at their end.
fn pack_headers_and_nibbles(block: &[u8], i: usize, codes: &mut [u8], supers: &mut [u8]) {
    let low = &block[block.len() - 128..];
    supers[16 * i..][..16].copy_from_slice(&block[..16]);
    for (g, out) in codes[128 * i..][..128].chunks_exact_mut(16).enumerate() {
        out.copy_from_slice(&pack_nibbles(|l| low[32 * (g / 2) + l] >> (4 * (g % 2)) & 15));
    }
}

fn pack_q4_k(row: &[u8], codes: &mut [u8], supers: &mut [u8]) {
    for (i, block) in row.chunks_exact(144).enumerate() {
        pack_headers_and_nibbles(block, i, codes, supers);
    }
}

fn pack_q5_k(row: &[u8], [codes, high, supers]: [&mut [u8]; 3]) {
    for (i, block) in row.chunks_exact(176).enumerate() {
        pack_headers_and_nibbles(block, i, codes, supers);
        for (g, out) in high[32 * i..][..32].chunks_exact_mut(4).enumerate() {
            out.copy_from_slice(&pack_bits(|l| block[16 + l] >> g & 1));
        }
    }
}

fn pack_q6_k(row: &[u8], [codes, high, scales, supers]: [&mut [u8]; 4]) {
    for (i, block) in row.chunks_exact(210).enumerate() {
        supers[2 * i..][..2].copy_from_slice(&block[208..]);
        scales[16 * i..][..16].copy_from_slice(&block[192..208]);
        for g in 0..8 {
            let (half, j) = (g / 4, g % 4);
            let low = |l: usize| block[64 * half + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            let upper = |l: usize| block[128 + 32 * half + l] >> (2 * j) & 3;
            let at = 8 * i + g;
            codes[16 * at..][..16].copy_from_slice(&pack_nibbles(low));
            high[8 * at..][..8].copy_from_slice(&pack_crumbs(upper));
        }
    }
}

fn pack_q2_k(row: &[u8], [codes, scales, supers]: [&mut [u8]; 3]) {
    for (i, block) in row.chunks_exact(84).enumerate() {
        scales[16 * i..][..16].copy_from_slice(&block[..16]);
        supers[4 * i..][..4].copy_from_slice(&block[80..]);
        for g in 0..8 {
            let q = |l: usize| block[16 + 32 * (g / 4) + l] >> (2 * (g % 4)) & 3;
            codes[8 * (8 * i + g)..][..8].copy_from_slice(&pack_crumbs(q));
        }
    }
}

fn pack_q3_k(row: &[u8], [codes, high, scales, supers]: [&mut [u8]; 4]) {
    for (i, block) in row.chunks_exact(110).enumerate() {
        supers[2 * i..][..2].copy_from_slice(&block[108..]);
        let mut packed = [0; 12];
        packed.copy_from_slice(&block[96..108]);
        let unpacked = unpack_q3_scales(&packed);
        scales[16 * i..][..16].iter_mut().zip(unpacked).for_each(|(out, s)| *out = s as u8);
        for g in 0..8 {
            let q = |l: usize| block[32 + 32 * (g / 4) + l] >> (2 * (g % 4)) & 3;
            let at = 8 * i + g;
            codes[8 * at..][..8].copy_from_slice(&pack_crumbs(q));
            high[4 * at..][..4].copy_from_slice(&pack_bits(|l| block[l] >> g & 1));
        }
    }
}

fn pack_iq4_xs(row: &[u8], [codes, scales, supers]: [&mut [u8]; 3]) {
    for (i, block) in row.chunks_exact(136).enumerate() {
        supers[2 * i..][..2].copy_from_slice(&block[..2]);
        let upper = u16::from_le_bytes([block[2], block[3]]);
        for g in 0..8 {
            let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
            let scale = (low | ((upper >> (2 * g) & 3) << 4) as u8) as i8 - 32;
            scales[8 * i + g] = scale as u8;
        }
        codes[128 * i..][..128].copy_from_slice(&block[8..]);
    }
}

fn pack_affine(affine: Affine, n_cols: usize, row: &[u8], planes: PlaneSlices<'_>, out: [&mut [u8]; 4]) {
    let [codes, high, scales, supers] = out;
    let bits = affine.bits();
    for (i, packed) in row.chunks_exact(4 * bits).enumerate().take(n_cols / 32) {
        let mut q = [0u8; 32];
        for (eight, packed) in q.chunks_exact_mut(8).zip(packed.chunks_exact(bits)) {
            eight.copy_from_slice(&codec::affine::unpack_8(bits, packed));
        }
        match bits {
            2 | 3 => codes[8 * i..][..8].copy_from_slice(&pack_crumbs(|l| q[l] & 3)),
            4..=6 => codes[16 * i..][..16].copy_from_slice(&pack_nibbles(|l| q[l] & 15)),
            // Kernels read signed bytes, so 128 is subtracted.
            _ => codes[32 * i..][..32].iter_mut().zip(q).for_each(|(out, q)| *out = q ^ 0x80),
        }
        match bits {
            3 => high[4 * i..][..4].copy_from_slice(&pack_bits(|l| q[l] >> 2)),
            5 => high[4 * i..][..4].copy_from_slice(&pack_bits(|l| q[l] >> 4)),
            6 => high[8 * i..][..8].copy_from_slice(&pack_crumbs(|l| q[l] >> 4)),
            _ => {}
        }
    }
    for (from, to) in [(planes.scales, scales), (planes.biases, supers)] {
        match affine.scale() {
            ScaleType::E8M0 => {
                // Converts E8M0 to BF16: the byte is the exponent. 0 means 2^-127, which is
                // subnormal.
                for (out, e) in to.chunks_exact_mut(2).zip(from) {
                    let number = if *e == 0 { 0x0040 } else { u16::from(*e) << 7 };
                    out.copy_from_slice(&number.to_le_bytes());
                }
            }
            ScaleType::F32 | ScaleType::F16 | ScaleType::BF16 => to.copy_from_slice(&from[..to.len()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_testing::{Rng, block_types, stored};

    /// Column `c` of a row, decoded from its planes as `kernels/linear/blocks.cuh` does.
    fn decode(stored: &Stored, planes: [&[u8]; 4], c: usize) -> f32 {
        let [codes, high, scales, supers] = planes;
        let (g, l) = (c / 32, c % 32);
        let nibble = || i32::from(codes[16 * g + l % 16] >> (4 * (l / 16)) & 15);
        let crumb = |plane: &[u8]| i32::from(plane[8 * g + 4 * (l / 16) + l % 4] >> (2 * (l % 16 / 4)) & 3);
        let bit = || i32::from(high[4 * g + l % 4] >> (l / 4) & 1);
        let byte = || i32::from(codes[32 * g + l] as i8);
        let f16 =
            |plane: &[u8], i: usize| half::f16::from_le_bytes([plane[2 * i], plane[2 * i + 1]]).to_f32();
        let k_min = || {
            let header = &supers[16 * (g / 8)..][..16];
            let mut packed = [0; 12];
            packed.copy_from_slice(&header[4..]);
            let (s, m) = codec::k_scales::unpack_scales_mins(&packed);
            (f16(header, 0) * f32::from(s[g % 8]), f16(header, 1) * f32::from(m[g % 8]))
        };
        let signed = |i: usize| f32::from(scales[i] as i8);
        use BlockType::*;
        match stored.kind {
            Kind::Block(F32) => f32::from_bits(word(&codes[4 * c..])),
            Kind::Block(F16) => f16(codes, c),
            Kind::Block(BF16) => {
                f32::from_bits(u32::from(u16::from_le_bytes([codes[2 * c], codes[2 * c + 1]])) << 16)
            }
            Kind::Block(Q4_0) => f16(scales, g) * (nibble() - 8) as f32,
            Kind::Block(Q4_1) => f16(scales, 2 * g) * nibble() as f32 + f16(scales, 2 * g + 1),
            Kind::Block(Q5_0) => f16(scales, g) * (nibble() + 16 * bit() - 16) as f32,
            Kind::Block(Q5_1) => f16(scales, 2 * g) * (nibble() + 16 * bit()) as f32 + f16(scales, 2 * g + 1),
            Kind::Block(Q8_0) => f16(scales, g) * byte() as f32,
            Kind::Block(Q4_K) => k_min().0 * nibble() as f32 - k_min().1,
            Kind::Block(Q5_K) => k_min().0 * (nibble() + 16 * bit()) as f32 - k_min().1,
            Kind::Block(Q6_K) => {
                f16(supers, g / 8) * signed(2 * g + l / 16) * (nibble() + 16 * crumb(high) - 32) as f32
            }
            Kind::Block(Q3_K) => {
                f16(supers, g / 8) * signed(2 * g + l / 16) * (crumb(codes) + 4 * bit() - 4) as f32
            }
            Kind::Block(Q2_K) => {
                let s = scales[2 * g + l / 16];
                let (d, m) = (f16(supers, 2 * (g / 8)), f16(supers, 2 * (g / 8) + 1));
                d * f32::from(s & 15) * crumb(codes) as f32 - m * f32::from(s >> 4)
            }
            Kind::Block(IQ4_NL) => {
                f16(scales, g) * f32::from(codec::iq4_nl::KVALUES_IQ4NL[nibble() as usize])
            }
            Kind::Block(IQ4_XS) => {
                f16(supers, g / 8) * signed(g) * f32::from(codec::iq4_nl::KVALUES_IQ4NL[nibble() as usize])
            }
            Kind::Block(MXFP4) => {
                codec::mxfp4::e8m0_half(scales[g]) * f32::from(codec::mxfp4::KVALUES_MXFP4[nibble() as usize])
            }
            Kind::Block(I8_ROWS) => f32::from_bits(word(scales)) * byte() as f32,
            Kind::Affine(bits) => {
                let number = |plane: &[u8], i: usize| match stored.scale_kind & 3 {
                    SCALE_F32 => f32::from_bits(word(&plane[4 * i..])),
                    SCALE_F16 => f16(plane, i),
                    _ => {
                        f32::from_bits(u32::from(u16::from_le_bytes([plane[2 * i], plane[2 * i + 1]])) << 16)
                    }
                };
                let q = match bits {
                    2 => crumb(codes),
                    3 => crumb(codes) + 4 * bit(),
                    4 => nibble(),
                    5 => nibble() + 16 * bit(),
                    6 => nibble() + 16 * crumb(high),
                    _ => byte() + 128,
                };
                let (i, symmetric) = (g >> stored.group_shift, stored.scale_kind & SYMMETRIC != 0);
                let zero = if symmetric { 1 << (bits - 1) } else { 0 };
                let offset = if symmetric { 0.0 } else { number(supers, i) };
                number(scales, i) * (q - zero) as f32 + offset
            }
            other => panic!("{other:?}"),
        }
    }

    /// The planes of every type decode to the values of its codec, except types that are rounded to
    /// F16.
    #[test]
    fn planes_hold_what_the_codecs_say() {
        let mut rng = Rng::new(7);
        for block in block_types() {
            let n_cols = 512;
            let weight = stored(&mut rng, "w", 3, n_cols, block, 0.3);
            let stored = Stored::new(block, n_cols);
            let mut expected = vec![0.0; 3 * n_cols];
            weight.decode_rows(0..3, &mut expected);
            let rounded = BlockType::GGUF_EXTRA.contains(&block);
            for row in 0..3 {
                let planes = weight.planes.as_slices().rows(block, n_cols, row..row + 1);
                let mut out = stored.strides.all().map(|n| vec![0u8; n]);
                let bytes = &weight.data[row * weight.row_bytes()..][..weight.row_bytes()];
                stored.pack_row(bytes, planes, out.each_mut().map(|plane| &mut plane[..]), &mut vec![]);
                for c in 0..n_cols {
                    let found = decode(&stored, out.each_ref().map(|plane| &plane[..]), c);
                    let wanted = expected[row * n_cols + c];
                    let bound = if rounded { wanted.abs() / 1024.0 + 1e-7 } else { wanted.abs() * 1e-6 };
                    assert!(
                        (found - wanted).abs() <= bound,
                        "{block} row {row} column {c}: {found}, expected {wanted}"
                    );
                }
            }
        }
    }

    /// Rows are padded with zeros to a multiple of 32 columns.
    #[test]
    fn rows_are_whole_groups() {
        assert_eq!(Stored::new(BlockType::F16, 33).strides.codes, 128);
        assert_eq!(
            Stored::new(BlockType::I8_ROWS, 33).strides,
            Strides { codes: 64, high: 0, scales: 4, supers: 0 }
        );
        let q4_0 = Stored::new(BlockType::Q4_0, 64);
        assert_eq!((q4_0.strides.row(), q4_0.kind.file()), (36, "linear/q4_0.cu".to_owned()));
    }
}
