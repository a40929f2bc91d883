//! Differences between families of models, as plain data.
//!
//! A descriptor states what a family *is*; a [`crate::ModelSpec`] adds the numbers of one
//! checkpoint. The plan builder reads fields and never names. A new field gets its neutral value in
//! [`ArchDescriptor::DENSE`], so that other families stay unchanged.

use device::{Activation, OutputKind, RopeStyle, RouterScores};
use weights::Naming;

use crate::names::{Key, KeyNames, TensorName, TensorRole};

/// A value that depends on the convention of the file's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerNaming<T> {
    /// The value for GGUF files.
    pub gguf: T,
    /// The value for Hugging Face checkpoints and all other files.
    pub hf: T,
}

impl<T: Copy> PerNaming<T> {
    /// One value for all files.
    pub const fn both(value: T) -> PerNaming<T> {
        PerNaming { gguf: value, hf: value }
    }

    /// The value for a naming.
    pub const fn of(&self, naming: Naming) -> T {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace | Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => self.hf,
        }
    }
}

/// Places of norms in a layer. Pre-norms apply to a branch's input, post-norms to its output before
/// the residual is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormPlaces {
    /// True if attention has a pre-norm.
    pub pre_attention: bool,
    /// True if attention has a post-norm, after the output projection.
    pub post_attention: bool,
    /// True if the feed-forward network has a pre-norm.
    pub pre_ffn: bool,
    /// True if the feed-forward network has a post-norm, after the down projection.
    pub post_ffn: bool,
}

impl NormPlaces {
    /// Pre-norms only.
    pub const PRE: NormPlaces =
        NormPlaces { pre_attention: true, post_attention: false, pre_ffn: true, post_ffn: false };
    /// Post-norms only.
    pub const POST: NormPlaces =
        NormPlaces { pre_attention: false, post_attention: true, pre_ffn: false, post_ffn: true };
    /// Pre-norms and post-norms.
    pub const SANDWICH: NormPlaces =
        NormPlaces { pre_attention: true, post_attention: true, pre_ffn: true, post_ffn: true };
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// Each head is normalised alone, all heads with one weight `(head_dim)`.
    PerHead,
    /// All heads of a token are normalised together, with a weight `(n_heads * head_dim)`.
    WholeRow,
    /// Each head is normalised alone, without a weight, in layers with RoPE.
    PlainWhereTurning,
}

/// Place of the experts in a layer that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertPlace {
    /// No experts; a checkpoint with experts is refused.
    Nowhere,
    /// Experts replace the dense network and read the same normalised input.
    Instead,
    /// Experts replace the dense network; the outputs of shared experts, which every row runs
    /// through, are added.
    WithPlainShared,
    /// Experts replace the dense network; the output of a shared expert is added, times the sigmoid
    /// of a projection of its input.
    WithShared,
    /// Experts replace the dense network in some layers, and the output of a shared expert is added
    /// there. The other layers are dense.
    BesideShared,
    /// Experts run beside the dense network. Both have a post-norm, and the experts have a pre-norm
    /// of their own. The router reads the residual stream, normalised without a weight and scaled
    /// by `1 / sqrt(hidden)` and its own factors.
    Beside,
}

/// Recurrent layers, which keep a state of fixed size for each sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrent {
    /// The kind of recurrence.
    pub kind: RecurrentKind,
    /// The layers that are recurrent.
    pub place: RecurrentPlace,
    /// True if head `h` has the key head `h % n`; false if it has `h / (n_heads / n)`. Converters
    /// reorder value heads in some files.
    pub tiled: PerNaming<bool>,
    /// True if each row of a state has its own decay (Kimi Delta Attention, 2025). Steps and the
    /// gate are then projected through `head_dim` columns, and the gate is a sigmoid.
    pub by_rows: bool,
}

/// The kind of recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// A short convolution between two gates.
    ShortConv,
    /// The gated delta rule.
    GatedDelta,
    /// A selective scan with one decay for each head.
    SelectiveScan,
}

/// The layers that are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentPlace {
    /// Layers with tensors of a recurrence are recurrent; the others attend.
    InsteadOfAttention,
    /// All layers are recurrent and attend. Both read the same norm, and their outputs are added.
    BesideAttention,
    /// All layers are recurrent; none attends.
    Everywhere,
    /// Each layer is a recurrence, attention or a feed-forward network, as its tensors show.
    OneMixer,
}

/// Factor on embeddings if the checkpoint does not store one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// Factor 1.
    One,
    /// Square root of the hidden size.
    SqrtHidden,
}

/// Factor on attention scores if the checkpoint does not store one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionScale {
    /// `1 / sqrt(head_dim)`
    HeadDim,
    /// Factor 1: the norms of queries and keys replace scaling.
    One,
    /// `1 / sqrt(hidden / n_heads)` in the checkpoint with `n_layers` layers, and `1 /
    /// sqrt(head_dim)` in all others. Files of these families lack the key, and the largest model
    /// differs.
    HiddenPerHead {
        /// Layers of the checkpoint that differs.
        n_layers: usize,
    },
}

/// Layers with a sliding window, if the checkpoint does not list them. The checkpoint stores the
/// window's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPattern {
    /// All layers, if the checkpoint has a window.
    All,
    /// All but every n-th layer: layer `l` has full attention if `(l + 1) % n == 0`.
    FullEvery(usize),
    /// All but every n-th layer, counted from the first: layer `l` has full attention if `l % n ==
    /// 0`.
    FullFirst(usize),
    /// Layers from [`Key::FirstWindowLayer`] on.
    FromKey,
}

/// Layers that scale queries by their position: `1 + beta * ln(1 + floor((position + offset) /
/// length))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// No layer.
    None,
    /// All layers; positions count from 0.
    All,
    /// Layers without RoPE; positions count from 1.
    WithoutRotation,
}

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm.
    Rms,
    /// Layer norm, with a bias.
    Layer,
}

/// A convolution over input rows with a weight `(n_out, n_in, size)`, followed by the activation.
/// `(size - 1) / 2` rows of zeros pad both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Role of the weight; the bias has the same name.
    pub role: TensorRole,
    /// Rows in the window; odd.
    pub size: usize,
    /// Rows between two windows.
    pub stride: usize,
}

/// A family of models.
#[derive(Clone, Copy, Debug)]
pub struct ArchDescriptor {
    /// Unique name, one word.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Values of `general.architecture` (GGUF) that select the family.
    pub gguf: &'static [&'static str],
    /// Values of `model_type` (config.json) that select the family.
    pub hf: &'static [&'static str],
    /// Value of `general.architecture` to write, if it is another family's. The two families then
    /// differ only in their default numbers.
    pub gguf_as: Option<&'static str>,
    /// Names of the specification in model.bin (CTranslate2) that select the family.
    pub ctranslate2: &'static [&'static str],
    /// True if whisper.cpp files hold this family; they name none.
    pub whisper_cpp: bool,

    /// Numbers with key names other than the tables'.
    pub keys: &'static [KeyNames],
    /// Settings with the only supported value of each. A file may leave them out.
    pub settings: &'static [(&'static str, i128)],
    /// Tables of tensor names, in [`crate::names`]. For each role the first table with rows for it
    /// is used.
    pub tensors: &'static [&'static [TensorName]],
    /// Default numbers, which checkpoints leave out.
    pub defaults: PerNaming<&'static [(Key, f64)]>,

    /// Places of norms in a layer.
    pub norms: NormPlaces,
    /// Offset added to norm weights at load: some files store the weight less 1.
    pub norm_offset: PerNaming<f32>,

    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// True if some checkpoints lack these norms: the metadata says so, or the first layer has no
    /// such tensors.
    pub qk_norm_may_lack: bool,
    /// Number of experts of the GGUF files without these norms, which no key of theirs tells.
    pub qk_norm_lacks_with_experts: Option<usize>,
    /// True if these norms follow RoPE.
    pub qk_norm_after_rope: bool,
    /// Roles that must have a bias. Elsewhere a bias is used if the file has one.
    pub biases: &'static [TensorRole],
    /// True if each value head is normalised, without a weight.
    pub v_norm: bool,
    /// True if layers with full attention may lack a value projection; values are then the output
    /// of the key projection.
    pub keys_as_values: bool,
    /// Factor on attention scores.
    pub attention_scale: AttentionScale,
    /// Layers with a sliding window.
    pub windows: WindowPattern,

    /// Pairing of a head's columns under RoPE.
    pub rope_style: PerNaming<RopeStyle>,
    /// RoPE base of layers with a window, if they have their own. Their frequencies are then not
    /// scaled.
    pub window_rope_theta: Option<f64>,
    /// True if layers with a window have unscaled RoPE frequencies.
    pub window_rope_unscaled: bool,
    /// True if only layers with a window have RoPE, in checkpoints that have windows.
    pub rope_in_windows_only: bool,
    /// Layers that scale queries by their position.
    pub temperature: Temperature,
    /// Interval of layers without RoPE: layer `l` has none if `(l + 1) % n == 0`. A checkpoint may
    /// list them instead.
    pub no_rope_every: Option<usize>,

    /// Activation of the feed-forward network, if the checkpoint does not name one.
    pub activation: Activation,
    /// True if the network is `down(f(gate x) * up x)`; otherwise it is `down(f(up x))`.
    pub gated: bool,
    /// Columns of the feed-forward network as a multiple of the hidden size, if the checkpoint does
    /// not store them.
    pub ffn_per_hidden: Option<usize>,
    /// Place of the experts.
    pub experts: ExpertPlace,

    /// Function from router logits to scores, if the checkpoint does not name one.
    pub router_scores: RouterScores,
    /// True if the weight of an expert multiplies its input. A row then has only one expert.
    pub experts_weigh_input: bool,
    /// True if the gate of experts is clamped; a file may store the bounds.
    pub gate_clamped: bool,
    /// True if keys and values are expanded from a cached latent.
    pub latent: bool,
    /// True if attention runs in chunks of the window's length instead of a sliding window.
    pub chunked: bool,
    /// True if both branches of a layer read its input: `x + attention(norm(x)) +
    /// network(norm(x))`. The network shares the norm of attention unless it has its own.
    pub parallel: bool,
    /// True if the checkpoint's logit factor multiplies logits; otherwise it divides them.
    pub logits_multiplied: bool,
    /// Factor on embeddings.
    pub embedding_scale: EmbeddingScale,

    /// The kind of norm.
    pub norm_kind: NormKind,
    /// True if post-norms apply to the sum, `norm(x + branch)`, instead of to the branch.
    pub norm_on_sum: bool,
    /// True if embeddings are normalised.
    pub embedding_norm: bool,
    /// True if the output of the last layer is normalised.
    pub final_norm: bool,
    /// True if learned position embeddings are added to those of tokens, and the first token type's
    /// embedding, if the file has types.
    pub learned_positions: bool,
    /// True if positions count from the padding token's id plus 1. The first rows of the position
    /// table are then unused.
    pub positions_after_padding: bool,
    /// True if the first layer has no norm before attention, because embeddings have one.
    pub first_norm_missing: bool,
    /// True if attention is bidirectional. A window then extends half its length to each side, and
    /// nothing is cached.
    pub bidirectional: bool,
    /// The family of checkpoints whose metadata says that attention is bidirectional.
    pub both_ways: Option<&'static ArchDescriptor>,
    /// The result: logits if the family has a head, otherwise hidden states.
    pub output: OutputKind,

    /// Convolutions over input rows of numbers; empty: the input is tokens.
    pub convolutions: &'static [Convolution],
    /// The encoder whose hidden states every layer also attends to.
    pub encoder: Option<&'static ArchDescriptor>,

    /// The recurrent layers, if there are any.
    pub recurrent: Option<Recurrent>,
    /// True if the query projection also outputs a gate for each head: `attention * sigmoid(gate)`.
    pub attention_gate: bool,
}

/// Name reported for a whisper.cpp file, which stores none.
pub(crate) const WHISPER_CPP: &str = "whisper.cpp";

impl ArchDescriptor {
    /// The neutral descriptor: a decoder with RMS norms before each branch, a gated SiLU network
    /// and full attention.
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

    /// The names in files that select the family, for a naming.
    pub fn selectors(&self, naming: Naming) -> &'static [&'static str] {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace => self.hf,
            Naming::CTranslate2 => self.ctranslate2,
            Naming::WhisperCpp if self.whisper_cpp => &[WHISPER_CPP],
            Naming::WhisperCpp | Naming::Base => &[],
        }
    }

    /// Input rows for each position.
    pub fn input_stride(&self) -> usize {
        self.convolutions.iter().map(|c| c.stride).product()
    }

    /// The family's default number for a key, for a naming.
    pub(crate) fn default(&self, naming: Naming, key: Key) -> Option<f64> {
        self.defaults.of(naming).iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}
