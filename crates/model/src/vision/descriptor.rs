//! Differences between vision towers, as plain data. A tower encodes images for a text model.

use device::Activation;

use crate::descriptor::NormKind;

/// The source of position embeddings of patches, besides RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchPositions {
    /// No position embeddings.
    None,
    /// A table with one row for each patch of the fixed image size.
    Table,
    /// A square table, interpolated bilinearly over the image with aligned corners.
    Stretched,
    /// The sum of a row for the column and a row for the row, from two tables `(2, positions,
    /// hidden)`.
    Axes,
}

/// RoPE of queries and keys by the patch's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turning {
    /// No RoPE.
    None,
    /// A pair has one column of each half of a head. The first pairs rotate by the row, the others
    /// by the column.
    Whole,
    /// Each half of a head rotates alone: the first by the column, the second by the row.
    Halves,
}

/// Layers of the text model in which image rows attend to later rows of their image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BothWays {
    /// No layer.
    Never,
    /// Every layer.
    Always,
    /// Layers with a window, if the checkpoint says so.
    InWindowsIfSaid,
}

/// Joining of a square of patches to one row of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Concatenated, row by row of the square.
    Concatenated,
    /// Averaged.
    Averaged,
    /// `(mean * sqrt(hidden) - bias) * scale`, with the names of two vectors that a checkpoint may
    /// have.
    Standardised {
        /// Name of the vector that is subtracted.
        bias: &'static str,
        /// Name of the vector that is multiplied.
        scale: &'static str,
    },
}

/// A step of the projector, from joined patches to rows of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProjectorStep {
    /// A norm of whole rows: its name, kind, and the offset added to its weight.
    Norm(&'static str, NormKind, f32),
    /// An RMS norm of whole rows without a weight.
    PlainNorm,
    /// A matrix `(n_out, n_in)`, with a bias if the file has one.
    Linear(&'static str),
    /// A matrix `(n_in, n_out)`; the name has no suffix.
    Turned(&'static str),
    /// An activation.
    Activate(Activation),
}

/// The way in which an image gets its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizingKind {
    /// Stretched to a square.
    Square,
    /// The image keeps its aspect ratio, with sides that are multiples of joined patches and a
    /// bounded number of pixels.
    Pixels,
    /// Square tiles, and the whole image once more.
    Tiles,
    /// The image keeps its aspect ratio, and is as large as a number of text rows allows.
    Rows,
}

/// Tokens around and in place of the rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageMarks {
    /// Placeholder of an image in chat templates.
    pub placeholder: &'static str,
    /// Token of each row.
    pub row: &'static str,
    /// Text before the rows of an image or tile.
    pub before: &'static str,
    /// Text after the rows of an image or tile.
    pub after: &'static str,
    /// Text before the rows of the whole image, if there are tiles.
    pub whole: &'static str,
}

/// Names of a tower in GGUF files of towers.
#[derive(Clone, Copy, Debug)]
pub struct MmprojNames {
    /// Value of `clip.projector_type`.
    pub kind: &'static str,
    /// Names of the projector's steps with weights, in order.
    pub projector: &'static [&'static str],
    /// Names of the tap projectors' steps with weights; `{l}` is the layer.
    pub tap_projector: &'static [&'static str],
    /// True if queries, keys and values are separate here, but one tensor in folders.
    pub splits_qkv: bool,
    /// Architectures of text models, and their names beside such a tower.
    pub text: &'static [(&'static str, &'static str)],
    /// Default numbers, by their key under `preprocessor_config.`.
    pub pixels: &'static [(&'static str, usize)],
}

/// One kind of tower. Names follow one of `prefixes`; `{l}` is a layer; `.weight` and `.bias`
/// follow.
#[derive(Clone, Copy, Debug)]
pub struct VisionDescriptor {
    /// Unique name, one word.
    pub name: &'static str,
    /// Values of `model_type` (config.json) of models with this tower.
    pub hf: &'static [&'static str],
    /// Prefixes of the tower's names; the first one with a patch embedding is used.
    pub prefixes: &'static [&'static str],
    /// Prefixes of the projector's names.
    pub projector_prefixes: &'static [&'static str],
    /// Name of the patch embedding, `(hidden, channels, frames, patch, patch)`; with one frame it
    /// may be a matrix whose columns have colours last.
    pub patch: &'static str,
    /// True if the tower itself maps colours from 0..1 to -1..1.
    pub centres: bool,
    /// Name of the position table, `(positions, hidden)`, or of two tables `(2, positions,
    /// hidden)`, which has no suffix.
    pub position: &'static str,
    /// Prefix of a layer's names.
    pub layer: &'static str,
    /// Names of the norms before attention and before the network.
    pub norms: [&'static str; 2],
    /// Names of the norms after attention and after the network.
    pub post_norms: Option<[&'static str; 2]>,
    /// Kind of these norms and of the last norm.
    pub norm_kind: NormKind,
    /// Names of the query, key and value projections, or of one that stacks them.
    pub qkv: &'static [&'static str],
    /// Names of the RMS norms of query and key heads. Value heads then have a norm without a
    /// weight.
    pub qk_norms: Option<[&'static str; 2]>,
    /// True if attention scores are not scaled.
    pub unscaled: bool,
    /// True if the matrices of layers are `NAME.linear.weight`. Inputs and outputs are then clamped
    /// to `NAME.input_min`, `input_max`, `output_min` and `output_max`, if the checkpoint has
    /// these.
    pub bounds: bool,
    /// Name of attention's output projection.
    pub out: &'static str,
    /// Names of the network's matrices: up and down, or gate, up and down.
    pub network: &'static [&'static str],
    /// Name of the norm after the last layer.
    pub last_norm: Option<&'static str>,
    /// Source of the position embeddings.
    pub positions: PatchPositions,
    /// RoPE of queries and keys.
    pub turning: Turning,
    /// Base of the RoPE frequencies, if the checkpoint does not store it.
    pub rotation_base: f64,
    /// Joining of patches to rows of the text.
    pub joining: Joining,
    /// Steps from joined patches to rows of the text.
    pub projector: &'static [ProjectorStep],
    /// Steps from the joined patches of a tap to rows of the text; `{i}` is the tap.
    pub tap_projector: &'static [ProjectorStep],
    /// Activation of the network, if the checkpoint does not name one.
    pub activation: Activation,
    /// The way in which images get their size.
    pub sizing: SizingKind,
    /// Order of the three position axes in the text model's heads: sections (`false`) or
    /// interleaved (`true`). `None`: one axis.
    pub axes: Option<bool>,
    /// Sizes of the sections, if the checkpoint does not store them.
    pub sections: [usize; 3],
    /// Layers of the text model in which image rows attend to later rows of their image.
    pub both_ways: BothWays,
    /// Tokens around rows.
    pub marks: ImageMarks,
    /// Default numbers, by their key under `vision_config.`.
    pub defaults: &'static [(&'static str, usize)],
    /// Names in GGUF files of towers, if the tower has any.
    pub mmproj: Option<MmprojNames>,
}

const SIGLIP: VisionDescriptor = VisionDescriptor {
    name: "siglip",
    hf: &["gemma3"],
    prefixes: &[
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
        "model.vision_tower.",
        "vision_tower.",
    ],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
    patch: "embeddings.patch_embedding",
    centres: false,
    position: "embeddings.position_embedding",
    layer: "encoder.layers.{l}.",
    norms: ["layer_norm1", "layer_norm2"],
    post_norms: None,
    norm_kind: NormKind::Layer,
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qk_norms: None,
    unscaled: false,
    bounds: false,
    out: "self_attn.out_proj",
    network: &["mlp.fc1", "mlp.fc2"],
    last_norm: Some("post_layernorm"),
    positions: PatchPositions::Table,
    turning: Turning::None,
    rotation_base: 10_000.0,
    joining: Joining::Averaged,
    projector: &[
        ProjectorStep::Norm("mm_soft_emb_norm", NormKind::Rms, 1.0),
        ProjectorStep::Turned("mm_input_projection_weight"),
    ],
    tap_projector: &[],
    activation: Activation::GeluTanh,
    sizing: SizingKind::Square,
    axes: None,
    sections: [0; 3],
    both_ways: BothWays::Always,
    marks: ImageMarks {
        placeholder: "<start_of_image>",
        row: "<image_soft_token>",
        before: "\n\n<start_of_image>",
        after: "<end_of_image>\n\n",
        whole: "",
    },
    defaults: &[
        ("hidden_size", 1152),
        ("intermediate_size", 4304),
        ("num_hidden_layers", 27),
        ("num_attention_heads", 16),
        ("image_size", 896),
        ("patch_size", 14),
    ],
    mmproj: Some(MmprojNames {
        kind: "gemma3",
        projector: &["mm.soft_emb_norm", "mm.input_projection"],
        tap_projector: &[],
        splits_qkv: false,
        text: &[],
        pixels: &[],
    }),
};

const IDEFICS3: VisionDescriptor = VisionDescriptor {
    name: "siglip_tiles",
    hf: &["smolvlm", "idefics3"],
    prefixes: &["model.vision_model.", "vision_model."],
    projector_prefixes: &["model.connector.", "connector."],
    joining: Joining::Concatenated,
    projector: &[ProjectorStep::Linear("modality_projection.proj")],
    sizing: SizingKind::Tiles,
    both_ways: BothWays::Never,
    marks: ImageMarks {
        placeholder: "<image>",
        row: "<image>",
        before: "<fake_token_around_image>",
        after: "<fake_token_around_image>",
        whole: "<global-img>",
    },
    defaults: &[
        ("hidden_size", 1152),
        ("intermediate_size", 3072),
        ("num_hidden_layers", 12),
        ("num_attention_heads", 16),
        ("image_size", 224),
        ("patch_size", 32),
    ],
    mmproj: Some(MmprojNames {
        kind: "idefics3",
        projector: &["mm.model.fc"],
        tap_projector: &[],
        splits_qkv: false,
        text: &[],
        pixels: &[],
    }),
    ..SIGLIP
};

const QWEN_MARKS: ImageMarks =
    ImageMarks { placeholder: "<|image_pad|>", row: "<|image_pad|>", before: "", after: "", whole: "" };

const QWEN2_5_VL: VisionDescriptor = VisionDescriptor {
    name: "windows",
    hf: &["qwen2_5_vl"],
    prefixes: &["visual.", "model.visual.", "vision_tower."],
    projector_prefixes: &["visual.merger.", "model.visual.merger.", "vision_tower.merger."],
    patch: "patch_embed.proj",
    position: "",
    layer: "blocks.{l}.",
    norms: ["norm1", "norm2"],
    norm_kind: NormKind::Rms,
    qkv: &["attn.qkv"],
    out: "attn.proj",
    network: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    last_norm: Some("merger.ln_q"),
    positions: PatchPositions::None,
    turning: Turning::Whole,
    joining: Joining::Concatenated,
    projector: &[
        ProjectorStep::Linear("mlp.0"),
        ProjectorStep::Activate(Activation::GeluErf),
        ProjectorStep::Linear("mlp.2"),
    ],
    tap_projector: &[],
    activation: Activation::Silu,
    sizing: SizingKind::Pixels,
    axes: Some(false),
    sections: [16, 24, 24],
    both_ways: BothWays::Never,
    marks: QWEN_MARKS,
    defaults: &[("spatial_merge_size", 2), ("temporal_patch_size", 2), ("patch_size", 14)],
    mmproj: Some(MmprojNames {
        kind: "qwen2.5vl_merger",
        projector: &["mm.0", "mm.2"],
        tap_projector: &[],
        splits_qkv: true,
        text: &[("qwen2", "qwen2vl")],
        pixels: &[("min_pixels", 56 * 56), ("max_pixels", 16_384 * 28 * 28)],
    }),
    ..SIGLIP
};

const QWEN3_VL: VisionDescriptor = VisionDescriptor {
    name: "stretched",
    hf: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
    prefixes: &["model.visual.", "visual.", "vision_tower."],
    projector_prefixes: &["model.visual.", "visual.", "vision_tower."],
    position: "pos_embed",
    norm_kind: NormKind::Layer,
    network: &["mlp.linear_fc1", "mlp.linear_fc2"],
    last_norm: Some("merger.norm"),
    positions: PatchPositions::Stretched,
    projector: &[
        ProjectorStep::Linear("merger.linear_fc1"),
        ProjectorStep::Activate(Activation::GeluErf),
        ProjectorStep::Linear("merger.linear_fc2"),
    ],
    tap_projector: &[
        ProjectorStep::Norm("deepstack_merger_list.{i}.norm", NormKind::Layer, 0.0),
        ProjectorStep::Linear("deepstack_merger_list.{i}.linear_fc1"),
        ProjectorStep::Activate(Activation::GeluErf),
        ProjectorStep::Linear("deepstack_merger_list.{i}.linear_fc2"),
    ],
    activation: Activation::GeluTanh,
    axes: Some(true),
    sections: [24, 20, 20],
    defaults: &[("spatial_merge_size", 2), ("temporal_patch_size", 2), ("patch_size", 16)],
    mmproj: Some(MmprojNames {
        kind: "qwen3vl_merger",
        projector: &["mm.0", "mm.2"],
        tap_projector: &["v.deepstack.{l}.norm", "v.deepstack.{l}.fc1", "v.deepstack.{l}.fc2"],
        splits_qkv: false,
        text: &[("qwen3", "qwen3vl"), ("qwen3moe", "qwen3vlmoe")],
        pixels: &[("min_pixels", 256 * 256), ("max_pixels", 4096 * 4096)],
    }),
    ..QWEN2_5_VL
};

const GEMMA4: VisionDescriptor = VisionDescriptor {
    name: "axes",
    hf: &["gemma4"],
    prefixes: &["model.vision_tower.", "vision_tower."],
    projector_prefixes: &["model.embed_vision.", "embed_vision."],
    patch: "patch_embedder.input_proj",
    centres: true,
    position: "patch_embedder.position_embedding_table",
    norms: ["input_layernorm", "pre_feedforward_layernorm"],
    post_norms: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    norm_kind: NormKind::Rms,
    qk_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    unscaled: true,
    bounds: true,
    out: "self_attn.o_proj",
    network: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    last_norm: None,
    positions: PatchPositions::Axes,
    turning: Turning::Halves,
    rotation_base: 100.0,
    joining: Joining::Standardised { bias: "std_bias", scale: "std_scale" },
    projector: &[ProjectorStep::PlainNorm, ProjectorStep::Linear("embedding_projection")],
    sizing: SizingKind::Rows,
    both_ways: BothWays::InWindowsIfSaid,
    marks: ImageMarks {
        placeholder: "<|image|>",
        row: "<|image|>",
        before: "<|image>",
        after: "<image|>",
        whole: "",
    },
    defaults: &[
        ("hidden_size", 768),
        ("intermediate_size", 3072),
        ("num_hidden_layers", 16),
        ("num_attention_heads", 12),
        ("pooling_kernel_size", 3),
        ("patch_size", 16),
        ("position_embedding_size", 10 * 1024),
    ],
    mmproj: Some(MmprojNames {
        kind: "gemma4v",
        projector: &["mm.input_projection"],
        tap_projector: &[],
        splits_qkv: false,
        text: &[],
        pixels: &[],
    }),
    ..SIGLIP
};

/// All towers.
pub const TOWERS: &[VisionDescriptor] = &[SIGLIP, IDEFICS3, QWEN2_5_VL, QWEN3_VL, GEMMA4];
