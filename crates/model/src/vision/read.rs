//! Reads the numbers of a checkpoint's tower.

use std::collections::BTreeSet;

use device::Activation;
use weights::{Array, Checkpoint, Metadata, Naming, Value};

use super::{
    BothWays, PatchPositions, ProjectorStep, Recipe, SizingKind, TOWERS, Turning, VisionDescriptor,
    VisionSpec,
};
use crate::error::{Error, Result};
use crate::keys::show;

impl VisionSpec {
    /// Reads the tower of a checkpoint, if it has a supported one, and the names of its tensors.
    /// The text model has rows of `out` columns and heads with `n_pairs` rotated pairs.
    ///
    /// # Errors
    /// A number is missing or invalid, or a tensor is missing.
    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        out: usize,
        n_pairs: usize,
    ) -> Result<Option<(VisionSpec, BTreeSet<String>)>> {
        // GGUF files have a tower only after [`with_mmproj`](super::with_mmproj) added it.
        if !matches!(checkpoint.naming, Naming::HuggingFace | Naming::Gguf) {
            return Ok(None);
        }
        let metadata = &checkpoint.metadata;
        let Some(kind) = metadata.str("model_type") else { return Ok(None) };
        let Some(tower) = TOWERS.iter().find(|tower| tower.hf.contains(&kind)) else { return Ok(None) };
        let there = |prefix: &&&str| checkpoint.tensor(&format!("{prefix}{}.weight", tower.patch)).is_some();
        // Some conversions omit the tower.
        let Some(prefix) = tower.prefixes.iter().find(there) else { return Ok(None) };
        let spec = VisionSpec::read(metadata, tower, prefix, checkpoint, (out, n_pairs))?;
        let mut used = BTreeSet::new();
        spec.build(checkpoint, Some(&mut used))?;
        Ok(Some((spec, used)))
    }

    fn read(
        metadata: &Metadata,
        tower: &'static VisionDescriptor,
        prefix: &'static str,
        checkpoint: &Checkpoint,
        (out, n_pairs): (usize, usize),
    ) -> Result<VisionSpec> {
        let numbers = Numbers { metadata, tower };
        let count = |keys: &[&str], most: usize| numbers.need(keys, most);
        let (hidden, n_heads) = numbers.hidden_and_heads()?;
        let n_layers = count(&["num_hidden_layers", "depth"], 1 << 10)?;
        let patch = count(&["patch_size"], 1 << 8)?;
        let fixed = tower.positions == PatchPositions::Table;
        let side = if fixed { Some(count(&["image_size"], 1 << 14)?) } else { None };
        let per_side = side.map_or(0, |side| side / patch);
        let merge = numbers.merge(per_side)?;
        if let Some(side) = side
            && (!side.is_multiple_of(patch) || !per_side.is_multiple_of(merge) || per_side == 0)
        {
            let expected = format!("a multiple of {merge} patches of {patch} pixels");
            return Err(numbers.bad("vision_config.image_size", side, expected));
        }
        let table_side = numbers.table_side(per_side)?;
        let full_layers = numbers.layers("fullatt_block_indexes", n_layers)?;
        let windowed = metadata.get("vision_config.fullatt_block_indexes").is_some();
        let window = match windowed {
            true => Some((count(&["window_size"], 1 << 14)? / merge / patch).max(1)),
            false => None,
        };
        let taps = match tower.tap_projector {
            [] => vec![],
            _ => numbers.layers("deepstack_visual_indexes", n_layers)?,
        };
        let sections = match tower.axes {
            None => [0; 3],
            Some(_) => numbers.sections(tower.sections, n_pairs)?,
        };
        let frames = match tower.sizing {
            SizingKind::Pixels => count(&["temporal_patch_size"], 16)?,
            SizingKind::Square | SizingKind::Tiles | SizingKind::Rows => 1,
        };
        let input_token = numbers.of_text("pad_token_id").and_then(|key| metadata.usize(&key)).unwrap_or(0);
        Ok(VisionSpec {
            recipe: Recipe::read(metadata, tower, side, patch * merge)?,
            tower,
            hidden,
            n_heads,
            n_layers,
            ffn: count(&["intermediate_size"], 1 << 18)?,
            norm_eps: ["layer_norm_eps", "rms_norm_eps"]
                .iter()
                .find_map(|key| metadata.f64(&format!("vision_config.{key}")))
                .unwrap_or(1e-6) as f32,
            activation: numbers.activation()?,
            patch,
            frames,
            merge,
            side,
            table_side,
            window,
            full_layers,
            rotation_base: metadata
                .f64("vision_config.rope_parameters.rope_theta")
                .unwrap_or(tower.rotation_base),
            both_ways: numbers.both_ways(),
            taps,
            out,
            token: numbers.token()?,
            input_token: u32::try_from(input_token).unwrap_or(0),
            row: match checkpoint.naming {
                Naming::Gguf => metadata.str("image_token").map(str::to_owned),
                Naming::HuggingFace | Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => None,
            },
            sections,
            prefixes: [prefix, projector_prefix(tower, checkpoint)],
        })
    }
}

/// The prefix of the projector's tensors in the checkpoint.
fn projector_prefix(tower: &VisionDescriptor, checkpoint: &Checkpoint) -> &'static str {
    let has = |prefix: &&&str| {
        tower.projector.iter().any(|step| match step {
            ProjectorStep::Linear(name) => checkpoint.tensor(&format!("{prefix}{name}.weight")).is_some(),
            ProjectorStep::Turned(name) => checkpoint.tensor(&format!("{prefix}{name}")).is_some(),
            ProjectorStep::Norm(..) | ProjectorStep::PlainNorm | ProjectorStep::Activate(_) => false,
        })
    };
    let prefix = tower.projector_prefixes.iter().find(has).or(tower.projector_prefixes.first());
    prefix.copied().unwrap_or_default()
}

/// Numbers of config.json.
struct Numbers<'a> {
    metadata: &'a Metadata,
    tower: &'static VisionDescriptor,
}

impl Numbers<'_> {
    /// Columns of a patch's state, and heads of attention.
    fn hidden_and_heads(&self) -> Result<(usize, usize)> {
        let hidden = self.need(&["hidden_size", "embed_dim"], 1 << 16)?;
        let n_heads = self.need(&["num_attention_heads", "num_heads"], 1 << 10)?;
        let rotates = self.tower.turning != Turning::None;
        if !hidden.is_multiple_of(n_heads) || rotates && !(hidden / n_heads).is_multiple_of(4) {
            let expected = format!(
                "a divisor of the {hidden} columns, with heads of a multiple of 4 columns if patches rotate"
            );
            return Err(self.bad("num_heads", n_heads, expected));
        }
        for (key, expected) in [("head_dim", hidden / n_heads), ("num_key_value_heads", n_heads)] {
            let key = format!("vision_config.{key}");
            if let Some(found) = self.top(&key, 1 << 16)?.filter(|found| *found != expected) {
                let expected = format!("{expected}, because {n_heads} query heads share {hidden} columns");
                return Err(self.bad(&key, found, expected));
            }
        }
        Ok((hidden, n_heads))
    }

    /// Patches a side of the square that becomes one text row, for images of `per_side` patches a
    /// side.
    fn merge(&self, per_side: usize) -> Result<usize> {
        match self.tower.sizing {
            SizingKind::Square => {
                let rows = self.top("mm_tokens_per_image", 1 << 16)?.unwrap_or(256);
                let of_side = (rows as f64).sqrt() as usize;
                if of_side == 0 || of_side * of_side != rows || !per_side.is_multiple_of(of_side) {
                    let expected = format!("the square of a divisor of {per_side}, the patches a side");
                    return Err(self.bad("mm_tokens_per_image", rows, expected));
                }
                Ok(per_side / of_side)
            }
            SizingKind::Tiles => Ok(self.top("scale_factor", 64)?.unwrap_or(2)),
            SizingKind::Pixels => self.need(&["spatial_merge_size"], 64),
            SizingKind::Rows => self.need(&["pooling_kernel_size"], 64),
        }
    }

    /// Positions a side of the learned table, for images of `per_side` patches a side.
    fn table_side(&self, per_side: usize) -> Result<usize> {
        match self.tower.positions {
            PatchPositions::None => Ok(0),
            PatchPositions::Table => Ok(per_side),
            PatchPositions::Axes => self.need(&["position_embedding_size"], 1 << 20),
            PatchPositions::Stretched => {
                let n = self.need(&["num_position_embeddings"], 1 << 22)?;
                let side = (n as f64).sqrt() as usize;
                match side * side == n {
                    true => Ok(side),
                    false => Err(self.bad("vision_config.num_position_embeddings", n, "a square".to_owned())),
                }
            }
        }
    }

    /// Layers of the tower, ascending; empty if the checkpoint lists none.
    fn layers(&self, key: &str, n_layers: usize) -> Result<Vec<usize>> {
        let key = format!("vision_config.{key}");
        let list = self.list(&key)?.unwrap_or_default();
        if !list.is_sorted_by(|a, b| a < b) {
            return Err(self.bad(&key, format!("{list:?}"), "ascending layers".to_owned()));
        }
        match list.last().filter(|last| **last >= n_layers) {
            Some(last) => Err(self.bad(&key, last, format!("layers below {n_layers}"))),
            None => Ok(list),
        }
    }

    /// The token that stands for a row of an image.
    fn token(&self) -> Result<u32> {
        let keys = ["image_token_id", "image_token_index"];
        let token = keys.iter().find_map(|key| self.metadata.usize(key));
        token.and_then(|token| u32::try_from(token).ok()).ok_or_else(|| Error::MissingKey {
            keys: keys.join(", "),
            expected: "the token that stands for a row of an image".to_owned(),
        })
    }

    /// The activation of the tower's network.
    fn activation(&self) -> Result<Activation> {
        let said = ["hidden_act", "hidden_activation"].map(|key| format!("vision_config.{key}"));
        let said = said.iter().find_map(|key| Some((key, self.metadata.str(key)?)));
        match said {
            None => Ok(self.tower.activation),
            Some((_, "silu")) => Ok(Activation::Silu),
            Some((_, "gelu_pytorch_tanh" | "gelu_new")) => Ok(Activation::GeluTanh),
            Some((_, "gelu")) => Ok(Activation::GeluErf),
            Some((key, found)) => {
                Err(self.bad(key, format!("{found:?}"), "silu, gelu or gelu_pytorch_tanh".to_owned()))
            }
        }
    }

    /// Layers of the text model in which image rows attend both ways.
    fn both_ways(&self) -> BothWays {
        match self.tower.both_ways {
            BothWays::InWindowsIfSaid => match self.of_text("use_bidirectional_attention") {
                Some(key) if self.metadata.str(&key) == Some("vision") => BothWays::InWindowsIfSaid,
                Some(_) | None => BothWays::Never,
            },
            BothWays::Always => BothWays::Always,
            BothWays::Never => BothWays::Never,
        }
    }

    /// The full key of a number of the text model, if the checkpoint has it and it is not null.
    fn of_text(&self, key: &str) -> Option<String> {
        let keys = [format!("text_config.{key}"), key.to_owned()];
        keys.into_iter().find(|key| self.metadata.get(key).is_some_and(|v| !matches!(v, Value::Null)))
    }

    fn bad(&self, key: &str, found: impl ToString, expected: String) -> Error {
        Error::BadKey { key: key.to_owned(), found: found.to_string(), expected }
    }

    /// Reads a number of config.json, from 1 to `most`.
    fn top(&self, key: &str, most: usize) -> Result<Option<usize>> {
        match self.metadata.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let n = self.metadata.usize(key).filter(|n| (1..=most).contains(n));
                let found = || show(value);
                n.map(Some).ok_or_else(|| self.bad(key, found(), format!("a number from 1 to {most}")))
            }
        }
    }

    /// Reads a number of the tower, or its default.
    fn need(&self, keys: &[&str], most: usize) -> Result<usize> {
        for key in keys {
            if let Some(n) = self.top(&format!("vision_config.{key}"), most)? {
                return Ok(n);
            }
        }
        let usual = self.tower.defaults.iter().find(|(key, _)| keys.contains(key));
        usual.map(|(_, n)| *n).ok_or_else(|| Error::MissingKey {
            keys: keys.iter().map(|key| format!("vision_config.{key}")).collect::<Vec<_>>().join(", "),
            expected: format!("a number from 1 to {most}"),
        })
    }

    fn list(&self, key: &str) -> Result<Option<Vec<usize>>> {
        match self.metadata.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(Array::Int(list))) => {
                let list: Option<Vec<usize>> = list.iter().map(|n| usize::try_from(*n).ok()).collect();
                list.map(Some).ok_or_else(|| self.bad(key, "a negative number", "layers".to_owned()))
            }
            Some(other) => Err(self.bad(key, show(other), "a list of layers".to_owned())),
        }
    }

    /// The sections of a head's `n_pairs` pairs among the position axes.
    fn sections(&self, usual: [usize; 3], n_pairs: usize) -> Result<[usize; 3]> {
        let mut found = None;
        for config in ["text_config.", ""] {
            for object in ["rope_parameters.", "rope_scaling."] {
                let key = format!("{config}{object}mrope_section");
                if let (None, Some(list)) = (&found, self.list(&key)?) {
                    found = Some((key, list));
                }
            }
        }
        let (key, list) = match found {
            Some((key, list)) => (key, list),
            // The default sections fit only the default head.
            None if usual.iter().sum::<usize>() == n_pairs => return Ok(usual),
            None => {
                return Err(Error::MissingKey {
                    keys: "rope_parameters.mrope_section, rope_scaling.mrope_section".to_owned(),
                    expected: format!("three numbers with the sum {n_pairs}"),
                });
            }
        };
        match list[..] {
            [t, h, w] if t.checked_add(h).and_then(|n| n.checked_add(w)) == Some(n_pairs) => Ok([t, h, w]),
            _ => Err(self.bad(&key, format!("{list:?}"), format!("three numbers with the sum {n_pairs}"))),
        }
    }
}
