//! Shapes of published models, and speeds that others publish for an M4 Pro.

/// Layers of one kind.
pub struct Layers {
    /// Number of such layers in a model.
    pub n: usize,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Number of positions that a row sees; `None`: all.
    pub window: Option<usize>,
    /// Values are the keys before their norm.
    pub keys_are_values: bool,
}

/// Returns layers that see all positions.
const fn full(n: usize, n_kv_heads: usize, head_dim: usize) -> Layers {
    Layers { n, n_kv_heads, head_dim, window: None, keys_are_values: false }
}

/// Experts of a layer.
#[derive(Clone, Copy)]
pub struct Experts {
    /// Number of experts in a layer.
    pub n: usize,
    /// Number of experts that a token uses.
    pub n_used: usize,
    /// Width of each expert.
    pub ffn: usize,
}

/// A model's shapes.
#[derive(Clone, Copy)]
pub struct Shapes {
    /// Published name.
    pub name: &'static str,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// The kinds of layers.
    pub layers: &'static [Layers],
    /// Width of the dense network; 0 if there are only experts.
    pub ffn: usize,
    /// Rows of the embedding, which is also the head. Tied or not makes no difference to the bytes
    /// of a step.
    pub n_vocab: usize,
    /// True if heads of q and k are normalised.
    pub qk_norm: bool,
    /// Experts that replace the dense network, or run next to it if there is one.
    pub experts: Option<Experts>,
    /// True if there are norms after attention and network, norms of values, a factor for each
    /// layer, and bounded logits.
    pub sandwich: bool,
    /// Decode rates in tokens a second: the best published one, llama.cpp's and MLX's.
    pub decode: &'static str,
    /// Tokens a second of a prompt of 512 tokens: BaseRT's, llama.cpp's and MLX's.
    pub prefill: &'static str,
}

/// Models with published rates on an M4 Pro of 16 cores, with 4-bit weights: BaseRT's table of the
/// three engines. Llama-2-7B's are from llama.cpp's discussion 4167 (20 cores).
pub const MODELS: [Shapes; 6] = [
    Shapes {
        name: "Qwen3-0.6B",
        hidden: 1024,
        n_heads: 16,
        layers: &[full(28, 8, 128)],
        ffn: 3072,
        n_vocab: 151_936,
        qk_norm: true,
        experts: None,
        sandwich: false,
        decode: "464, 297, 344",
        prefill: "4,690, 4,993, 4,658",
    },
    Shapes {
        name: "Llama-3.2-1B",
        hidden: 2048,
        n_heads: 32,
        layers: &[full(16, 8, 64)],
        ffn: 8192,
        n_vocab: 128_256,
        qk_norm: false,
        experts: None,
        sandwich: false,
        decode: "295, 230, -",
        prefill: "2,594, -, -",
    },
    Shapes {
        name: "Llama-3.2-3B",
        hidden: 3072,
        n_heads: 24,
        layers: &[full(28, 8, 128)],
        ffn: 8192,
        n_vocab: 128_256,
        qk_norm: false,
        experts: None,
        sandwich: false,
        decode: "117, 102, 112",
        prefill: "899, 871, 919",
    },
    Shapes {
        name: "Llama-2-7B",
        hidden: 4096,
        n_heads: 32,
        layers: &[full(32, 32, 128)],
        ffn: 11_008,
        n_vocab: 32_000,
        qk_norm: false,
        experts: None,
        sandwich: false,
        decode: "-, 51, -",
        prefill: "-, 440 (20 cores), -",
    },
    Shapes {
        name: "Qwen3-30B-A3B",
        hidden: 2048,
        n_heads: 32,
        layers: &[full(48, 4, 128)],
        ffn: 0,
        n_vocab: 151_936,
        qk_norm: true,
        experts: Some(Experts { n: 128, n_used: 8, ffn: 768 }),
        sandwich: false,
        decode: "84, 81, 83",
        prefill: "838, 668, 664",
    },
    Shapes {
        name: "Gemma-4-26B-A4B",
        hidden: 2816,
        n_heads: 16,
        layers: &[
            Layers { n: 25, n_kv_heads: 8, head_dim: 256, window: Some(1024), keys_are_values: false },
            Layers { n: 5, n_kv_heads: 2, head_dim: 512, window: None, keys_are_values: true },
        ],
        ffn: 2112,
        n_vocab: 262_144,
        qk_norm: true,
        experts: Some(Experts { n: 128, n_used: 8, ffn: 704 }),
        sandwich: true,
        decode: "69, 58, -",
        prefill: "",
    },
];
