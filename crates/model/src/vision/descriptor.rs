//! What sets one tower from another, as plain data: the encoders of images that stand before a text model.

use device::Activation;

use super::mmproj::MmprojNames;
use crate::descriptor::NormKind;

/// Where a patch's place in its image comes from, besides the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchPositions {
    /// Nowhere.
    None,
    /// A row of the table for each patch of an image of the one size.
    Table,
    /// A square table, stretched over the image bilinearly, its corners on the image's.
    Stretched,
    /// The sum of a row for its column and a row for its row, of two tables `(2, positions, hidden)`.
    Axes,
}

/// How queries and keys turn by a patch's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turning {
    /// They do not.
    None,
    /// The pairs are the columns of a head's two halves: the first of them turn by the row, the others by the column.
    Whole,
    /// Each half of a head is turned by itself: the first by the column, the other by the row.
    Halves,
}

/// Which rows of an image see those after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BothWays {
    /// None do.
    Never,
    /// All, in every layer.
    Always,
    /// All, in the layers with a window, where the checkpoint says so.
    InWindowsIfSaid,
}

/// How patches of a square become one row of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// One after another, row by row of the square.
    Concatenated,
    /// Their mean.
    Averaged,
    /// `(mean * sqrt(hidden) - bias) * scale`: the names of two vectors that a checkpoint may have.
    Standardised {
        /// Subtracted.
        bias: &'static str,
        /// Multiplied then.
        scale: &'static str,
    },
}

/// A step from what patches became to rows of the text's width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProjectorStep {
    /// A norm of whole rows; this is added to its weight.
    Norm(&'static str, NormKind, f32),
    /// A norm of whole rows by their root mean square alone.
    PlainNorm,
    /// A matrix `(n_out, n_in)`, with a bias if the file has one.
    Linear(&'static str),
    /// A matrix whose whole name this is, `(n_in, n_out)`.
    Turned(&'static str),
    /// A function.
    Activate(Activation),
}

/// How a picture is brought to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizingKind {
    /// A square, whatever its shape.
    Square,
    /// Its own shape, each side a multiple of the joined patches, the number of pixels between two bounds.
    Pixels,
    /// Tiles of the square that the tower sees, and the whole picture once more.
    Tiles,
    /// Its own shape, as large as a number of rows of the text allows.
    Rows,
}

/// What a text model reads around the rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageMarks {
    /// What chat templates write where an image stands.
    pub placeholder: &'static str,
    /// What stands for each row.
    pub row: &'static str,
    /// Before the rows of an image, or of a tile.
    pub before: &'static str,
    /// After them.
    pub after: &'static str,
    /// Before those of the whole picture, where there are tiles.
    pub whole: &'static str,
}

/// One kind of tower. Names follow one of `prefixes`; `{l}` is a layer; `.weight` and `.bias` follow.
#[derive(Clone, Copy, Debug)]
pub struct VisionDescriptor {
    /// One word, unique.
    pub name: &'static str,
    /// Values of `model_type` (config.json) of models that have it.
    pub hf: &'static [&'static str],
    /// Before the names of the tower; the first that has a patch embedding counts.
    pub prefixes: &'static [&'static str],
    /// Before the names of the projector.
    pub projector_prefixes: &'static [&'static str],
    /// `(hidden, channels, frames, patch, patch)`, or, of one frame, a matrix whose columns have colours last.
    pub patch: &'static str,
    /// The tower brings colours from 0 to 1 to -1 to 1 itself.
    pub centres: bool,
    /// `(positions, hidden)`, of two axes `(2, positions, hidden)`; the latter is a whole name.
    pub position: &'static str,
    /// Before the names of a layer.
    pub layer: &'static str,
    /// Norms before attention and network.
    pub norms: [&'static str; 2],
    /// Norms of what attention and network give.
    pub post_norms: Option<[&'static str; 2]>,
    /// Their kind, and that of the last.
    pub norm_kind: NormKind,
    /// Queries, keys and values: three names, or one of all.
    pub qkv: &'static [&'static str],
    /// Norms of the heads of queries and keys by their root mean square; those of values then have one without weight.
    pub qk_norms: Option<[&'static str; 2]>,
    /// Scores are not scaled.
    pub unscaled: bool,
    /// The matrices of layers are `NAME.linear.weight`, and where the checkpoint bounds what they read and give, the bounds are
    /// `NAME.input_min`, `input_max`, `output_min` and `output_max`.
    pub bounds: bool,
    /// Attention's output.
    pub out: &'static str,
    /// The network: up and down, or gate, up and down.
    pub network: &'static [&'static str],
    /// A norm on what the last layer gives.
    pub last_norm: Option<&'static str>,
    /// Where places come from.
    pub positions: PatchPositions,
    /// How queries and keys turn.
    pub turning: Turning,
    /// The base of the frequencies where the checkpoint does not say.
    pub rotation_base: f64,
    /// How patches become rows.
    pub joining: Joining,
    /// From joined patches to rows of the text.
    pub projector: &'static [ProjectorStep],
    /// The same of what taps give; `{i}` is the tap.
    pub tap_projector: &'static [ProjectorStep],
    /// The network's function where the checkpoint does not say.
    pub activation: Activation,
    /// How pictures are sized.
    pub sizing: SizingKind,
    /// Positions of the text have three axes in sections one after another (`false`) or in turns (`true`).
    pub axes: Option<bool>,
    /// The sections where the checkpoint does not say.
    pub sections: [usize; 3],
    /// Rows of an image that attend to each other both ways.
    pub both_ways: BothWays,
    /// What the text model reads around rows.
    pub marks: ImageMarks,
    /// Numbers that checkpoints leave out where they are the usual ones, by their key under `vision_config.`.
    pub defaults: &'static [(&'static str, usize)],
    /// What GGUF files of towers call it.
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

const TILED: VisionDescriptor = VisionDescriptor {
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

const WINDOWED: VisionDescriptor = VisionDescriptor {
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

const STRETCHED: VisionDescriptor = VisionDescriptor {
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
    ..WINDOWED
};

const AXES: VisionDescriptor = VisionDescriptor {
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
pub const TOWERS: &[VisionDescriptor] = &[SIGLIP, TILED, WINDOWED, STRETCHED, AXES];
