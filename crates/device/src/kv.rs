//! Shape of the KV cache: layers, groups of layers that share a page table, and pages.

/// Index of a layer of the KV cache. A layer that reads another layer's keys and values has no
/// index of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvLayerId(pub u32);

/// Entry of a page table without a page: outside the window, or not reached yet.
pub const PAGE_NONE: u32 = u32::MAX;

/// Index of a recurrent layer's state, in [`KvLayout::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// Value of [`crate::StateUse::from`] at the start of a sequence, when the state is all zeros.
pub const STATE_NONE: u32 = u32::MAX;

/// One layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of one head, for keys and for values.
    pub head_dim: usize,
    /// Positions that must be kept, the row's own included; `None` keeps all.
    pub window: Option<usize>,
    /// `Some(n)`: the layer holds exactly `n` encoder states, which one plan writes in one step and
    /// others read by cross-attention; it has no window. `None`: the layer holds the positions of
    /// the sequence itself.
    pub encoder_states: Option<usize>,
    /// True if values equal keys: one vector is written, and KV types that store both alike keep it
    /// once.
    pub values_are_keys: bool,
}

/// Layers with the same window, or the same number of encoder states. They share one page table,
/// and a page holds all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Positions that must be kept; `None` keeps all.
    pub window: Option<usize>,
    /// Value of [`KvLayer::encoder_states`] in every layer of the group.
    pub encoder_states: Option<usize>,
    /// The layers, in ascending order.
    pub layers: Vec<KvLayerId>,
}

/// All layers and how they are grouped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    /// The layers.
    pub layers: Vec<KvLayer>,
    /// The groups: full attention first, then windows ascending, then encoder states, fewest first.
    pub groups: Vec<KvGroup>,
    /// Length of each recurrent layer's state, in f32 numbers. It does not depend on the length of
    /// a sequence.
    pub states: Vec<usize>,
}

/// Storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value.
    F16,
    /// 2 bytes a value and 4 a vector: `i16` with a scale ([`kv_words`](crate::kv_words)). Vectors
    /// are padded to a multiple of 32 values.
    I16,
    /// 1 byte a value and 4 a vector: `i8` with a scale ([`kv_bytes`](crate::kv_bytes)). Vectors
    /// are padded to a multiple of 32 values.
    I8,
    /// 34 bytes for 32 values, like the block type Q8_0. Head sizes must be multiples of 32.
    Q8_0,
    /// 1 byte a value and 4 a vector: FP8 (E4M3) with a scale ([`kv_fp8`](crate::kv_fp8)). Vectors
    /// are padded to a multiple of 4 values.
    Fp8,
}

impl KvType {
    /// Returns true if a key with a large bias loses precision. With integers and one scale, a
    /// large column makes the steps of all other columns coarse; FP8 loses mantissa bits. Such keys
    /// are stored without their bias ([`key_bias`](crate::key_bias)).
    pub const fn is_quantized(self) -> bool {
        match self {
            KvType::F32 | KvType::F16 => false,
            KvType::I16 | KvType::I8 | KvType::Q8_0 | KvType::Fp8 => true,
        }
    }

    /// Bytes of one head's vector of `head_dim` values.
    pub const fn vector_bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => head_dim * 4,
            KvType::F16 => head_dim * 2,
            KvType::I16 => crate::kv_words::vector_bytes(head_dim),
            KvType::I8 => crate::kv_bytes::vector_bytes(head_dim),
            KvType::Q8_0 => head_dim / 32 * 34,
            KvType::Fp8 => crate::kv_fp8::vector_bytes(head_dim),
        }
    }
}

impl KvLayer {
    /// Halves of a page: 2 for keys and values, 1 if values equal keys and the type stores both
    /// alike.
    pub const fn n_halves(&self, kind: KvType) -> usize {
        if self.values_are_keys && !kind.is_quantized() { 1 } else { 2 }
    }
}

impl KvLayout {
    /// Groups layers by encoder states and window.
    pub fn new(layers: Vec<KvLayer>) -> KvLayout {
        let mut kinds: Vec<_> = layers.iter().map(|l| (l.encoder_states, l.window)).collect();
        kinds.sort();
        kinds.dedup();
        let groups = kinds
            .into_iter()
            .map(|(encoder_states, window)| KvGroup {
                window,
                encoder_states,
                layers: (0..layers.len() as u32)
                    .map(KvLayerId)
                    .filter(|id| {
                        let layer = &layers[id.0 as usize];
                        (layer.encoder_states, layer.window) == (encoder_states, window)
                    })
                    .collect(),
            })
            .collect();
        KvLayout { layers, groups, states: Vec::new() }
    }

    /// Length of a sequence's state: all recurrent layers, one after another.
    pub fn state_len(&self) -> usize {
        self.states.iter().sum()
    }

    /// Range of a layer's part within a sequence's state.
    pub fn state_range(&self, id: StateId) -> std::ops::Range<usize> {
        let index = id.0 as usize;
        let start = self.states[..index].iter().sum();
        start..start + self.states[index]
    }

    /// The layer.
    pub fn layer(&self, id: KvLayerId) -> &KvLayer {
        &self.layers[id.0 as usize]
    }

    /// The group of a layer, and its index in the group.
    pub fn group_of(&self, id: KvLayerId) -> (usize, usize) {
        let find = |g: &KvGroup| g.layers.iter().position(|l| *l == id);
        self.groups.iter().enumerate().find_map(|(g, group)| Some((g, find(group)?))).unwrap_or((0, 0))
    }

    /// Bytes of one layer's part of a page: keys `[n_kv_heads][page_len][head_dim]`, and values in
    /// the same shape. Each device orders them within the part in its own way.
    pub fn layer_page_bytes(&self, id: KvLayerId, kind: KvType, page_len: usize) -> usize {
        let layer = self.layer(id);
        layer.n_halves(kind) * layer.n_kv_heads * page_len * kind.vector_bytes(layer.head_dim)
    }

    /// Bytes of one page of a group: its layers' parts, one after another.
    pub fn page_bytes(&self, group: usize, kind: KvType, page_len: usize) -> usize {
        self.groups[group].layers.iter().map(|id| self.layer_page_bytes(*id, kind, page_len)).sum()
    }
}
