//! KvWrite, and the pages of keys and values.

use std::io;

use memmap2::MmapMut;
use weights::BlockType;
use weights::codec::{dequantize_row, quantize_row};

use device::key_bias::KnownKeys;
use device::{KvLayerId, KvLayout, KvType, kv_bytes, kv_fp8, kv_words};

/// Half of a layer's part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Keys: the first half.
    Keys,
    /// Values: the second half.
    Values,
}

/// Pages of all KV groups, in the layout that [`KvLayout`] describes: page, layer, keys then
/// values, head, position.
pub struct KvPages {
    /// An anonymous mapping for each group: the system commits its memory on the first write.
    groups: Vec<MmapMut>,
    /// Place of each layer.
    layers: Vec<LayerPages>,
    /// Known part of each layer's keys, which is not stored; empty if all keys are stored
    /// unchanged.
    known: Vec<Option<KnownKeys>>,
    kind: KvType,
    page_len: usize,
}

/// Place of a layer's keys and values.
#[derive(Clone, Copy)]
struct LayerPages {
    group: usize,
    /// Bytes from one page of the group to the next.
    page_bytes: usize,
    /// Bytes before this layer's part of a page.
    offset: usize,
    n_kv_heads: usize,
    head_dim: usize,
    /// Number of halves: 2, or 1 if values equal keys.
    n_halves: usize,
}

impl KvPages {
    /// Reserves `n_pages` pages for each group.
    pub fn new(layout: &KvLayout, kind: KvType, page_len: usize, n_pages: &[usize]) -> io::Result<KvPages> {
        let bytes = |group: usize| layout.page_bytes(group, kind, page_len);
        let reserve = |(group, n): (usize, &usize)| MmapMut::map_anon((n * bytes(group)).max(1));
        let layer = |index: usize| {
            let id = KvLayerId(index as u32);
            let (group, place) = layout.group_of(id);
            let before = &layout.groups[group].layers[..place];
            LayerPages {
                group,
                page_bytes: bytes(group),
                offset: before.iter().map(|id| layout.layer_page_bytes(*id, kind, page_len)).sum(),
                n_kv_heads: layout.layer(id).n_kv_heads,
                head_dim: layout.layer(id).head_dim,
                n_halves: layout.layer(id).n_halves(kind),
            }
        };
        Ok(KvPages {
            groups: n_pages.iter().enumerate().map(reserve).collect::<io::Result<_>>()?,
            layers: (0..layout.layers.len()).map(layer).collect(),
            known: vec![],
            kind,
            page_len,
        })
    }

    /// Pages whose keys are stored without the known part of each layer.
    pub fn without(self, known: Vec<Option<KnownKeys>>) -> KvPages {
        KvPages { known, ..self }
    }

    /// Stores the vectors of all heads for one position, converted to the KV type.
    pub fn write(
        &mut self,
        layer: KvLayerId,
        half: Half,
        table: &[u32],   // pages of the sequence
        position: usize, //
        heads: &[f32],   // (n_kv_heads, head_dim)
    ) {
        let place = self.layers[layer.0 as usize];
        for (head, vector) in heads.chunks_exact(place.head_dim).enumerate() {
            let mut key;
            let vector = match self.known(layer) {
                Some(known) if half == Half::Keys => {
                    key = vector.to_vec();
                    known.add(head, position, -1.0, &mut key);
                    &key
                }
                _ => vector,
            };
            let range = self.range(place, half, table, head, position);
            let out = &mut self.groups[place.group][range];
            match self.kind {
                KvType::F32 => quantize_row(BlockType::F32, vector, out),
                KvType::F16 => quantize_row(BlockType::F16, vector, out),
                KvType::Q8_0 => quantize_row(BlockType::Q8_0, vector, out),
                KvType::I16 => write_words(half, vector, out),
                KvType::I8 => write_bytes(half, vector, out),
                KvType::Fp8 => kv_fp8::write(vector, out),
            }
        }
    }

    /// Loads one head's vector of one position.
    pub fn read(
        &self,
        layer: KvLayerId,
        half: Half,
        table: &[u32],      // pages of the sequence
        position: usize,    //
        head: usize,        //
        vector: &mut [f32], // (head_dim)
    ) {
        let place = self.layers[layer.0 as usize];
        let range = self.range(place, half, table, head, position);
        let bytes = &self.groups[place.group][range];
        match self.kind {
            KvType::F32 => dequantize_row(BlockType::F32, bytes, vector),
            KvType::F16 => dequantize_row(BlockType::F16, bytes, vector),
            KvType::Q8_0 => dequantize_row(BlockType::Q8_0, bytes, vector),
            KvType::I16 => read_words(bytes, vector),
            KvType::I8 => read_bytes(half, bytes, vector),
            KvType::Fp8 => kv_fp8::read(bytes, vector),
        }
        if let (Half::Keys, Some(known)) = (half, self.known(layer)) {
            known.add(head, position, 1.0, vector);
        }
    }

    /// Copies all layers of a page.
    pub fn copy(&mut self, group: usize, from: u32, to: u32) {
        let Some(bytes) = self.page_bytes(group) else { return };
        let from = from as usize * bytes;
        self.groups[group].copy_within(from..from + bytes, to as usize * bytes);
    }

    /// Bytes of a page, all its layers; `None` if the group has no layers.
    pub fn page(&self, group: usize, page: u32) -> Option<&[u8]> {
        let bytes = self.page_bytes(group)?;
        self.groups[group].get(page as usize * bytes..)?.get(..bytes)
    }

    /// Like [`Self::page`], but mutable.
    pub fn page_mut(&mut self, group: usize, page: u32) -> Option<&mut [u8]> {
        let bytes = self.page_bytes(group)?;
        self.groups[group].get_mut(page as usize * bytes..)?.get_mut(..bytes)
    }

    /// Fills a page with bytes that are NaN in every KV type, so that a read before the next write
    /// is noticed.
    pub fn poison(&mut self, group: usize, page: u32) {
        let Some(bytes) = self.page_bytes(group) else { return };
        self.groups[group][page as usize * bytes..][..bytes].fill(0xff);
    }

    fn known(&self, layer: KvLayerId) -> Option<&KnownKeys> {
        self.known.get(layer.0 as usize)?.as_ref()
    }

    fn page_bytes(&self, group: usize) -> Option<usize> {
        self.layers.iter().find(|layer| layer.group == group).map(|layer| layer.page_bytes)
    }

    fn range(
        &self,
        place: LayerPages,
        half: Half,
        table: &[u32],
        head: usize,
        position: usize,
    ) -> std::ops::Range<usize> {
        let page = table[position / self.page_len] as usize;
        let head = if half == Half::Keys || place.n_halves == 1 { head } else { place.n_kv_heads + head };
        let vector = head * self.page_len + position % self.page_len;
        let bytes = self.kind.vector_bytes(place.head_dim);
        let start = page * place.page_bytes + place.offset + vector * bytes;
        start..start + bytes
    }
}

/// Writes a vector of type [`KvType::I16`]: its scale, then its numbers.
fn write_words(half: Half, vector: &[f32], out: &mut [u8]) {
    let scale = match half {
        Half::Keys => kv_words::key_scale(vector),
        Half::Values => kv_words::value_scale(vector),
    };
    let (first, words) = out.split_at_mut(4);
    first.copy_from_slice(&scale.to_le_bytes());
    for (out, x) in words.chunks_exact_mut(2).zip(vector) {
        out.copy_from_slice(&kv_words::to_word(*x, kv_words::factor(scale)).to_le_bytes());
    }
}

/// Reads a vector that [`write_words`] wrote.
fn read_words(bytes: &[u8], vector: &mut [f32]) {
    let scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (x, word) in vector.iter_mut().zip(bytes[4..].chunks_exact(2)) {
        *x = scale * f32::from(i16::from_le_bytes([word[0], word[1]]));
    }
}

/// Writes a vector of type [`KvType::I8`]: its scale, then its numbers. Keys are rotated.
fn write_bytes(half: Half, vector: &[f32], out: &mut [u8]) {
    let mut vector = vector.to_vec();
    if half == Half::Keys {
        kv_bytes::rotate(&mut vector);
    }
    let scale = kv_bytes::scale(&vector);
    let (first, bytes) = out.split_at_mut(4);
    first.copy_from_slice(&scale.to_le_bytes());
    for (out, x) in bytes.iter_mut().zip(&vector) {
        *out = kv_bytes::to_byte(*x, kv_words::factor(scale)) as u8;
    }
}

/// Reads a vector that [`write_bytes`] wrote.
fn read_bytes(half: Half, bytes: &[u8], vector: &mut [f32]) {
    let scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (x, byte) in vector.iter_mut().zip(&bytes[4..]) {
        *x = scale * f32::from(*byte as i8);
    }
    if half == Half::Keys {
        kv_bytes::rotate(vector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::KvLayer;

    /// Every vector of every layer, head, position and half has its own bytes, in every KV type.
    #[test]
    fn vectors_do_not_share_bytes() {
        let layer = |n_kv_heads, head_dim, window| KvLayer {
            n_kv_heads,
            head_dim,
            window,
            encoder_states: None,
            values_are_keys: false,
        };
        let layout = KvLayout::new(vec![layer(2, 32, None), layer(1, 64, Some(20)), layer(3, 96, None)]);
        for kind in [KvType::F32, KvType::F16, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8] {
            let mut pages = KvPages::new(&layout, kind, 16, &[3, 2]).unwrap();
            let tables: [&[u32]; 2] = [&[2, 0], &[1, 0]];
            // A different number for each vector.
            let mut vectors = vec![];
            for (index, layer) in layout.layers.iter().enumerate() {
                let id = KvLayerId(index as u32);
                for (number, half) in [Half::Keys, Half::Values].into_iter().enumerate() {
                    let first = 1 + index * 1000 + number * 500;
                    vectors.extend((0..32).map(|p| (id, half, p, (first + p * layer.n_kv_heads) as f32)));
                }
            }
            for (id, half, position, value) in &vectors {
                let layer = layout.layer(*id);
                let columns = 0..layer.n_kv_heads * layer.head_dim;
                let heads: Vec<f32> = columns.map(|i| value + (i / layer.head_dim) as f32).collect();
                pages.write(*id, *half, tables[layout.group_of(*id).0], *position, &heads);
            }
            for (id, half, position, value) in &vectors {
                let (layer, table) = (layout.layer(*id), tables[layout.group_of(*id).0]);
                let mut vector = vec![0.0; layer.head_dim];
                for head in 0..layer.n_kv_heads {
                    pages.read(*id, *half, table, *position, head, &mut vector);
                    let expected = value + head as f32;
                    // F16 holds integers up to 2048; Q8_0's scale is F16, off by 2^-11 at most; FP8
                    // has three bits of mantissa.
                    let bound = match kind {
                        KvType::F32 => 0.0,
                        KvType::F16 | KvType::I16 | KvType::I8 | KvType::Q8_0 => expected * 1e-3,
                        KvType::Fp8 => expected / 16.0,
                    };
                    assert!(
                        vector.iter().all(|v| (v - expected).abs() <= bound),
                        "{kind:?} {vector:?} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn pages_are_copied_whole_and_poisoned() {
        let layout = KvLayout::new(vec![
            KvLayer {
                n_kv_heads: 1,
                head_dim: 32,
                window: None,
                encoder_states: None,
                values_are_keys: false
            };
            2
        ]);
        for kind in [KvType::F32, KvType::F16, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8] {
            let mut pages = KvPages::new(&layout, kind, 16, &[3]).unwrap();
            let last = KvLayerId(1);
            pages.write(last, Half::Values, &[0], 15, &[1.0; 32]);
            pages.copy(0, 0, 2);
            let mut vector = [0.0; 32];
            pages.read(last, Half::Values, &[2], 15, 0, &mut vector);
            // Q8_0: 127 times the F16 number nearest to 1/127
            assert!(vector.iter().all(|v| (v - 1.0).abs() < 1e-3));
            pages.poison(0, 0);
            pages.read(last, Half::Values, &[0], 15, 0, &mut vector);
            assert!(vector.iter().all(|v| v.is_nan()));
            pages.read(last, Half::Values, &[2], 15, 0, &mut vector);
            // Q8_0: 127 times the F16 number nearest to 1/127
            assert!(vector.iter().all(|v| (v - 1.0).abs() < 1e-3));
        }
    }
}
