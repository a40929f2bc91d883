//! LoRA adapters (Hu et al. 2021) beside a model's matrices: `out = x W^T + s (x A^T) B^T`.
//!
//! Supported files are PEFT's folders (adapter_config.json and adapter_model.safetensors) and
//! llama.cpp's GGUF adapters. An adapter is read by its own names, whatever the model's naming. If
//! the two conventions pair other columns under RoPE, the rows of B for queries and keys are
//! reordered.
//!
//! In the plan an adapted matrix has two stacks, one of all A and one of all B. Each row uses the
//! matrices of its span's adapter. The first of each stack is zeros, for no adapter. Ranks are
//! padded with zeros to the largest; `s` is multiplied into B.

use std::collections::{BTreeSet, HashMap};

use device::{RopeStyle, Weight, WeightPart};
use weights::{BlockType, Checkpoint, Metadata, Naming, Planes, Tensor, Value};

use crate::error::{Error, Result};
use crate::names::{MODEL_PREFIXES, TensorName, TensorRole};
use crate::spec::ModelSpec;
use crate::tensors::{Tensors, shape};

/// An open adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Name of the adapter in requests.
    pub name: String,
    /// Tensors and metadata of the adapter's files.
    pub checkpoint: Checkpoint,
    /// Factor on the adapter's contribution; mostly 1.
    pub factor: f32,
}

/// The scaling in an adapter's files.
struct Scaling {
    /// Numerator of `s`; `None`: `s` is 1.
    alpha: Option<f64>,
    /// Alpha of modules by the end of their names.
    patterns: Vec<(String, f64)>,
    /// True if alpha is divided by the square root of the rank; false if by the rank.
    by_root: bool,
}

/// Prefixes that PEFT adds to the model's names.
const PEFT_PREFIXES: [&str; 2] = ["base_model.model.", ""];

/// The tensors of one adapter while a plan is built.
struct Opened<'a> {
    adapter: &'a Adapter,
    by_name: HashMap<&'a str, &'a Tensor>,
    used: BTreeSet<&'a str>,
    scaling: Scaling,
}

/// The adapters that a plan is built with.
pub(crate) struct Adapters<'a>(Vec<Opened<'a>>);

/// A matrix of the model that adapters may change.
pub(crate) struct Target<'m> {
    pub spec: &'m ModelSpec,
    pub tensors: &'m Tensors<'m>,
    /// Role and layer of the matrix.
    pub role: TensorRole,
    pub layer: Option<usize>,
    /// Rows and columns of the matrix, `(n_out, n_in)`.
    pub n_out: usize,
    pub n_in: usize,
}

/// `A (rank, n_in)` and `B (n_out, rank)` of one adapter, with `s` in B.
struct AdapterPair {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl<'a> Adapters<'a> {
    pub fn new(adapters: &'a [Adapter]) -> Result<Adapters<'a>> {
        let open = |adapter: &'a Adapter| {
            let tensors = &adapter.checkpoint.tensors;
            let by_name: HashMap<_, _> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
            Ok(Opened { adapter, by_name, used: BTreeSet::new(), scaling: Scaling::read(adapter)? })
        };
        Ok(Adapters(adapters.iter().map(open).collect::<Result<_>>()?))
    }

    /// Number of adapters, including the one of zeros.
    pub fn n(&self) -> usize {
        self.0.len() + 1
    }

    /// The stacks of all A and all B for a matrix; `None` if no adapter changes it.
    pub fn stacks(&mut self, target: &Target<'_>) -> Result<Option<[Weight; 2]>> {
        let Target { role, layer, n_out, n_in, .. } = *target;
        let pairs = self.0.iter_mut().map(|one| one.pair(target)).collect::<Result<Vec<_>>>()?;
        let Some(rank) = pairs.iter().flatten().map(|pair| pair.rank).max() else { return Ok(None) };
        let name = |which: &str| match layer {
            Some(l) => format!("adapters of layer {l} {} ({which})", role.what()),
            None => format!("adapters of {} ({which})", role.what()),
        };
        let stack = |which: &str, [rows, cols]: [usize; 2], parts: Vec<Option<Vec<f32>>>| {
            let zeros = part(&vec![0.0; rows * cols]);
            let of = |values: Option<Vec<f32>>| values.map_or_else(|| zeros.clone(), |v| part(&v));
            let parts = std::iter::once(zeros.clone()).chain(parts.into_iter().map(of)).collect();
            Weight::stack(name(which), [rows, cols], BlockType::F32, parts)
        };
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for pair in pairs {
            let Some(AdapterPair { rank: own, a, b }) = pair else {
                down.push(None);
                up.push(None);
                continue;
            };
            let mut filled = a;
            filled.resize(rank * n_in, 0.0);
            let mut widened = vec![0.0; n_out * rank];
            for (to, from) in widened.chunks_exact_mut(rank).zip(b.chunks_exact(own)) {
                to[..own].copy_from_slice(from);
            }
            down.push(Some(filled));
            up.push(Some(widened));
        }
        Ok(Some([stack("A", [rank, n_in], down), stack("B", [n_out, rank], up)]))
    }

    /// Checks that every tensor of every adapter was used.
    pub fn finish(&self) -> Result<()> {
        for one in &self.0 {
            let unused = one.by_name.keys().filter(|name| !one.used.contains(*name));
            let mut unused: Vec<&str> = unused.copied().collect();
            unused.sort_unstable();
            if one.used.is_empty() && unused.is_empty() {
                return Err(one.bad("tensors", "none", "pairs of matrices"));
            }
            if let Some(first) = unused.first() {
                let more = match unused.len() {
                    1 => String::new(),
                    n => format!(" and {} more", n - 1),
                };
                let expected = "pairs for linear layers of this model; adapters of embeddings, of single experts and of \
                                matrices that are taken apart at load are not built";
                return Err(one.bad("tensors", format!("{first}{more}"), expected));
            }
        }
        Ok(())
    }
}

/// A matrix of a stack.
fn part(values: &[f32]) -> WeightPart {
    WeightPart { data: Weight::vector("", values).data, planes: Planes::default() }
}

impl<'a> Opened<'a> {
    fn bad(&self, what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Error {
        bad(self.adapter, what, found, expected)
    }

    /// The matrices of this adapter for one of the model's, if it has them.
    fn pair(&mut self, target: &Target<'_>) -> Result<Option<AdapterPair>> {
        // A tied head is the embedding's matrix, but an adapter stores it as the head.
        let is_embedding = target.role == TensorRole::TokenEmbedding;
        let role = if is_embedding { TensorRole::Output } else { target.role };
        let Target { spec, layer, n_out, n_in, .. } = *target;
        let target = &Target { role, ..*target };
        let Some((module, row, [a, b])) = self.find(target) else { return Ok(None) };
        let shapes = (a.shape.clone(), b.shape.clone());
        let n_rows = |role: &TensorRole| shape(spec, *role, layer).first().copied().unwrap_or(0);
        let place = row.stacked.iter().position(|r| *r == role).unwrap_or(0);
        let before: usize = row.stacked.iter().take(place).map(n_rows).sum();
        let all = if row.stacked.is_empty() { n_out } else { row.stacked.iter().map(n_rows).sum() };
        let ([rank, of_a], [of_b, b_rank]) = (&shapes.0[..], &shapes.1[..]) else {
            return Err(self.bad(module, format!("{:?} and {:?}", shapes.0, shapes.1), "two matrices"));
        };
        let fits = *rank > 0 && rank == b_rank && (*of_b, *of_a) == (all, n_in) && !row.interleaved;
        if !fits {
            let expected = format!("(rank, {n_in}) and ({all}, rank)");
            return Err(self.bad(module, format!("{:?} and {:?}", shapes.0, shapes.1), expected));
        }
        let scale = self.scaling.of(&module, *rank) as f32 * self.adapter.factor;
        let rows = b.to_f32();
        let mine = rows.chunks_exact(*rank).skip(before).take(n_out);
        let order = self.order(target)?;
        let mine: Vec<&[f32]> = mine.collect();
        let ordered = order.into_iter().flat_map(|from| mine.get(from).copied().unwrap_or_default());
        let pair = AdapterPair { rank: *rank, a: a.to_f32(), b: ordered.map(|v| v * scale).collect() };
        if pair.b.len() != n_out * rank || pair.a.iter().chain(&pair.b).any(|v| !v.is_finite()) {
            return Err(self.bad(module, "values that are not finite", "finite numbers"));
        }
        Ok(Some(pair))
    }

    /// The module, the row of the table and both matrices of the adapter for a matrix.
    fn find(&mut self, target: &Target<'_>) -> Option<(String, &'static TensorName, [&'a Tensor; 2])> {
        let (naming, layer) = (self.adapter.checkpoint.naming, target.layer);
        for row in target.tensors.rows(target.role) {
            let prefixes = if naming == Naming::Gguf { &[""][..] } else { MODEL_PREFIXES };
            for prefix in prefixes {
                let Some(name) = row.full_name(naming, prefix, layer, "weight") else { continue };
                let module = name.strip_suffix(".weight").unwrap_or(&name);
                let of_peft = |p: &&str| ["A", "B"].map(|x| format!("{p}{module}.lora_{x}.weight"));
                let candidates: Vec<[String; 2]> = if naming == Naming::Gguf {
                    vec![["a", "b"].map(|x| format!("{name}.lora_{x}"))]
                } else {
                    PEFT_PREFIXES.iter().map(of_peft).collect()
                };
                for [a, b] in candidates {
                    let found = |name: &str| self.by_name.get_key_value(name).map(|(k, t)| (*k, *t));
                    if let (Some(a), Some(b)) = (found(&a), found(&b)) {
                        self.used.extend([a.0, b.0]);
                        return Some((module.to_owned(), row, [a.1, b.1]));
                    }
                }
            }
        }
        None
    }

    /// For each row of the model's matrix, its row in the adapter's B.
    fn order(&self, target: &Target<'_>) -> Result<Vec<usize>> {
        let Target { spec, role, layer, n_out, .. } = *target;
        let naming = self.adapter.checkpoint.naming;
        let theirs = spec.family.rope_style.of(naming);
        let layer = layer.and_then(|l| spec.layers.get(l));
        let as_they_are = || (0..n_out).collect::<Vec<_>>();
        let Some(layer) = layer.filter(|_| naming != spec.naming) else { return Ok(as_they_are()) };
        if layer.recurrent.is_some() && !is_dense(role) {
            let expected = "an adapter with the names of the model's own files, because converting reorders these matrices";
            return Err(self.bad(role.what(), "a recurrent layer's matrix", expected));
        }
        if theirs == spec.rope_style || !matches!(role, TensorRole::AttnQ | TensorRole::AttnK) {
            return Ok(as_they_are());
        }
        if spec.family.attention_gate || layer.latent.is_some() {
            let expected = "an adapter with the names of the model's own files";
            return Err(self.bad(role.what(), "queries with a gate, or latent queries", expected));
        }
        let head = layer.head_dim.max(1);
        let n_dims = layer.rope.as_ref().map_or(head, |r| r.n_dims);
        let row = |r: usize| {
            let at = r % head;
            let from = match theirs {
                _ if at >= n_dims => at,
                RopeStyle::Half => at / 2 + at % 2 * (n_dims / 2),
                RopeStyle::Interleaved => at % (n_dims / 2) * 2 + at / (n_dims / 2),
            };
            r - at + from
        };
        Ok((0..n_out).map(row).collect())
    }
}

/// True for matrices that converters leave unchanged or reorder as [`Opened::order`] does.
fn is_dense(role: TensorRole) -> bool {
    use TensorRole::*;
    matches!(role, AttnQ | AttnK | AttnV | AttnOut | FfnGate | FfnUp | FfnDown | Router | Output)
}

fn bad(
    adapter: &Adapter,
    what: impl Into<String>,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> Error {
    Error::Adapter {
        adapter: adapter.name.clone(),
        what: what.into(),
        found: found.into(),
        expected: expected.into(),
    }
}

impl Scaling {
    fn read(adapter: &Adapter) -> Result<Scaling> {
        let metadata = &adapter.checkpoint.metadata;
        if adapter.checkpoint.naming == Naming::Gguf {
            let kind = metadata.str("adapter.type").unwrap_or_default();
            if metadata.str("general.type") != Some("adapter") || kind != "lora" {
                let found = format!("{:?}", metadata.str("general.type").unwrap_or("nothing"));
                return Err(bad(adapter, "general.type", found, "a GGUF adapter of type lora"));
            }
            let alpha = metadata.f64("adapter.lora.alpha").filter(|alpha| *alpha != 0.0);
            return Ok(Scaling { alpha, patterns: Vec::new(), by_root: false });
        }
        let kind = metadata.str("peft_type").unwrap_or("nothing");
        if kind != "LORA" {
            return Err(bad(adapter, "peft_type", format!("{kind:?}"), "\"LORA\""));
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Str(word) => word == "none",
            Value::Array(list) => list.is_empty(),
            Value::Int(_) | Value::Float(_) | Value::Bool(true) => false,
        };
        for key in [
            "use_dora",
            "use_qalora",
            "bias",
            "lora_bias",
            "modules_to_save",
            "trainable_token_indices",
            "alora_invocation_tokens",
        ] {
            if metadata.get(key).is_some_and(|value| !is_off(value)) {
                return Err(bad(adapter, key, "something", "nothing: only pairs of matrices are applied"));
            }
        }
        let alpha = metadata.f64("lora_alpha");
        let Some(alpha) = alpha.filter(|alpha| alpha.is_finite()) else {
            return Err(bad(adapter, "lora_alpha", "nothing", "a number"));
        };
        let patterns = patterns(adapter, metadata)?;
        let by_root = matches!(metadata.get("use_rslora"), Some(Value::Bool(true)));
        Ok(Scaling { alpha: Some(alpha), patterns, by_root })
    }

    /// The factor `s` of a module.
    fn of(&self, module: &str, rank: usize) -> f64 {
        let Some(alpha) = self.alpha else { return 1.0 };
        let ends = |pattern: &str| {
            let before = module.strip_suffix(pattern);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let own = self.patterns.iter().find(|(pattern, _)| ends(pattern));
        let alpha = own.map_or(alpha, |(_, alpha)| *alpha);
        alpha / if self.by_root { (rank as f64).sqrt() } else { rank as f64 }
    }
}

/// The ends of module names in `alpha_pattern`. PEFT reads them as regular expressions; other
/// expressions are refused.
fn patterns(adapter: &Adapter, metadata: &Metadata) -> Result<Vec<(String, f64)>> {
    let mut patterns = Vec::new();
    for (key, _) in metadata.iter() {
        let Some(pattern) = key.strip_prefix("alpha_pattern.") else { continue };
        let name = pattern.trim_start_matches('^').trim_end_matches('$').replace("\\.", ".");
        let Some(alpha) = metadata.f64(key) else {
            return Err(bad(adapter, key, "no number", "a number"));
        };
        if name.contains(|c: char| !c.is_alphanumeric() && c != '.' && c != '_') {
            return Err(bad(adapter, key, "a regular expression", "the end of a module's name"));
        }
        patterns.push((name, alpha));
    }
    Ok(patterns)
}
