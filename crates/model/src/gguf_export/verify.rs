//! Reads the keys back and checks that they describe the model that they were written from.

use std::fmt::Debug;
use weights::{Bytes, Checkpoint, Metadata, Naming, Planes, Tensor};

use super::recipe::TensorRecipe;
use super::rows;
use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::read;
use crate::recurrent::RecurrentSpec;
use crate::rope::RopeSpec;
use crate::spec::{LayerSpec, ModelSpec};
use crate::tensors::Tensors;

/// Tolerance of numbers that are written as f32 or derived from others.
const TOLERANCE: f32 = 1e-5;

/// Refuses an export whose keys describe another model.
pub(super) fn same_model(
    spec: &ModelSpec,
    target: &'static ArchDescriptor,
    architecture: &str,
    metadata: &Metadata,
    recipes: &[TensorRecipe],
) -> Result<()> {
    let tensors = recipes.iter().map(outline).collect::<Result<_>>()?;
    let outline = Checkpoint {
        naming: Naming::Gguf,
        metadata: metadata.clone(),
        tensors,
        left_out: Vec::new(),
        format: String::new(),
        file_bytes: 0,
    };
    let keys = Keys::new(&outline.metadata, Naming::Gguf, target, architecture);
    let read = read::read(&keys, target, &mut Tensors::new(&outline, target))?;

    same("columns of the residual stream", &spec.hidden, &read.hidden)?;
    same("vocabulary size", &spec.n_vocab, &read.n_vocab)?;
    same("context length", &spec.n_ctx_train, &read.n_ctx_train)?;
    same("activation", &spec.activation, &read.activation)?;
    same("tied head", &spec.tied_head, &read.tied_head)?;
    same("columns of the per-layer input", &spec.per_layer_width, &read.per_layer_width)?;
    same("residual streams", &spec.n_streams, &read.n_streams)?;
    same("columns of the low-rank residual", &spec.laurel_rank, &read.laurel_rank)?;
    close("epsilon of the norms", spec.norm_eps, read.norm_eps)?;
    close("factor on embeddings", spec.embedding_scale, read.embedding_scale)?;
    close("factor on each branch", spec.residual_scale, read.residual_scale)?;
    close("factor on logits", spec.logit_scale, read.logit_scale)?;
    let cap = |cap: Option<f32>| cap.unwrap_or(0.0);
    close("cap of logits", cap(spec.logit_softcap), cap(read.logit_softcap))?;
    close("cap of attention scores", cap(spec.attention_softcap), cap(read.attention_softcap))?;
    same("number of layers", &spec.n_layers(), &read.n_layers())?;
    spec.layers
        .iter()
        .zip(&read.layers)
        .enumerate()
        .try_for_each(|(l, (a, b))| same_layer(l, a, b, spec.n_ctx_train))
}

/// The tensor as far as reading numbers needs it: small vectors whole, of others the shape, and
/// bytes that show whether two tensors are equal.
fn outline(recipe: &TensorRecipe) -> Result<Tensor> {
    if recipe.shape.len() == 1 {
        return rows::make(recipe);
    }
    let data = recipe.pieces.first().map_or_else(|| Bytes::from_slice(&[]), |(first, _)| first.data.clone());
    Ok(Tensor {
        name: recipe.name.clone(),
        shape: recipe.shape.clone(),
        block: recipe.block(),
        data,
        planes: Planes::default(),
    })
}

fn same_layer(l: usize, a: &LayerSpec, b: &LayerSpec, n_ctx: usize) -> Result<()> {
    let what = |what: &str| format!("layer {l}, {what}");
    same(&what("attention"), &a.attends, &b.attends)?;
    // Value heads may have been reordered.
    let recurrence = |layer: &LayerSpec| layer.recurrent.map(|r| RecurrentSpec { tiled: false, ..r });
    same(&what("recurrence"), &recurrence(a), &recurrence(b))?;
    same(&what("experts"), &a.experts, &b.experts)?;
    same(&what("columns of the feed-forward network"), &a.ffn, &b.ffn)?;
    same(&what("cutoff of gates"), &a.cutoff.is_some(), &b.cutoff.is_some())?;
    close(&what("cutoff of gates"), a.cutoff.unwrap_or(0.0), b.cutoff.unwrap_or(0.0))?;
    if !a.attends {
        return Ok(());
    }
    same(&what("query heads"), &a.n_heads, &b.n_heads)?;
    same(&what("key and value heads"), &a.n_kv_heads, &b.n_kv_heads)?;
    same(&what("columns of a head"), &a.head_dim, &b.head_dim)?;
    same(&what("layer whose keys and values are shared"), &a.kv_from, &b.kv_from)?;
    same(&what("values equal to keys"), &a.keys_are_values, &b.keys_are_values)?;
    same(&what("window"), &a.window, &b.window)?;
    close(&what("attention scale"), a.attention_scale, b.attention_scale)?;
    same(
        &what("columns that rotate"),
        &a.rope.as_ref().map(|r| r.n_dims),
        &b.rope.as_ref().map(|r| r.n_dims),
    )?;
    let (Some(a), Some(b)) = (&a.rope, &b.rope) else { return Ok(()) };
    close(&what("factor on cosine and sine"), a.scale(), b.scale())?;
    // LongRoPE has one set of frequencies for short contexts and one for long.
    for n_ctx in [1, n_ctx] {
        let frequencies = |rope: &RopeSpec| rope.frequencies(n_ctx);
        for (a, b) in frequencies(a).into_iter().zip(frequencies(b)) {
            close(&what("rotation frequency"), a, b)?;
        }
    }
    Ok(())
}

fn same<T: PartialEq + Debug>(what: &str, source: &T, read: &T) -> Result<()> {
    if source == read { Ok(()) } else { Err(differs(what, source, read)) }
}

fn close(what: &str, source: f32, read: f32) -> Result<()> {
    let near = (source - read).abs() <= TOLERANCE * source.abs().max(TOLERANCE);
    if near { Ok(()) } else { Err(differs(what, &source, &read)) }
}

fn differs(what: &str, source: &dyn Debug, read: &dyn Debug) -> Error {
    Error::Export {
        what: what.to_owned(),
        found: format!("{source:?}"),
        expected: format!("{read:?}, which is all that the format can store of this model"),
    }
}
