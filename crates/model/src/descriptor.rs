//! What sets one family of models apart from another, as plain data.
//!
//! A descriptor says what a family *is*; a [`crate::ModelSpec`] adds the numbers of one checkpoint. The plan builder
//! reads fields, never names. A new field gets its neutral value in [`ArchDescriptor::DENSE`], and no family that does not
//! use it changes.

use device::{Activation, OutputKind, RopeStyle, RouterScores};
use weights::Naming;

use crate::names::{Key, KeyNames, TensorName, TensorRole};

/// A value that depends on who wrote the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerNaming<T> {
    /// In GGUF files.
    pub gguf: T,
    /// In Hugging Face checkpoints, and in all others.
    pub hf: T,
}

impl<T: Copy> PerNaming<T> {
    /// The same for both.
    pub const fn both(value: T) -> PerNaming<T> {
        PerNaming { gguf: value, hf: value }
    }

    /// The one for a naming.
    pub const fn of(&self, naming: Naming) -> T {
        match naming {
            Naming::Gguf => self.gguf,
            _ => self.hf,
        }
    }
}

/// Where a layer has norms. Pre-norms stand on the branch's input, post-norms on its output, before the residual is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormPlaces {
    /// Before attention.
    pub pre_attention: bool,
    /// After attention's output projection.
    pub post_attention: bool,
    /// Before the feed-forward network.
    pub pre_ffn: bool,
    /// After its down projection.
    pub post_ffn: bool,
}

impl NormPlaces {
    /// Before each branch.
    pub const PRE: NormPlaces =
        NormPlaces { pre_attention: true, post_attention: false, pre_ffn: true, post_ffn: false };
    /// After each branch.
    pub const POST: NormPlaces =
        NormPlaces { pre_attention: false, post_attention: true, pre_ffn: false, post_ffn: true };
    /// Before and after each branch.
    pub const SANDWICH: NormPlaces =
        NormPlaces { pre_attention: true, post_attention: true, pre_ffn: true, post_ffn: true };
}

/// Norms of queries and keys, before their rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head by itself, all with the same weight `(head_dim)`.
    PerHead,
    /// All heads of a token together, weight `(n_heads * head_dim)`.
    WholeRow,
    /// Each head by itself, without a weight, in layers that rotate.
    PlainWhereTurning,
}

/// Where experts stand in a layer that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertPlace {
    /// Nowhere; a checkpoint that has some is refused.
    Nowhere,
    /// In place of the dense network, of the same normalised input.
    Instead,
    /// The same, with shared experts that every row goes through, added as they are.
    WithPlainShared,
    /// The same, with a shared expert that every row goes through, weighed by the sigmoid of a product with its input.
    WithShared,
    /// The same with a shared expert that is added as it is, in layers that have experts; the others are dense.
    BesideShared,
    /// Next to the dense network, which has a norm after it; so have the experts, and one before. The router reads the
    /// residual stream, normalised without a weight and scaled by `1 / sqrt(hidden)` and factors of its own.
    Beside,
}

/// Recurrent layers: their memory of a sequence is a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrent {
    /// Which recurrence.
    pub kind: RecurrentKind,
    /// Which layers are.
    pub place: RecurrentPlace,
    /// Head `h` has the key head `h % n`, and not `h / (n_heads / n)`: where the heads of values were reordered.
    pub tiled: PerNaming<bool>,
    /// Each row of a state decays by itself (Kimi Delta Attention, 2025). Steps and the gate come through as many columns as a head
    /// has, and the gate is a sigmoid.
    pub by_rows: bool,
}

/// Which recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// A short convolution between two gates.
    ShortConv,
    /// The gated delta rule.
    GatedDelta,
    /// A selective scan with one decay for each head.
    SelectiveScan,
}

/// Which layers are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentPlace {
    /// Those that have its tensors; the others attend.
    InsteadOfAttention,
    /// All, and all attend, too: both read the same norm, and what they give is added.
    BesideAttention,
    /// All; none attends.
    Everywhere,
    /// A layer is either recurrent, or attention, or a feed-forward network, as its tensors say.
    OneMixer,
}

/// What embeddings are multiplied by where the checkpoint does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// 1
    One,
    /// The square root of the hidden size.
    SqrtHidden,
}

/// What attention scores are multiplied by where the checkpoint does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionScale {
    /// `1 / sqrt(head_dim)`
    HeadDim,
    /// 1: norms of queries and keys do it.
    One,
    /// `1 / sqrt(hidden / n_heads)` in the checkpoint with this many layers, `1 / sqrt(head_dim)` in all others:
    /// files of these families leave the number out, and the largest model differs.
    HiddenPerHead {
        /// The layers of the one that differs.
        n_layers: usize,
    },
}

/// Which layers see a sliding window only, where the checkpoint does not list them. It names the window itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPattern {
    /// All, if the checkpoint has a window.
    All,
    /// All but every n-th: layer `l` sees everything if `(l + 1) % n == 0`.
    FullEvery(usize),
    /// All but every n-th from the first on: layer `l` sees everything if `l % n == 0`.
    FullFirst(usize),
    /// Those from the layer that the checkpoint names, [`Key::FirstWindowLayer`], on.
    FromKey,
}

/// Which layers scale queries by their position: `1 + beta * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// None.
    None,
    /// All; positions count from 0.
    All,
    /// Those that do not rotate; positions count from 1.
    WithoutRotation,
}

/// The kind of its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// By the root mean square.
    Rms,
    /// By mean and variance, with a bias.
    Layer,
}

/// A convolution over the rows of the input, `(n_out, n_in, size)`, followed by the activation. The rows are padded with
/// zeros, `(size - 1) / 2` at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Its weight; the bias has the same name.
    pub role: TensorRole,
    /// Rows that it sees at a time; odd.
    pub size: usize,
    /// Rows that it moves on by.
    pub stride: usize,
}

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct ArchDescriptor {
    /// One word, unique.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Values of `general.architecture` (GGUF) that select it.
    pub gguf: &'static [&'static str],
    /// Values of `model_type` (config.json) that select it.
    pub hf: &'static [&'static str],
    /// The value under which GGUF files hold it, where that is another family's: the two differ in their usual numbers only.
    pub gguf_as: Option<&'static str>,
    /// Names of the specification in model.bin (CTranslate2) that select it.
    pub ctranslate2: &'static [&'static str],
    /// Whether it is what whisper.cpp's files hold: they do not say.
    pub whisper_cpp: bool,

    /// Numbers that it calls otherwise than most.
    pub keys: &'static [KeyNames],
    /// Settings that a file may have and that must then be these: what they would ask for is not built.
    pub settings: &'static [(&'static str, i128)],
    /// Tables of tensor names, in [`crate::names`]; the first that has a tensor of the file wins.
    pub tensors: &'static [&'static [TensorName]],
    /// Numbers that a checkpoint leaves out where they are the usual ones.
    pub defaults: PerNaming<&'static [(Key, f64)]>,

    /// Where a layer has norms.
    pub norms: NormPlaces,
    /// Added to norm weights at load: some files store the weight less 1.
    pub norm_offset: PerNaming<f32>,

    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Some checkpoints have none of them: those whose metadata says so, or says nothing and whose first layer lacks them.
    pub qk_norm_may_lack: bool,
    /// GGUF files do not say whether they have them: those with so many experts have not.
    pub qk_norm_lacks_with_experts: Option<usize>,
    /// They stand after the rotation.
    pub qk_norm_after_rope: bool,
    /// What must have a bias. Elsewhere a bias is used if the file has one.
    pub biases: &'static [TensorRole],
    /// Values are normalised by heads, without a weight.
    pub v_norm: bool,
    /// Layers that see everything may have no value projection: values are then what the key projection gives.
    pub keys_as_values: bool,
    /// Factor on the scores.
    pub attention_scale: AttentionScale,
    /// Which layers see a window only.
    pub windows: WindowPattern,

    /// Which columns of a head are rotated together.
    pub rope_style: PerNaming<RopeStyle>,
    /// Rotation base of layers with a window where they have their own; their frequencies are then not scaled.
    pub window_rope_theta: Option<f64>,
    /// Layers with a window rotate as the others do, but their frequencies are not scaled.
    pub window_rope_unscaled: bool,
    /// Where some layers have a window, the others do not rotate.
    pub rope_in_windows_only: bool,
    /// Which layers scale queries by their position.
    pub temperature: Temperature,
    /// Every n-th layer has no rotation: layer `l` if `(l + 1) % n == 0`. A checkpoint may list them.
    pub no_rope_every: Option<usize>,

    /// The feed-forward network's function, where the checkpoint does not say.
    pub activation: Activation,
    /// `down(f(gate x) * up x)`; otherwise `down(f(up x))`.
    pub gated: bool,
    /// Columns of the network by those of the hidden size, where the checkpoint does not say.
    pub ffn_per_hidden: Option<usize>,
    /// Where experts stand.
    pub experts: ExpertPlace,

    /// What routers make of their logits, where the checkpoint does not say.
    pub router_scores: RouterScores,
    /// The weight of an expert, of which a row has one, is a factor on what it reads.
    pub experts_weigh_input: bool,
    /// The gate of experts is clamped; a file may say the numbers.
    pub gate_clamped: bool,
    /// Keys and values are expanded from a latent, which is what is cached.
    pub latent: bool,
    /// The window does not slide: attention is in chunks of its length.
    pub chunked: bool,
    /// Both branches of a layer read its input: `x + attention(norm(x)) + network(norm(x))`. The network has the norm of
    /// attention, unless it has its own.
    pub parallel: bool,
    /// The factor on logits that checkpoints give multiplies them; otherwise it divides.
    pub logits_multiplied: bool,
    /// Factor on embeddings.
    pub embedding_scale: EmbeddingScale,

    /// The kind of its norms.
    pub norm_kind: NormKind,
    /// Post-norms stand on the sum of branch and residual, `norm(x + branch)`, instead of on the branch.
    pub norm_on_sum: bool,
    /// A norm on the embeddings.
    pub embedding_norm: bool,
    /// A norm on what the last layer gives.
    pub final_norm: bool,
    /// Positions have learned embeddings, added to the tokens'; types of tokens too, if the file has them.
    pub learned_positions: bool,
    /// Positions count from the padding token's id and 1, so that the table has as many rows fewer.
    pub positions_after_padding: bool,
    /// The first layer has no norm before attention: the embeddings have one.
    pub first_norm_missing: bool,
    /// Attention looks at the whole sequence, or within a window at half of it to each side. Nothing is cached.
    pub bidirectional: bool,
    /// What the family is where a checkpoint says that attention looks both ways.
    pub both_ways: Option<&'static ArchDescriptor>,
    /// Whether there is a head; without one, hidden states are what it gives.
    pub output: OutputKind,

    /// The input is rows of numbers, which go through these; empty: it is tokens.
    pub convolutions: &'static [Convolution],
    /// The encoder whose hidden states every layer also attends to.
    pub encoder: Option<&'static ArchDescriptor>,

    /// Which layers are recurrent, and how.
    pub recurrent: Option<Recurrent>,
    /// The projection of queries gives each head a gate, too: `attention * sigmoid(gate)`.
    pub attention_gate: bool,
}

/// What is said to be found in a file of whisper.cpp.
pub(crate) const WHISPER_CPP: &str = "whisper.cpp";

impl ArchDescriptor {
    /// A decoder with RMS norms before each branch, a gated SiLU network and full attention: what most families vary.
    pub const DENSE: ArchDescriptor = ArchDescriptor {
        name: "",
        title: "",
        gguf: &[],
        hf: &[],
        gguf_as: None,
        ctranslate2: &[],
        whisper_cpp: false,
        keys: &[],
        settings: &[],
        tensors: &[crate::names::STANDARD],
        defaults: PerNaming::both(&[]),
        norms: NormPlaces::PRE,
        norm_offset: PerNaming::both(0.0),
        qk_norm: QkNorm::None,
        qk_norm_may_lack: false,
        qk_norm_lacks_with_experts: None,
        qk_norm_after_rope: false,
        biases: &[],
        v_norm: false,
        keys_as_values: false,
        attention_scale: AttentionScale::HeadDim,
        windows: WindowPattern::All,
        rope_style: PerNaming::both(RopeStyle::Half),
        window_rope_theta: None,
        window_rope_unscaled: false,
        rope_in_windows_only: false,
        temperature: Temperature::None,
        no_rope_every: None,
        activation: Activation::Silu,
        gated: true,
        ffn_per_hidden: None,
        experts: ExpertPlace::Nowhere,
        router_scores: RouterScores::Softmax,
        experts_weigh_input: false,
        gate_clamped: false,
        latent: false,
        chunked: false,
        parallel: false,
        logits_multiplied: false,
        embedding_scale: EmbeddingScale::One,
        norm_kind: NormKind::Rms,
        norm_on_sum: false,
        embedding_norm: false,
        final_norm: true,
        learned_positions: false,
        positions_after_padding: false,
        first_norm_missing: false,
        bidirectional: false,
        both_ways: None,
        output: OutputKind::Logits,
        convolutions: &[],
        encoder: None,
        recurrent: None,
        attention_gate: false,
    };

    /// The values that select it in a naming.
    pub fn selectors(&self, naming: Naming) -> &'static [&'static str] {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp if self.whisper_cpp => &[WHISPER_CPP],
            Naming::WhisperCpp | Naming::Base => &[],
        }
    }

    /// Rows of the input that become one position.
    pub fn input_stride(&self) -> usize {
        self.convolutions.iter().map(|c| c.stride).product()
    }

    /// The family's usual number for a key, in a naming.
    pub(crate) fn default(&self, naming: Naming, key: Key) -> Option<f64> {
        self.defaults.of(naming).iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}
