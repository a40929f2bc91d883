//! Types with the same values in another order: GGUF's plain 32-value blocks are affine groups
//! whose scales are inside the block. Integers and f16 scales are moved without rounding, and the
//! reverse conversion restores the same bytes.
//!
//! | block | affine type | integers |
//! |---|---|---|
//! | Q4_0, Q5_0 | 4 and 5 bits, symmetric | the same |
//! | Q8_0 | 8 bits, symmetric | 128 added: signed in Q8_0, unsigned here |
//! | Q4_1, Q5_1 | 4 and 5 bits | the same |
//!
//! All have groups of 32 and f16 scales.

use super::affine::{pack_8, unpack_8};
use super::q5_0::{pack_q5, unpack_q5};
use crate::{Affine, BlockType, ScaleType};

/// Types that have an affine twin.
const TWINS: [(BlockType, usize, bool); 5] = [
    (BlockType::Q4_0, 4, true),
    (BlockType::Q4_1, 4, false),
    (BlockType::Q5_0, 5, true),
    (BlockType::Q5_1, 5, false),
    (BlockType::Q8_0, 8, true),
];

/// The affine type with the same values as `block`.
pub fn affine_twin(block: BlockType) -> Option<Affine> {
    let (_, bits, symmetric) = TWINS.into_iter().find(|twin| twin.0 == block)?;
    Affine::new(bits, 32, ScaleType::F16, symmetric)
}

/// The block type with the same values as the affine type.
pub fn block_twin(affine: Affine) -> Option<BlockType> {
    TWINS.into_iter().map(|twin| twin.0).find(|&block| affine_twin(block) == Some(affine))
}

/// Converts blocks to affine groups. Returns `None` and writes nothing if `block` has no affine
/// twin.
///
/// # Panics
/// `src` is not whole blocks, or another slice does not have room for exactly as many groups.
pub fn to_affine(
    block: BlockType,
    src: &[u8],
    dst: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
) -> Option<Affine> {
    let affine = affine_twin(block)?;
    let n = check(affine, block, src.len(), dst.len(), scales.len(), biases.len());
    let header = block.block_bytes() - if block == BlockType::Q8_0 { 32 } else { 16 };
    for i in 0..n {
        let (header, qs) = src[i * block.block_bytes()..][..block.block_bytes()].split_at(header);
        scales[2 * i..][..2].copy_from_slice(&header[..2]);
        if !affine.is_symmetric() {
            biases[2 * i..][..2].copy_from_slice(&header[2..4]);
        }
        let mut halves = [0; 16];
        halves.copy_from_slice(&qs[..16]);
        let q: [u8; 32] = match affine.bits() {
            8 => std::array::from_fn(|j| qs[j] ^ 0x80),
            5 => unpack_q5(&high_bits(header), &halves),
            _ => std::array::from_fn(|j| halves[j % 16] >> (4 * (j / 16)) & 15),
        };
        let packed = &mut dst[i * affine.group_bytes()..][..affine.group_bytes()];
        for (q, packed) in q.as_chunks().0.iter().zip(packed.chunks_exact_mut(affine.bits())) {
            pack_8(affine.bits(), *q, packed);
        }
    }
    Some(affine)
}

/// Inverse of [`to_affine`]. Returns `None` and writes nothing if the affine type has no twin.
///
/// # Panics
/// As [`to_affine`].
pub fn from_affine(
    affine: Affine,
    src: &[u8],
    scales: &[u8],
    biases: &[u8],
    dst: &mut [u8],
) -> Option<BlockType> {
    let block = block_twin(affine)?;
    let n = check(affine, block, dst.len(), src.len(), scales.len(), biases.len());
    let header = block.block_bytes() - if block == BlockType::Q8_0 { 32 } else { 16 };
    for i in 0..n {
        let mut q = [0u8; 32];
        let packed = &src[i * affine.group_bytes()..][..affine.group_bytes()];
        for (q, packed) in q.as_chunks_mut().0.iter_mut().zip(packed.chunks_exact(affine.bits())) {
            *q = unpack_8(affine.bits(), packed);
        }
        let (header, qs) = dst[i * block.block_bytes()..][..block.block_bytes()].split_at_mut(header);
        header[..2].copy_from_slice(&scales[2 * i..][..2]);
        if !affine.is_symmetric() {
            header[2..4].copy_from_slice(&biases[2 * i..][..2]);
        }
        match affine.bits() {
            8 => qs.copy_from_slice(&q.map(|q| q ^ 0x80)),
            5 => {
                let (high, low) = pack_q5(&q);
                let at = header.len() - 4;
                header[at..].copy_from_slice(&high);
                qs.copy_from_slice(&low);
            }
            _ => qs.copy_from_slice(&std::array::from_fn::<u8, 16, _>(|j| q[j] | q[j + 16] << 4)),
        }
    }
    Some(block)
}

/// Last four bytes of a Q5 block's header.
fn high_bits(header: &[u8]) -> [u8; 4] {
    let mut high = [0; 4];
    high.copy_from_slice(&header[header.len() - 4..]);
    high
}

/// Returns the number of groups.
fn check(
    affine: Affine,
    block: BlockType,
    blocks: usize,
    packed: usize,
    scales: usize,
    biases: usize,
) -> usize {
    let n = blocks / block.block_bytes();
    assert_eq!(blocks, n * block.block_bytes(), "{block}: whole blocks");
    assert_eq!(packed, n * affine.group_bytes(), "{affine}: bytes for {n} groups");
    assert_eq!(scales, 2 * n, "{affine}: bytes of scales");
    assert_eq!(biases, if affine.is_symmetric() { 0 } else { 2 * n }, "{affine}: bytes of biases");
    n
}
