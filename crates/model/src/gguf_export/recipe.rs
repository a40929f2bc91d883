//! Recipes: the rows of the source that make each tensor of a GGUF file.

use std::collections::HashSet;
use std::ops::Range;

use device::RopeStyle;
use weights::{BlockType, Bytes, Checkpoint, Naming, Planes, Tensor, codec};

use super::recurrent::{self, Change};
use crate::descriptor::ArchDescriptor;
use crate::embedding::EmbeddingSpec;
use crate::error::{Error, Result};
use crate::names::{TensorName, TensorRole};
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::ModelSpec;
use crate::tensors::{Tensors, lies_as, old_suffix, shape};

/// A tensor of the source, and a range of its rows.
pub(super) type Piece = (Tensor, Range<usize>);

/// The recipe of one tensor.
#[derive(Clone, Debug)]
pub(super) struct TensorRecipe {
    /// Name in the GGUF file.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Rows of the source's tensors, concatenated; all of one type and width. The elements of a
    /// vector are rows.
    pub pieces: Vec<Piece>,
    /// Order of the rows: row `r` of the result is row `order[r]` of the pieces. `None`: unchanged.
    pub order: Option<Vec<usize>>,
    /// Offset added to the values, which are written as F32. `None`: the type is unchanged.
    pub plain: Option<f32>,
    /// True if the matrices of the pieces must be transposed. Their shapes already are.
    pub transposed: bool,
    /// Change of the values after that.
    pub change: Change,
}

impl TensorRecipe {
    /// The block type of the result.
    pub fn block(&self) -> BlockType {
        let (None, Some((tensor, _))) = (self.plain, self.pieces.first()) else { return BlockType::F32 };
        if let BlockType::Affine(affine) = tensor.block
            && self.change == Change::None
        {
            return codec::repack::block_twin(affine).unwrap_or(tensor.block);
        }
        self.change.block(tensor.block)
    }

    /// A recipe for a vector computed in memory.
    fn vector(name: &str, values: &[f32]) -> TensorRecipe {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor {
            name: name.to_owned(),
            shape: vec![values.len()],
            block: BlockType::F32,
            data: Bytes::from_slice(&bytes),
            planes: Planes::default(),
        };
        TensorRecipe {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            pieces: vec![whole(&tensor)],
            order: None,
            plain: None,
            transposed: false,
            change: Change::None,
        }
    }
}

/// All rows of a tensor.
pub(super) fn whole(tensor: &Tensor) -> (Tensor, Range<usize>) {
    let n_rows = if tensor.shape.len() == 1 { tensor.n_cols() } else { tensor.n_rows() };
    (tensor.clone(), 0..n_rows)
}

/// A tensor of the source that the model uses, or the experts of one role in a layer.
struct RoleTensors<'a> {
    role: TensorRole,
    row: &'static TensorName,
    layer: Option<usize>,
    suffix: &'static str,
    tensors: Vec<&'a Tensor>,
}

/// Recipes for all tensors that the model uses, in the order of the tables, layer by layer.
pub(super) fn of_all(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    target: &'static ArchDescriptor,
) -> Result<Vec<TensorRecipe>> {
    let mut tensors = Tensors::new(checkpoint, spec.family);
    if spec.n_next > 0 {
        tensors.names_next(spec.n_layers());
    }
    let exporter = Exporter { spec, target, tensors };
    let mut roles: Vec<(TensorRole, bool)> = Vec::new();
    for row in spec.family.tensors.iter().copied().flatten() {
        let own = if row.stacked.is_empty() { std::slice::from_ref(&row.role) } else { row.stacked };
        for role in own {
            if !roles.iter().any(|(other, _)| other == role) {
                roles.push((*role, row.is_of_layers()));
            }
        }
    }
    let of = |in_layers: bool| {
        roles.iter().filter(move |(_, of_layers)| *of_layers == in_layers).map(|(role, _)| *role)
    };
    let mut recipes = Vec::new();
    let mut written = HashSet::new();
    let layers = std::iter::once(None).chain((0..spec.layers.len()).map(Some));
    for layer in layers {
        for role in of(layer.is_some()) {
            if role == TensorRole::Output && spec.tied_head {
                // Different factors on embedding and head split a tied matrix into two.
                if recurrent::multiplies(spec) {
                    recipes.extend(exporter.head_apart()?);
                }
                continue;
            }
            if role == TensorRole::RecurrentAll {
                recipes.extend(exporter.apart(layer)?);
                continue;
            }
            if role == TensorRole::AttnKvB && spec.family.recurrent.is_some() {
                recipes.extend(exporter.latent_heads(layer)?);
                continue;
            }
            for suffix in ["weight", "bias"] {
                let Some(found) = exporter.find(role, layer, suffix)? else { continue };
                let recipe = exporter.recipe(&found)?;
                // Roles that share a tensor in both conventions share its recipe.
                if written.insert(recipe.name.clone()) {
                    recipes.push(recipe);
                }
            }
        }
    }
    Ok(recipes)
}

/// The head's rows for the two answers of a ranking language model.
pub(super) fn of_answers(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Option<TensorRecipe>> {
    let Some(answers) = EmbeddingSpec::from_checkpoint(checkpoint, spec)?.and_then(|e| e.answers) else {
        return Ok(None);
    };
    let role = if spec.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
    let tensors = Tensors::new(checkpoint, spec.family);
    let names = tensors.rows(role).into_iter().filter_map(|row| tensors.name(row, None, "weight"));
    let head = names.into_iter().find_map(|name| tensors.named(&name));
    Ok(head.map(|head| TensorRecipe {
        name: "cls.output.weight".to_owned(),
        shape: vec![answers.rows.len(), spec.hidden],
        pieces: answers.rows.iter().map(|row| (head.clone(), *row..row + 1)).collect(),
        order: None,
        plain: None,
        transposed: false,
        change: Change::None,
    }))
}

/// The divisors of RoPE frequencies, which GGUF stores as tensors.
pub(super) fn of_rope(spec: &ModelSpec) -> Vec<TensorRecipe> {
    let full = spec.layers.iter().filter(|l| l.window.is_none()).chain(&spec.layers);
    let Some(rope) = full.filter_map(|l| l.rope.as_ref()).next() else { return Vec::new() };
    match &rope.scaling {
        RopeScaling::LongRope { short, long, .. } => {
            vec![
                TensorRecipe::vector("rope_factors_long.weight", long),
                TensorRecipe::vector("rope_factors_short.weight", short),
            ]
        }
        RopeScaling::ByWavelength { .. } | RopeScaling::Proportional { .. } => {
            vec![TensorRecipe::vector("rope_freqs.weight", &divisors(rope))]
        }
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => Vec::new(),
    }
}

/// Divisor of each pair's frequency. For a pair that does not rotate it is so large that the
/// frequency becomes negligible.
fn divisors(rope: &RopeSpec) -> Vec<f32> {
    const STILL: f32 = 1e30;
    let plain = RopeSpec { scaling: RopeScaling::None, ..rope.clone() };
    let (plain, scaled) = (plain.frequencies(0), rope.frequencies(0));
    plain
        .iter()
        .zip(scaled)
        .map(|(plain, scaled)| if scaled == 0.0 { STILL } else { plain / scaled })
        .collect()
}

struct Exporter<'a> {
    spec: &'a ModelSpec,
    target: &'static ArchDescriptor,
    tensors: Tensors<'a>,
}

impl<'a> Exporter<'a> {
    /// The tensors of a role, if the model uses any, by the first row of the table that finds some,
    /// as at load.
    fn find(
        &self,
        role: TensorRole,
        layer: Option<usize>,
        suffix: &'static str,
    ) -> Result<Option<RoleTensors<'a>>> {
        for alias in [suffix, old_suffix(suffix)] {
            let rows = self.tensors.rows(role);
            let name_of = |row| self.tensors.name(row, layer, alias);
            for (i, row) in rows.iter().copied().enumerate() {
                let Some(name) = name_of(row) else { continue };
                let found = if name.contains("{e}") {
                    self.experts(role, &name, layer)?
                } else {
                    self.tensors.named(&name).into_iter().collect()
                };
                let again = rows.iter().skip(i + 1).any(|other| name_of(other).as_ref() == Some(&name));
                let lies = |t: &Tensor| !again || lies_as(self.spec, row, layer, t, self.spec.naming);
                if found.first().is_some_and(|t| !self.spec.unused_tensors.contains(&t.name) && lies(t)) {
                    return Ok(Some(RoleTensors { role, row, layer, suffix, tensors: found }));
                }
            }
        }
        Ok(None)
    }

    /// The tensors of all experts of a layer, or of other numbered modules; empty if there is no
    /// first.
    fn experts(&self, role: TensorRole, name: &str, layer: Option<usize>) -> Result<Vec<&'a Tensor>> {
        let expert = |e: usize| name.replace("{e}", &e.to_string());
        let n = shape(self.spec, role, layer).first().copied().unwrap_or(0);
        if self.tensors.named(&expert(0)).is_none() {
            return Ok(Vec::new());
        }
        let find = |e: usize| {
            self.tensors.named(&expert(e)).ok_or_else(|| Error::Export {
                what: format!("tensor {}", expert(e)),
                found: "nothing".to_owned(),
                expected: format!("one for each of {n}"),
            })
        };
        (0..n).map(find).collect()
    }

    fn recipe(&self, found: &RoleTensors<'a>) -> Result<TensorRecipe> {
        let RoleTensors { role, row, layer, suffix, ref tensors } = *found;
        let what = tensors.first().map_or_else(String::new, |t| format!("tensor {}", t.name));
        let bad = |found: String, expected: &str| Error::Export {
            what: what.clone(),
            found,
            expected: expected.to_owned(),
        };
        if row.interleaved {
            return Err(bad("rows of two matrices that alternate".to_owned(), "each matrix by itself"));
        }
        // A row without a GGUF name: another row of the role has one, and the stacked parts are
        // split.
        let apart = row.gguf.is_empty() && !row.stacked.is_empty();
        // A network named as shared in models with experts has the usual name in models without.
        let has_experts = layer.and_then(|l| self.spec.layers.get(l)).is_some_and(|l| l.experts.is_some());
        let (name, named) = std::iter::once(row)
            .chain(self.tensors.rows(role))
            .filter(|row| has_experts || !row.gguf.ends_with("_shexp"))
            .find_map(|row| Some((row.full_name(Naming::Gguf, "", layer, suffix)?, row)))
            .ok_or_else(|| bad(format!("the {}", role.what()), "one that GGUF has a name for"))?;
        let first = tensors.first().ok_or_else(|| bad("nothing".to_owned(), "a tensor"))?;
        if let Some(other) = tensors.iter().find(|t| t.shape != first.shape || t.block != first.block) {
            let expected = format!("shape {:?} of {}, as of the first expert", first.shape, first.block);
            return Err(bad(format!("{:?} of {} in {}", other.shape, other.block, other.name), &expected));
        }

        let transposed = suffix == "weight" && row.is_transposed(self.spec.naming);
        let turn = |tensor: &Tensor| {
            let mut tensor = tensor.clone();
            if let (true, [.., rows, cols]) = (transposed, &mut tensor.shape[..]) {
                std::mem::swap(rows, cols);
            }
            tensor
        };
        let tensors: Vec<Tensor> =
            tensors.iter().map(|t| self.as_shaped(turn(t), role, layer, suffix)).collect();
        let first = self.as_shaped(turn(first), role, layer, suffix);
        let mut shape_of_all = first.shape.clone();
        let mut pieces: Vec<_> = tensors.iter().map(whole).collect();
        if row.hf.contains("{e}") {
            shape_of_all.insert(0, tensors.len());
        } else if apart {
            let (n, all, cols) = match first.shape[..] {
                [n, all, cols] => (n, all, cols),
                [all, cols] => (1, all, cols),
                _ => return Err(bad(format!("shape {:?}", first.shape), "two or three dimensions")),
            };
            // In a stack of experts rows are the second dimension.
            let of_rows = first.shape.len() - 2;
            let n_rows = |role: TensorRole| shape(self.spec, role, layer).get(of_rows).copied().unwrap_or(0);
            let at = row.stacked.iter().position(|r| *r == role).unwrap_or(0);
            let before: usize = row.stacked.iter().take(at).map(|r| n_rows(*r)).sum();
            let mine = n_rows(role);
            let part = |e: usize| (tensors.first().cloned(), e * all + before);
            pieces =
                (0..n).map(part).filter_map(|(tensor, from)| Some((tensor?, from..from + mine))).collect();
            shape_of_all = if of_rows == 1 { vec![n, mine, cols] } else { vec![mine, cols] };
        } else if matches!(role, TensorRole::TokenEmbedding | TensorRole::Output) && suffix == "weight" {
            // Rows beyond the vocabulary are not written.
            let mine = self.spec.n_vocab;
            pieces.iter_mut().for_each(|(_, rows)| rows.end = rows.end.min(mine));
            shape_of_all.first_mut().into_iter().for_each(|n| *n = mine.min(*n));
        } else if row.stacked.is_empty() && !named.stacked.is_empty() {
            (shape_of_all, pieces) = self.joined(found, named.stacked)?;
        }
        let offset = match role.is_norm() && suffix == "weight" {
            true => self.tensors.norm_offset() - self.target.norm_offset.of(Naming::Gguf),
            false => 0.0,
        };
        let roles = if row.stacked.is_empty() { std::slice::from_ref(&role) } else { row.stacked };
        let change = match suffix {
            "bias" if role != TensorRole::Rate => Change::None,
            _ => recurrent::change(self.spec, self.target, role, roles, layer),
        };
        if suffix == "bias" && roles.iter().any(|role| recurrent::factor(self.spec, *role) != 1.0) {
            return Err(bad("a bias".to_owned(), "none where a factor is multiplied into the matrix"));
        }
        Ok(TensorRecipe {
            order: self.order(found)?,
            plain: (is_plain(role) || shape_of_all.len() < 2 || !name.ends_with(".weight")).then_some(offset),
            name,
            shape: shape_of_all,
            pieces,
            transposed,
            change,
        })
    }

    /// The tensor in the shape of the format.
    fn as_shaped(&self, tensor: Tensor, role: TensorRole, layer: Option<usize>, suffix: &str) -> Tensor {
        match suffix {
            "bias" if !matches!(role, TensorRole::Rate | TensorRole::Skip) => tensor,
            _ => Tensor { shape: recurrent::shape_of(self.spec, role, layer, &tensor.shape), ..tensor },
        }
    }

    /// The head as its own matrix, copied from the embedding.
    fn head_apart(&self) -> Result<Option<TensorRecipe>> {
        let Some(found) = self.find(TensorRole::TokenEmbedding, None, "weight")? else { return Ok(None) };
        let recipe = self.recipe(&found)?;
        let factor = recurrent::factor(self.spec, TensorRole::Output);
        let change = Change::Factors(vec![factor; self.spec.n_vocab]);
        Ok(Some(TensorRecipe { name: "output.weight".to_owned(), change, ..recipe }))
    }

    /// Splits a matrix whose rows are grouped by key head into q, k and v in one matrix and the
    /// gate in another.
    fn apart(&self, layer: Option<usize>) -> Result<Vec<TensorRecipe>> {
        use TensorRole::{RecurrentAll, RecurrentGate, RecurrentQ};
        let Some(found) = self.find(RecurrentAll, layer, "weight")? else { return Ok(Vec::new()) };
        let recipe = self.recipe(&found)?;
        let (Some(tensor), Some(r)) = (found.tensors.first(), recurrent::recurrent(self.spec, layer)) else {
            return Ok(Vec::new());
        };
        let value = r.inner() / r.n_groups.max(1);
        let group = 2 * (r.rows + value);
        let part = |first: usize, n: usize| {
            (0..r.n_groups).map(move |g| ((*tensor).clone(), g * group + first..g * group + first + n))
        };
        let made = |role: TensorRole, n_rows: usize, pieces: Vec<Piece>| {
            let rows = self.tensors.rows(role);
            let name = rows.iter().find_map(|row| row.full_name(Naming::Gguf, "", layer, "weight"));
            let shape = vec![n_rows, self.spec.hidden];
            name.map(|name| TensorRecipe { name, shape, pieces, ..recipe.clone() })
        };
        let qkv = part(0, r.rows).chain(part(r.rows, r.rows)).chain(part(2 * r.rows, value));
        let gate = part(2 * r.rows + value, value).collect();
        let all = [
            made(RecurrentQ, 2 * r.shared() + r.inner(), qkv.collect()),
            made(RecurrentGate, r.inner(), gate),
        ];
        Ok(all.into_iter().flatten().collect())
    }

    /// Splits the heads' matrices of latent attention, with keys transposed: `(n_heads, rank,
    /// plain)` and `(n_heads, value, rank)`.
    fn latent_heads(&self, layer: Option<usize>) -> Result<Vec<TensorRecipe>> {
        use TensorRole::{AttnKB, AttnKvB, AttnVB};
        let Some(found) = self.find(AttnKvB, layer, "weight")? else { return Ok(Vec::new()) };
        let recipe = self.recipe(&found)?;
        let latent = layer.and_then(|l| self.spec.layers.get(l)).and_then(|l| l.latent);
        let (Some(tensor), Some(latent)) = (found.tensors.first().copied(), latent) else {
            return Ok(Vec::new());
        };
        let of_head = latent.plain + latent.value;
        let turned_head = |head: usize| {
            let (data, planes) = tensor.rows(head * of_head..head * of_head + latent.plain)?;
            let head = Tensor { shape: vec![latent.rank, latent.plain], data, planes, ..tensor.clone() };
            Some(whole(&head))
        };
        let value = |head: usize| (tensor.clone(), head * of_head + latent.plain..(head + 1) * of_head);
        let made = |role: TensorRole, transposed: bool, pieces: Vec<Piece>| {
            let rows = self.tensors.rows(role);
            let name = rows.iter().find_map(|row| row.full_name(Naming::Gguf, "", layer, "weight"))?;
            Some(TensorRecipe {
                name,
                shape: shape(self.spec, role, layer),
                pieces,
                transposed,
                ..recipe.clone()
            })
        };
        let n_heads = tensor.n_rows() / of_head.max(1);
        let keys = (0..n_heads).filter_map(turned_head).collect();
        let values = (0..n_heads).map(value).collect();
        Ok([made(AttnKB, true, keys), made(AttnVB, false, values)].into_iter().flatten().collect())
    }

    /// Joins separate matrices of several roles, expert by expert: the shape and the rows.
    fn joined(&self, found: &RoleTensors<'a>, roles: &[TensorRole]) -> Result<(Vec<usize>, Vec<Piece>)> {
        let bad = |role: TensorRole, found: String, expected: &str| Error::Export {
            what: role.what().to_owned(),
            found,
            expected: expected.to_owned(),
        };
        let mut parts: Vec<(&Tensor, usize)> = Vec::new();
        let (mut n_experts, mut all_rows, mut n_cols) = (0, 0, 0);
        for &role in roles {
            let part = self.find(role, found.layer, found.suffix)?;
            let part = part.and_then(|part| part.tensors.first().copied());
            let part = part.ok_or_else(|| bad(role, "nothing".to_owned(), "a tensor"))?;
            let [n, n_rows, cols] = part.shape[..] else {
                return Err(bad(role, format!("shape {:?}", part.shape), "three dimensions"));
            };
            if parts
                .first()
                .is_some_and(|(first, _)| first.block != part.block || (n, cols) != (n_experts, n_cols))
            {
                let found = format!("{:?} of {}", part.shape, part.block);
                return Err(bad(
                    role,
                    found,
                    "experts, columns and type of the matrices that it is joined to",
                ));
            }
            (n_experts, n_cols, all_rows) = (n, cols, all_rows + n_rows);
            parts.push((part, n_rows));
        }
        let of_expert = |e: usize| {
            parts.iter().map(move |(part, n_rows)| ((*part).clone(), e * n_rows..(e + 1) * n_rows))
        };
        Ok((vec![n_experts, all_rows, n_cols], (0..n_experts).flat_map(of_expert).collect()))
    }

    /// The order of rows if the conventions pair other columns under RoPE. Of the `n` rotated rows
    /// of a head, rows `i` and `i + n / 2` become rows `2 i` and `2 i + 1`.
    fn order(&self, found: &RoleTensors<'a>) -> Result<Option<Vec<usize>>> {
        let styles = (self.spec.rope_style, self.target.rope_style.of(Naming::Gguf));
        let roles =
            if found.row.stacked.is_empty() { std::slice::from_ref(&found.role) } else { found.row.stacked };
        use TensorRole::{AttnK, AttnKNorm, AttnQ, AttnQNorm};
        let turns = |role: &TensorRole| matches!(role, AttnQ | AttnK | AttnQNorm | AttnKNorm);
        if let Some(order) = recurrent::row_order(self.spec, self.target, roles, found.layer) {
            return Ok(Some(order));
        }
        let layer = found.layer.and_then(|l| self.spec.layers.get(l));
        let (Some(layer), true) = (layer, styles.0 != styles.1 && roles.iter().any(turns)) else {
            return Ok(None);
        };
        if styles != (RopeStyle::Half, RopeStyle::Interleaved) {
            return Err(Error::Export {
                what: "rotation".to_owned(),
                found: "neighbouring columns".to_owned(),
                expected: "halves of a head, as Hugging Face checkpoints have it".to_owned(),
            });
        }
        let head = layer.head_dim;
        // Without RoPE any order is right if queries and keys agree.
        let n_dims = layer.rope.as_ref().map_or(head, |r| r.n_dims);
        let mut order = Vec::new();
        for role in roles {
            let n_rows = shape(self.spec, *role, found.layer).first().copied().unwrap_or(0);
            let first = order.len();
            order.extend((0..n_rows).map(|r| {
                let at = r % head.max(1);
                let from = if turns(role) && at < n_dims { at / 2 + at % 2 * (n_dims / 2) } else { at };
                first + r - at + from
            }));
        }
        Ok(Some(order))
    }
}

/// True for matrices that llama.cpp reads only as F32.
fn is_plain(role: TensorRole) -> bool {
    use TensorRole::{
        ConvK, ConvQ, ConvV, PositionEmbedding, RecurrentNorm, Router, SharedWeight, StreamCorrections,
        StreamPredictions, TokenTypes,
    };
    matches!(role, Router | SharedWeight | PositionEmbedding | TokenTypes)
        || matches!(role, ConvQ | ConvK | ConvV | RecurrentNorm | StreamPredictions | StreamCorrections)
        || role.is_norm()
}
