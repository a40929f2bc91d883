//! Ids in GGUF files.

/// The type of a metadata value; the discriminants are the ids in the file.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this id.
    pub fn from_id(id: u32) -> Option<ValueType> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64]
            .into_iter()
            .find(|t| *t as u32 == id)
    }

    /// Bytes of a value; for a string or an array, of the smallest one.
    pub const fn min_bytes(self) -> usize {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => 1,
            U16 | I16 => 2,
            U32 | I32 | F32 => 4,
            Str | U64 | I64 | F64 => 8,
            Array => 12,
        }
    }
}

/// ggml's name of the tensor type with this id, whether Ingle supports it or not.
pub fn tensor_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        4 => "Q4_2 (withdrawn)",
        5 => "Q4_3 (withdrawn)",
        6 => "Q5_0",
        7 => "Q5_1",
        8 => "Q8_0",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        30 => "BF16",
        31 => "Q4_0_4_4 (withdrawn)",
        32 => "Q4_0_4_8 (withdrawn)",
        33 => "Q4_0_8_8 (withdrawn)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (withdrawn)",
        37 => "IQ4_NL_4_8 (withdrawn)",
        38 => "IQ4_NL_8_8 (withdrawn)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weights::BlockType;

    #[test]
    fn names_agree_with_the_block_types() {
        for block in BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA) {
            assert_eq!(block.gguf_id().and_then(tensor_type_name), Some(block.name()));
        }
    }
}
