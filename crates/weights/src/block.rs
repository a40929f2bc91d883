//! Storage types of tensors.

/// Storage type of a row of values: plain numbers, or blocks of `block_len` values in `block_bytes`
/// bytes.
///
/// Names and layouts are ggml's, except for [`Self::Affine`], [`Self::I8_ROWS`] and
/// [`Self::I16_ROWS`]. Those three store their scales apart from the packed values, in
/// [`Planes`](crate::Planes); see [`Self::has_planes`].
#[allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    /// Groups of unsigned integers with a scale, and an offset unless symmetric. Used by MLX and
    /// `.base`.
    Affine(Affine),
    /// Signed bytes, with one f32 divisor a row. Used by CTranslate2.
    I8_ROWS,
    /// Signed 16-bit integers, with one f32 divisor a row. Used by CTranslate2.
    I16_ROWS,
}

/// GGUF id, name, values of a block, and bytes of a block.
struct Facts(Option<u32>, &'static str, usize, usize);

impl BlockType {
    /// Every type that [`codec::quantize_row`](crate::codec::quantize_row) writes.
    pub const ALL: [BlockType; 16] = {
        use BlockType::*;
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4]
    };

    /// GGUF's other types, which can be decoded but not written.
    pub const GGUF_EXTRA: [BlockType; 11] = {
        use BlockType::*;
        [IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0, Q1_0, NVFP4]
    };

    const fn facts(self) -> Facts {
        use BlockType::*;
        match self {
            F32 => Facts(Some(0), "F32", 1, 4),
            F16 => Facts(Some(1), "F16", 1, 2),
            BF16 => Facts(Some(30), "BF16", 1, 2),
            Q4_0 => Facts(Some(2), "Q4_0", 32, 18),
            Q4_1 => Facts(Some(3), "Q4_1", 32, 20),
            Q5_0 => Facts(Some(6), "Q5_0", 32, 22),
            Q5_1 => Facts(Some(7), "Q5_1", 32, 24),
            Q8_0 => Facts(Some(8), "Q8_0", 32, 34),
            Q2_K => Facts(Some(10), "Q2_K", 256, 84),
            Q3_K => Facts(Some(11), "Q3_K", 256, 110),
            Q4_K => Facts(Some(12), "Q4_K", 256, 144),
            Q5_K => Facts(Some(13), "Q5_K", 256, 176),
            Q6_K => Facts(Some(14), "Q6_K", 256, 210),
            IQ2_XXS => Facts(Some(16), "IQ2_XXS", 256, 66),
            IQ2_XS => Facts(Some(17), "IQ2_XS", 256, 74),
            IQ3_XXS => Facts(Some(18), "IQ3_XXS", 256, 98),
            IQ1_S => Facts(Some(19), "IQ1_S", 256, 50),
            IQ4_NL => Facts(Some(20), "IQ4_NL", 32, 18),
            IQ3_S => Facts(Some(21), "IQ3_S", 256, 110),
            IQ2_S => Facts(Some(22), "IQ2_S", 256, 82),
            IQ4_XS => Facts(Some(23), "IQ4_XS", 256, 136),
            IQ1_M => Facts(Some(29), "IQ1_M", 256, 56),
            TQ1_0 => Facts(Some(34), "TQ1_0", 256, 54),
            TQ2_0 => Facts(Some(35), "TQ2_0", 256, 66),
            MXFP4 => Facts(Some(39), "MXFP4", 32, 17),
            NVFP4 => Facts(Some(40), "NVFP4", 64, 36),
            Q1_0 => Facts(Some(41), "Q1_0", 128, 18),
            Affine(affine) => Facts(None, affine.name(), affine.group(), affine.group_bytes()),
            I8_ROWS => Facts(None, "I8_ROWS", 1, 1),
            I16_ROWS => Facts(None, "I16_ROWS", 1, 2),
        }
    }

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes of one block, without separate scales.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Bytes of a row of `n_cols` values; `n_cols` must be a multiple of [`Self::block_len`].
    pub const fn row_bytes(self, n_cols: usize) -> usize {
        n_cols / self.block_len() * self.block_bytes()
    }

    /// Bytes of a row's scales in [`Planes::scales`](crate::Planes::scales); 0 for a type without
    /// separate scales.
    pub const fn row_scale_bytes(self, n_cols: usize) -> usize {
        if let BlockType::Affine(affine) = self {
            n_cols / affine.group() * affine.scale().bytes()
        } else if matches!(self, BlockType::I8_ROWS | BlockType::I16_ROWS) {
            4
        } else {
            0
        }
    }

    /// Bytes of a row's offsets in [`Planes::biases`](crate::Planes::biases); 0 for a type without
    /// offsets.
    pub const fn row_bias_bytes(self, n_cols: usize) -> usize {
        if let BlockType::Affine(affine) = self
            && !affine.is_symmetric()
        {
            self.row_scale_bytes(n_cols)
        } else {
            0
        }
    }

    /// True if a tensor of this type stores its scales apart from the packed values, in
    /// [`Planes`](crate::Planes).
    pub const fn has_planes(self) -> bool {
        self.row_scale_bytes(self.block_len()) > 0
    }

    /// True if the values are plain floats.
    pub const fn is_float(self) -> bool {
        matches!(self, BlockType::F32 | BlockType::F16 | BlockType::BF16)
    }

    /// True if [`codec::quantize_row`](crate::codec::quantize_row) writes this type.
    pub fn has_quantizer(self) -> bool {
        Self::ALL.contains(&self)
    }

    /// The type with this GGUF id.
    pub fn from_gguf_id(id: u32) -> Option<BlockType> {
        Self::ALL.into_iter().chain(Self::GGUF_EXTRA).find(|t| t.gguf_id() == Some(id))
    }

    /// Id in GGUF, if the format has this type.
    pub const fn gguf_id(self) -> Option<u32> {
        self.facts().0
    }

    /// Usual name of the type: `Q4_K`. For an affine type it has only the bits;
    /// [`Display`](std::fmt::Display) prints all.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let BlockType::Affine(affine) = self { affine.fmt(f) } else { f.write_str(self.name()) }
    }
}

/// Groups of `group` unsigned integers `q` of `bits` bits with a scale, and an offset unless
/// symmetric:
///
/// `value = q * scale + bias`, or `(q - 2^(bits - 1)) * scale` for a symmetric type.
///
/// The integers of a row are one little-endian stream of bits: value `i` is at bit `i * bits`, so 8
/// values have `bits` bytes. This is the packing of MLX and of `.base`. Scales and offsets are in
/// [`Planes`](crate::Planes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    bits: u8,
    group: u8,
    scale: ScaleType,
    symmetric: bool,
}

impl Affine {
    /// Supported widths.
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];

    /// Supported group sizes.
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// The type, if `bits` and `group` are supported.
    pub fn new(bits: usize, group: usize, scale: ScaleType, symmetric: bool) -> Option<Affine> {
        (Self::BITS.contains(&bits) && Self::GROUPS.contains(&group)).then_some(Affine {
            bits: bits as u8,
            group: group as u8,
            scale,
            symmetric,
        })
    }

    /// Bits of an integer, one of [`Self::BITS`].
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Values that share a scale, one of [`Self::GROUPS`].
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// Number type of scales and offsets.
    pub const fn scale(self) -> ScaleType {
        self.scale
    }

    /// True if there are no offsets, and integers are relative to the middle.
    pub const fn is_symmetric(self) -> bool {
        self.symmetric
    }

    /// Bytes of a group's integers.
    pub const fn group_bytes(self) -> usize {
        self.group() * self.bits() / 8
    }

    const fn name(self) -> &'static str {
        match self.bits {
            2 => "AFFINE2",
            3 => "AFFINE3",
            4 => "AFFINE4",
            5 => "AFFINE5",
            6 => "AFFINE6",
            _ => "AFFINE8",
        }
    }
}

impl std::fmt::Display for Affine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let symmetric = if self.symmetric { "_SYM" } else { "" };
        write!(f, "{}_G{}_{}{symmetric}", self.name(), self.group, self.scale.name())
    }
}

/// Number type of separate scales, little-endian.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleType {
    F32,
    F16,
    BF16,
    /// A power of two: byte `e` is `2^(e - 127)`.
    E8M0,
}

impl ScaleType {
    /// All types.
    pub const ALL: [ScaleType; 4] = [ScaleType::F32, ScaleType::F16, ScaleType::BF16, ScaleType::E8M0];

    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleType::F32 => 4,
            ScaleType::F16 | ScaleType::BF16 => 2,
            ScaleType::E8M0 => 1,
        }
    }

    /// Usual name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleType::F32 => "F32",
            ScaleType::F16 => "F16",
            ScaleType::BF16 => "BF16",
            ScaleType::E8M0 => "E8M0",
        }
    }
}

impl std::fmt::Display for ScaleType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_back_to_their_types() {
        for block in BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA) {
            assert_eq!(BlockType::from_gguf_id(block.gguf_id().unwrap()), Some(block));
            assert!(!block.has_planes(), "{block}");
        }
        assert_eq!(BlockType::from_gguf_id(24), None);
    }

    #[test]
    fn only_affine_types_that_exist_can_be_made() {
        assert!(Affine::new(7, 64, ScaleType::F16, false).is_none());
        assert!(Affine::new(4, 256, ScaleType::F16, false).is_none());
        let affine = Affine::new(3, 128, ScaleType::BF16, false).unwrap();
        let block = BlockType::Affine(affine);
        assert_eq!((block.name(), block.to_string().as_str()), ("AFFINE3", "AFFINE3_G128_BF16"));
        assert_eq!((block.row_bytes(256), block.row_scale_bytes(256), block.row_bias_bytes(256)), (96, 4, 4));
        let symmetric = BlockType::Affine(Affine::new(8, 32, ScaleType::E8M0, true).unwrap());
        assert_eq!(symmetric.to_string(), "AFFINE8_G32_E8M0_SYM");
        assert_eq!((symmetric.row_scale_bytes(64), symmetric.row_bias_bytes(64)), (2, 0));
        assert!(block.has_planes() && BlockType::I8_ROWS.has_planes() && !block.has_quantizer());
    }
}
