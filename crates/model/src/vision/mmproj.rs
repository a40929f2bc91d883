//! A vision tower in its own GGUF file (`mmproj`), as llama.cpp's tools/mtmd reads it. Its names
//! and numbers are translated to a folder's and back, so that towers are built in one way only.

use std::collections::HashMap;

use weights::keys::PREPROCESSOR_PREFIX;
use weights::{Array, BlockType, Bytes, Checkpoint, Metadata, Naming, Planes, Tensor, Value};

use super::descriptor::{ProjectorStep, SizingKind, VisionDescriptor};
use super::{BothWays, CHANNELS, Joining, PatchPositions, TOWERS, VisionSpec};
use crate::error::{Error, Result};

/// The key of the token that stands for a row. llama.cpp has no such key; files written by this
/// crate have it.
pub(crate) const TOKEN_KEY: &str = "clip.vision.image_token_id";

/// The key that tells whether image rows attend both ways. llama.cpp decides by the text model's
/// width; files written by this crate have it.
pub(crate) const BOTH_WAYS_KEY: &str = "clip.vision.image_rows_both_ways";

/// A tensor of the file, and its name in folders.
pub(crate) struct Pair {
    /// Name in the file, without `.weight` and `.bias`.
    pub gguf: String,
    /// Name in folders, without `.weight` and `.bias` unless `whole`.
    pub hf: String,
    /// True if the name in folders has no suffix.
    pub whole: bool,
    /// Difference between the two tensors.
    pub kind: PairKind,
}

/// Difference between a tensor of the file and one of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairKind {
    /// No difference.
    Same,
    /// Each frame of a patch is a separate tensor.
    Patch,
    /// The tensor is this third of the folder's rows.
    Third(usize),
    /// A norm whose weight includes the 1 that folders leave out.
    WholeNorm,
    /// No difference, and neither name has a suffix.
    Bare,
}

/// All tensors of a tower with `n_layers` layers and taps after the layers `taps`. `prefixes` are
/// those of folders.
pub(crate) fn pairs(
    tower: &VisionDescriptor,
    prefixes: [&str; 2],
    n_layers: usize,
    taps: &[usize],
) -> Vec<Pair> {
    use PairKind::{Bare, Patch, Same, Third, WholeNorm};
    let Some(names) = tower.mmproj else { return Vec::new() };
    let [of_tower, of_projector] = prefixes;
    let mut all = Vec::new();
    let mut push = |gguf: String, hf: String, whole: bool, kind: PairKind| {
        all.push(Pair { gguf, hf, whole, kind });
    };
    push("v.patch_embd".to_owned(), format!("{of_tower}{}", tower.patch), false, Patch);
    if tower.positions != PatchPositions::None {
        let whole = tower.positions == PatchPositions::Axes;
        push("v.position_embd".to_owned(), format!("{of_tower}{}", tower.position), whole, Same);
    }
    if let Joining::Standardised { bias, scale } = tower.joining {
        push("v.std_bias".to_owned(), format!("{of_tower}{bias}"), true, Bare);
        push("v.std_scale".to_owned(), format!("{of_tower}{scale}"), true, Bare);
    }
    if let Some(norm) = tower.last_norm {
        push("v.post_ln".to_owned(), format!("{of_tower}{norm}"), false, Same);
    }
    for l in 0..n_layers {
        let hf = |name: &str| format!("{of_tower}{}{name}", tower.layer.replace("{l}", &l.to_string()));
        let mut layer = |gguf: &str, name: &str, kind| {
            let is_norm = name.ends_with("norm");
            if !tower.bounds || is_norm {
                push(format!("v.blk.{l}.{gguf}"), hf(name), false, kind);
                return;
            }
            push(format!("v.blk.{l}.{gguf}"), format!("{}.linear", hf(name)), false, kind);
            for bound in ["input_min", "input_max", "output_min", "output_max"] {
                push(format!("v.blk.{l}.{gguf}.{bound}"), format!("{}.{bound}", hf(name)), true, Bare);
            }
        };
        layer("ln1", tower.norms[0], Same);
        layer("ln2", tower.norms[1], Same);
        if let Some([of_attention, of_network]) = tower.post_norms {
            layer("attn_post_norm", of_attention, Same);
            layer("ffn_post_norm", of_network, Same);
        }
        if let Some([of_q, of_k]) = tower.qk_norms {
            layer("attn_q_norm", of_q, Same);
            layer("attn_k_norm", of_k, Same);
        }
        layer("attn_out", tower.out, Same);
        let parts = ["attn_q", "attn_k", "attn_v"];
        match tower.qkv {
            [all] if names.splits_qkv => {
                parts.iter().enumerate().for_each(|(i, part)| layer(part, all, Third(i)));
            }
            [all] => layer("attn_qkv", all, Same),
            each => parts.iter().zip(each).for_each(|(part, name)| layer(part, name, Same)),
        }
        let network: &[&str] = if tower.network.len() == 3 {
            &["ffn_gate", "ffn_up", "ffn_down"]
        } else {
            &["ffn_up", "ffn_down"]
        };
        network.iter().zip(tower.network).for_each(|(part, name)| layer(part, name, Same));
    }
    let weighted = |steps: &'static [ProjectorStep]| {
        steps.iter().filter_map(|step| match step {
            ProjectorStep::Norm(name, _, offset) => {
                Some((*name, false, if *offset == 0.0 { Same } else { WholeNorm }))
            }
            ProjectorStep::Linear(name) => Some((*name, false, Same)),
            ProjectorStep::Turned(name) => Some((*name, true, Same)),
            ProjectorStep::PlainNorm | ProjectorStep::Activate(_) => None,
        })
    };
    for (gguf, (name, whole, kind)) in names.projector.iter().zip(weighted(tower.projector)) {
        push((*gguf).to_owned(), format!("{of_projector}{name}"), whole, kind);
    }
    for (i, l) in taps.iter().enumerate() {
        for (gguf, (name, whole, kind)) in names.tap_projector.iter().zip(weighted(tower.tap_projector)) {
            let hf = format!("{of_projector}{}", name.replace("{i}", &i.to_string()));
            push(gguf.replace("{l}", &l.to_string()), hf, whole, kind);
        }
    }
    all
}

/// Adds the tower of an `mmproj` file to a text model: its tensors and numbers, under the names of
/// folders.
///
/// # Errors
/// One of the files is of another kind, the tower is unknown, or the vocabulary has no token for
/// its rows.
pub fn with_mmproj(mut text: Checkpoint, mmproj: &Checkpoint) -> Result<Checkpoint> {
    let metadata = &mmproj.metadata;
    let kinds = || TOWERS.iter().filter_map(|tower| Some(tower.mmproj?.kind)).collect::<Vec<_>>().join(", ");
    let architecture = metadata.str("general.architecture").unwrap_or_default();
    if mmproj.naming != Naming::Gguf || architecture != "clip" {
        let found = format!("{architecture:?} in the vision tower's file");
        return Err(bad("general.architecture", found, "\"clip\", a file that llama.cpp calls mmproj"));
    }
    if text.naming != Naming::Gguf {
        return Err(bad("a text model in another format", &text.format, "GGUF, like the tower's file"));
    }
    let key = ["clip.vision.projector_type", "clip.projector_type"];
    let kind = key.iter().find_map(|key| metadata.str(key)).unwrap_or_default();
    let of_kind = |tower: &&VisionDescriptor| tower.mmproj.is_some_and(|names| names.kind == kind);
    let tower = TOWERS.iter().find(of_kind);
    let tower = tower.ok_or_else(|| bad(key[1], format!("{kind:?}"), format!("one of {}", kinds())))?;
    let reader = Reader { metadata, tower, mmproj };
    reader.numbers(&mut text.metadata)?;
    text.tensors.extend(reader.tensors()?);
    text.file_bytes += mmproj.file_bytes;
    text.format = format!("{} with an image encoder", text.format);
    Ok(text)
}

fn bad(key: &str, found: impl ToString, expected: impl ToString) -> Error {
    Error::BadKey { key: key.to_owned(), found: found.to_string(), expected: expected.to_string() }
}

struct Reader<'a> {
    metadata: &'a Metadata,
    tower: &'static VisionDescriptor,
    mmproj: &'a Checkpoint,
}

impl Reader<'_> {
    fn count(&self, key: &str) -> Option<usize> {
        self.metadata.usize(&format!("clip.vision.{key}"))
    }

    fn layers(&self) -> Result<usize> {
        let key = "clip.vision.block_count";
        let n = self.metadata.usize(key).filter(|n| (1..=1 << 10).contains(n));
        n.ok_or_else(|| bad(key, show(self.metadata, key), "a number of layers, 1 to 1024"))
    }

    /// The layers with taps, ascending.
    fn taps(&self) -> Vec<usize> {
        let flags = match self.metadata.get("clip.vision.is_deepstack_layers") {
            Some(Value::Array(Array::Bool(flags))) => flags.clone(),
            _ => Vec::new(),
        };
        flags.iter().enumerate().filter(|(_, is)| **is).map(|(l, _)| l).collect()
    }

    /// Adds the file's numbers under the keys of config.json and preprocessor_config.json.
    fn numbers(&self, text: &mut Metadata) -> Result<()> {
        let n_layers = self.layers()?;
        let mut all: Vec<(String, Value)> = Vec::new();
        let mut put = |key: String, value: Value| all.push((key, value));
        let model_type = self.tower.hf.first().copied().unwrap_or_default();
        put("model_type".to_owned(), Value::Str(model_type.to_owned()));
        let vision = |key: &str| format!("vision_config.{key}");
        for (name, key) in [
            ("hidden_size", "embedding_length"),
            ("intermediate_size", "feed_forward_length"),
            ("num_attention_heads", "attention.head_count"),
            ("patch_size", "patch_size"),
            ("image_size", "image_size"),
            ("spatial_merge_size", "spatial_merge_size"),
            ("window_size", "window_size"),
        ] {
            if let Some(n) = self.count(key) {
                put(vision(name), Value::Int(n as i128));
            }
        }
        put(vision("num_hidden_layers"), Value::Int(n_layers as i128));
        if let Some(eps) = self.metadata.f64("clip.vision.attention.layer_norm_epsilon") {
            put(vision("layer_norm_eps"), Value::Float(eps));
        }
        let list = |list: Vec<usize>| Value::Array(Array::Int(list.into_iter().map(|l| l as i64).collect()));
        if !self.tower.tap_projector.is_empty() {
            put(vision("deepstack_visual_indexes"), list(self.taps()));
        }
        if let Some(every) = self.count("n_wa_pattern").filter(|n| *n > 0) {
            let full = (0..n_layers).filter(|l| (l + 1).is_multiple_of(every)).collect();
            put(vision("fullatt_block_indexes"), list(full));
            if self.count("window_size").is_none() {
                put(vision("window_size"), Value::Int(112));
            }
        }
        if let Some(table) = self.mmproj.tensor("v.position_embd.weight") {
            let (key, n) = match self.tower.positions == PatchPositions::Axes {
                true => ("position_embedding_size", table.n_rows() / 2),
                false => ("num_position_embeddings", table.n_rows()),
            };
            put(vision(key), Value::Int(n as i128));
        }
        let architecture = text.str("general.architecture").unwrap_or_default().to_owned();
        if self.tower.both_ways == BothWays::InWindowsIfSaid {
            // In published models image rows attend both ways unless layers have per-layer inputs.
            let inputs = text.usize(&format!("{architecture}.embedding_length_per_layer_input"));
            let usual = inputs.unwrap_or(0) == 0;
            if self.metadata.bool(BOTH_WAYS_KEY).unwrap_or(usual) {
                put("use_bidirectional_attention".to_owned(), Value::Str("vision".to_owned()));
            }
        }
        self.sizes(&mut put);
        if let Some(Value::Array(Array::Int(sections))) =
            text.get(&format!("{architecture}.rope.dimension_sections"))
        {
            let sections = sections.iter().take(3).copied().collect();
            put("rope_scaling.mrope_section".to_owned(), Value::Array(Array::Int(sections)));
        }
        let (id, name) = self.token(text)?;
        put("image_token_id".to_owned(), Value::Int(id.into()));
        if let Some(name) = name {
            put("image_token".to_owned(), Value::Str(name));
        }
        for (key, value) in all {
            text.insert(key, value);
        }
        Ok(())
    }

    /// Adds the sizes of images and the normalisation of colours.
    fn sizes(&self, put: &mut dyn FnMut(String, Value)) {
        let vision = |key: &str| format!("vision_config.{key}");
        let scale = self.count("projector.scale_factor");
        match self.tower.sizing {
            SizingKind::Square => {
                let (side, patch) = (self.count("image_size"), self.count("patch_size"));
                if let (Some(side), Some(patch)) = (side, patch.filter(|n| *n > 0)) {
                    let rows = (side / patch / scale.filter(|n| *n > 0).unwrap_or(4)).pow(2);
                    put("mm_tokens_per_image".to_owned(), Value::Int(rows as i128));
                }
            }
            SizingKind::Tiles => {
                put("scale_factor".to_owned(), Value::Int(scale.unwrap_or(2) as i128));
            }
            SizingKind::Rows => {
                let (scale, patch) = (scale.unwrap_or(3), self.count("patch_size").unwrap_or(16));
                put(vision("pooling_kernel_size"), Value::Int(scale as i128));
                if let Some(most) = self.count("image_max_pixels") {
                    let rows = most / (patch * scale).pow(2).max(1);
                    put(format!("{PREPROCESSOR_PREFIX}max_soft_tokens"), Value::Int(rows as i128));
                }
            }
            SizingKind::Pixels => {}
        }
        let pixels = self.tower.mmproj.map_or(&[][..], |names| names.pixels);
        for (name, key) in [
            ("min_pixels", "image_min_pixels"),
            ("max_pixels", "image_max_pixels"),
            ("size.longest_edge", "preproc_image_size"),
        ] {
            let usual = pixels.iter().find(|(usual, _)| *usual == name).map(|(_, n)| *n);
            if let Some(n) = self.count(key).or(usual) {
                put(format!("{PREPROCESSOR_PREFIX}{name}"), Value::Int(n as i128));
            }
        }
        for name in ["image_mean", "image_std"] {
            if let Some(value) = self.metadata.get(&format!("clip.vision.{name}")) {
                put(format!("{PREPROCESSOR_PREFIX}{name}"), value.clone());
            }
        }
    }

    /// The token that stands for a row, and its text if it is not the default. llama.cpp needs no
    /// such token, so vocabularies may lack the default one.
    fn token(&self, text: &Metadata) -> Result<(u32, Option<String>)> {
        let tokens = match text.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens @ Array::Str { .. })) => Some(tokens),
            _ => None,
        };
        let row = self.tower.marks.row;
        let find = |is: &dyn Fn(&[u8]) -> bool| {
            let tokens = tokens?;
            (0..tokens.len()).rev().find(|i| tokens.str_bytes(*i).is_some_and(is)).map(|id| id as u32)
        };
        if let Some(id) = find(&|token| token == row.as_bytes()) {
            return Ok((id, None));
        }
        if let Some(id) = find(&|token| token.starts_with(b"<unused") && token.ends_with(b">")) {
            let name = tokens.and_then(|tokens| tokens.str_bytes(id as usize)).unwrap_or_default();
            return Ok((id, Some(String::from_utf8_lossy(name).into_owned())));
        }
        let said = self.metadata.usize(TOKEN_KEY).and_then(|id| u32::try_from(id).ok());
        let expected = format!("a vocabulary with {row}, the token for a row of an image");
        said.map(|id| (id, None)).ok_or_else(|| bad("tokenizer.ggml.tokens", "none such", expected))
    }

    /// The tensors of the file under the names of folders.
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let (tower, n_layers) = (self.tower, self.layers()?);
        let prefixes =
            [tower.prefixes, tower.projector_prefixes].map(|all| all.first().copied().unwrap_or_default());
        let by_name: HashMap<&str, &Tensor> =
            self.mmproj.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let find = |name: &str| by_name.get(name).copied();
        let mut all = Vec::new();
        let mut thirds: HashMap<String, Vec<&Tensor>> = HashMap::new();
        for pair in pairs(tower, prefixes, n_layers, &self.taps()) {
            // Older files swap the names of a plain network's two matrices.
            let swapped = tower.network.len() == 2 && self.is_swapped(&pair.gguf, &find);
            let gguf = match (swapped, pair.gguf.strip_suffix("ffn_up"), pair.gguf.strip_suffix("ffn_down")) {
                (true, Some(before), _) => format!("{before}ffn_down"),
                (true, None, Some(before)) => format!("{before}ffn_up"),
                _ => pair.gguf.clone(),
            };
            if pair.kind == PairKind::Bare {
                let name = pair.hf.clone();
                all.extend(find(&gguf).map(|tensor| Tensor { name, ..tensor.clone() }));
                continue;
            }
            for suffix in ["weight", "bias"] {
                let Some(tensor) = find(&format!("{gguf}.{suffix}")) else { continue };
                let name = if pair.whole { pair.hf.clone() } else { format!("{}.{suffix}", pair.hf) };
                match pair.kind {
                    PairKind::Patch if suffix == "weight" => {
                        let mut patch = self.patch(tensor, find(&format!("{gguf}.weight.1")))?;
                        patch.name = name;
                        all.push(patch);
                    }
                    PairKind::Same | PairKind::Patch | PairKind::Bare => {
                        all.push(Tensor { name, ..tensor.clone() })
                    }
                    PairKind::WholeNorm => {
                        let values = tensor.to_f32().into_iter().map(|v| v - 1.0);
                        all.push(in_f32(name, tensor.shape.clone(), values));
                    }
                    PairKind::Third(_) => thirds.entry(name).or_default().push(tensor),
                }
            }
        }
        for (name, parts) in thirds {
            all.push(joined(name, &parts)?);
        }
        Ok(all)
    }

    fn is_swapped<'t>(&self, name: &str, find: &dyn Fn(&str) -> Option<&'t Tensor>) -> bool {
        let Some((before, _)) = name.rsplit_once('.') else { return false };
        let hidden = self.count("embedding_length");
        let up = find(&format!("{before}.ffn_up.weight"));
        let down = find(&format!("{before}.ffn_down.weight"));
        let rows = |tensor: Option<&Tensor>| tensor.and_then(|t| t.shape.first().copied());
        rows(up) == hidden && rows(down) != hidden
    }

    /// The patch embedding, `(hidden, channels, patch, patch)`, or `(hidden, channels, frames,
    /// patch, patch)` with several frames.
    fn patch(&self, first: &Tensor, second: Option<&Tensor>) -> Result<Tensor> {
        let Some(second) = second else {
            if self.tower.sizing == SizingKind::Pixels {
                return Err(bad("v.patch_embd.weight.1", "nothing", "the weights of a patch's second frame"));
            }
            return Ok(first.clone());
        };
        let [n, CHANNELS, h, w] = first.shape[..] else {
            let expected = format!("shape [hidden, {CHANNELS}, patch, patch]");
            return Err(bad("v.patch_embd.weight", format!("shape {:?}", first.shape), expected));
        };
        if second.shape != first.shape || h * w == 0 {
            let found = format!("shape {:?}", second.shape);
            return Err(bad("v.patch_embd.weight.1", found, format!("shape {:?}", first.shape)));
        }
        let (a, b) = (first.to_f32(), second.to_f32());
        let values = a.chunks(h * w).zip(b.chunks(h * w)).flat_map(|(a, b)| a.iter().chain(b)).copied();
        Ok(in_f32(String::new(), vec![n, CHANNELS, 2, h, w], values))
    }
}

fn show(metadata: &Metadata, key: &str) -> String {
    metadata.get(key).map_or_else(|| "nothing".to_owned(), crate::keys::show)
}

fn in_f32(name: String, shape: Vec<usize>, values: impl Iterator<Item = f32>) -> Tensor {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let (data, planes) = (Bytes::from_slice(&bytes), Planes::default());
    Tensor { name, shape, block: BlockType::F32, data, planes }
}

/// One tensor with the rows of several.
fn joined(name: String, parts: &[&Tensor]) -> Result<Tensor> {
    let first = parts.first().copied();
    let fits = |part: &&Tensor| {
        first.is_some_and(|f| {
            part.block == f.block && part.shape.get(1..) == f.shape.get(1..) && !part.block.has_planes()
        })
    };
    let Some(first) = first.filter(|_| parts.len() == 3 && parts.iter().all(fits)) else {
        let found =
            parts.iter().map(|t| format!("{:?} of {}", t.shape, t.block)).collect::<Vec<_>>().join(", ");
        return Err(bad(&name, found, "queries, keys and values of one width and type"));
    };
    let mut shape = first.shape.clone();
    shape[0] = parts.iter().filter_map(|part| part.shape.first()).sum();
    let data = Bytes::from_parts(&parts.iter().map(|part| &part.data[..]).collect::<Vec<_>>());
    Ok(Tensor { name, shape, data, ..first.clone() })
}

impl VisionSpec {
    /// The text of the token that stands for a row.
    pub fn row_text(&self) -> &str {
        self.row.as_deref().unwrap_or(self.tower.marks.row)
    }

    /// Prefixes of the projector's and the tower's names in a folder.
    pub(crate) fn folder_prefixes(&self) -> [&'static str; 2] {
        self.prefixes
    }
}
