//! The numbers of each layer: widths, experts, window, RoPE, and shared keys and values.

use device::{RouterGroups, RouterScores};
use weights::Naming;

use super::mixers::Mixers;
use super::need;
use crate::descriptor::{
    ArchDescriptor, AttentionScale, ExpertPlace, RecurrentPlace, Temperature, WindowPattern,
};
use crate::error::Result;
use crate::keys::{Choice, Keys};
use crate::names::{Key, TensorRole, WINDOW_ROPE_OBJECTS};
use crate::recurrent::{Multipliers, RecurrentSpec};
use crate::rope::{RopeScaling, RopeSpec, RopeTensors};
use crate::spec::{ExpertSpec, LatentSpec, LayerSpec, TemperatureSpec};
use crate::tensors::Tensors;

/// Reads the layers, in their order.
pub(super) fn read(
    keys: &Keys<'_>,
    family: &'static ArchDescriptor,
    tensors: &mut Tensors<'_>,
    n_layers: usize,
    hidden: usize,
    n_ctx_train: usize,
) -> Result<Vec<LayerSpec>> {
    let heads = keys.counts(Key::Heads, n_layers)?.ok_or_else(|| keys.missing(Key::Heads))?;
    let kv_heads = keys.counts(Key::KvHeads, n_layers)?.unwrap_or_else(|| heads.clone());
    let ffn = match (keys.counts(Key::Ffn, n_layers)?, family.ffn_per_hidden) {
        (Some(ffn), _) => ffn,
        (None, Some(times)) => vec![hidden * times; n_layers],
        (None, None) => vec![need(keys, tensors, Key::Ffn)?; n_layers],
    };
    let experts = experts(keys, family, n_layers)?;
    let windows = windows(keys, family, n_layers)?;
    let rotates = rotates(keys, family, n_layers)?;
    let recurrent = RecurrentSpec::read(keys, family, hidden)?;
    let cutoffs = cutoffs(keys, n_layers)?;
    let kv_from = kv_from(keys, &windows)?;
    let reader = LayerReader {
        keys,
        family,
        hidden,
        n_layers,
        n_ctx_train,
        some_windows: windows.iter().any(Option::is_some),
        wide_shared_kv: keys.flag(Key::WideSharedKv)? == Some(true),
        latent: if family.latent { Some(latent(keys)?) } else { None },
        ready_made: RopeTensors::read(tensors)?,
        tensors,
    };
    let mut layers = Vec::with_capacity(n_layers);
    for (l, ((n_heads, n_kv_heads), ffn)) in heads.into_iter().zip(kv_heads).zip(ffn).enumerate() {
        let kind = LayerKind {
            l,
            window: windows.get(l).copied().flatten(),
            kv_from: kv_from.get(l).copied().flatten(),
            rotates: rotates.get(l).copied().unwrap_or(true),
            mixers: Mixers::of(family, reader.tensors, l),
        };
        let experts = experts.get(l).copied().flatten();
        let experts = experts.filter(|_| !reader.one_mixer() || reader.tensors.has_in(TensorRole::Router, l));
        let keys_are_values = reader.keys_are_values(&kind)?;
        let mine = keys.of_layer(l, kind.window.is_some());
        let ffn = reader.ffn(&kind, experts, ffn)?;
        let (n_heads, n_kv_heads, head_dim) =
            reader.heads(&kind, &mine, keys_are_values, (n_heads, n_kv_heads))?;
        let rope = reader.rope(&kind, &mine, head_dim)?;
        layers.push(LayerSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            ffn,
            experts,
            kv_from: kind.kv_from,
            keys_are_values,
            latent: reader.latent,
            window: kind.window,
            temperature: temperature(keys, family, rope.is_some())?,
            rope,
            attention_scale: reader.attention_scale(n_heads, head_dim)?,
            attends: kind.mixers.attends,
            recurrent: recurrent.filter(|_| kind.mixers.recurs),
            cutoff: cutoffs.get(l).copied().flatten(),
        });
    }
    Ok(layers)
}

/// Numbers that all layers share.
struct LayerReader<'a> {
    keys: &'a Keys<'a>,
    family: &'static ArchDescriptor,
    tensors: &'a Tensors<'a>,
    hidden: usize,
    n_layers: usize,
    n_ctx_train: usize,
    /// True if some layers have a window.
    some_windows: bool,
    /// True if layers that read another layer's keys and values have feed-forward networks twice as
    /// wide.
    wide_shared_kv: bool,
    latent: Option<LatentSpec>,
    ready_made: RopeTensors,
}

/// Properties of a layer that its numbers depend on.
struct LayerKind {
    l: usize,
    window: Option<usize>,
    /// The layer whose keys and values this layer reads.
    kv_from: Option<usize>,
    rotates: bool,
    mixers: Mixers,
}

impl LayerReader<'_> {
    /// True if a layer is attention, a recurrence or a feed-forward network, and never two of them.
    fn one_mixer(&self) -> bool {
        self.family.recurrent.is_some_and(|r| r.place == RecurrentPlace::OneMixer)
    }

    fn keys_are_values(&self, kind: &LayerKind) -> Result<bool> {
        Ok(self.family.keys_as_values
            && kind.window.is_none()
            && kind.kv_from.is_none()
            && !self.tensors.has_in(TensorRole::AttnV, kind.l)
            && (self.keys.naming() == Naming::Gguf || self.keys.flag(Key::KeysAreValues)? == Some(true)))
    }

    /// Columns of the dense network or of the shared expert; `ffn` is the checkpoint's number for
    /// the layer.
    fn ffn(&self, kind: &LayerKind, experts: Option<ExpertSpec>, mut ffn: usize) -> Result<usize> {
        let (keys, one_mixer) = (self.keys, self.one_mixer());
        match (experts, self.family.experts) {
            (Some(_), ExpertPlace::Instead) => ffn = 0,
            (Some(experts), ExpertPlace::WithPlainShared) => {
                let n_shared = keys.count(Key::SharedExperts)?.unwrap_or(0);
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(n_shared * experts.ffn);
            }
            (Some(_), ExpertPlace::WithShared) => ffn = keys.need_count(Key::SharedFfn)?,
            (Some(_), ExpertPlace::BesideShared) => ffn = keys.count(Key::SharedFfn)?.unwrap_or(0),
            // If no layer has experts, the shared network is the only one.
            (None, ExpertPlace::BesideShared) if !one_mixer => {
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(ffn);
            }
            (Some(_), ExpertPlace::Nowhere | ExpertPlace::Beside) | (None, _) => {
                ffn *= if self.wide_shared_kv && kind.kv_from.is_some() { 2 } else { 1 };
            }
        }
        // A layer that attends or recurs has no feed-forward network here.
        if one_mixer && (kind.mixers.attends || kind.mixers.recurs) {
            return Ok(0);
        }
        if ffn == 0 && experts.is_none() && self.family.recurrent.is_none() {
            return Err(keys.bad(Key::Ffn, 0, format!("at least 1 (layer {})", kind.l)));
        }
        Ok(ffn)
    }

    /// Query heads, key and value heads, and columns of a head. `mine` holds the keys of the layer;
    /// `(n_heads, n_kv_heads)` are the checkpoint's numbers for it.
    fn heads(
        &self,
        kind: &LayerKind,
        mine: &Keys<'_>,
        keys_are_values: bool,
        (n_heads, n_kv_heads): (usize, usize),
    ) -> Result<(usize, usize, usize)> {
        let (keys, l) = (self.keys, kind.l);
        let full = |key: Key| if kind.window.is_none() { mine.count(key) } else { Ok(None) };
        let head_dim = match mine.count(Key::LayerHeadDim)? {
            Some(head_dim) => Some(head_dim),
            None => full(Key::FullHeadDim)?.map_or_else(|| mine.count(Key::HeadDim), |d| Ok(Some(d)))?,
        };
        let value_dim = mine.count(Key::ValueDim)?;
        let n_kv_heads = match mine.count(Key::LayerKvHeads)? {
            Some(n) => n,
            None if keys_are_values => full(Key::FullKvHeads)?.unwrap_or(n_kv_heads),
            None => n_kv_heads,
        };
        let (n_heads, n_kv_heads) = if kind.mixers.attends { (n_heads, n_kv_heads) } else { (1, 1) };
        for (key, n) in [(Key::Heads, n_heads), (Key::KvHeads, n_kv_heads)] {
            if n == 0 {
                return Err(keys.bad(key, 0, format!("at least 1 (layer {l})")));
            }
        }
        if n_heads % n_kv_heads != 0 {
            let expected = format!("a divisor of the {n_heads} query heads (layer {l})");
            return Err(keys.bad(Key::KvHeads, n_kv_heads, expected));
        }
        if let Some(latent) = self.latent {
            return Ok((n_heads, 1, latent.rank + latent.turning));
        }
        let hidden = self.hidden;
        let head_dim = match head_dim {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
            None => {
                return Err(keys.bad(Key::Heads, n_heads, format!("a divisor of the hidden size {hidden}")));
            }
        };
        match value_dim.filter(|v| *v != head_dim) {
            Some(dim) => Err(keys.bad(Key::ValueDim, dim, format!("{head_dim}, as for keys"))),
            None => Ok((n_heads, n_kv_heads, head_dim)),
        }
    }

    /// The layer's RoPE, if it has any.
    fn rope(&self, kind: &LayerKind, mine: &Keys<'_>, head_dim: usize) -> Result<Option<RopeSpec>> {
        let (family, n_ctx_train) = (self.family, self.n_ctx_train);
        let full = kind.window.is_none();
        if !kind.rotates || family.rope_in_windows_only && full && self.some_windows {
            return Ok(None);
        }
        let rope = match self.latent {
            Some(latent) => RopeSpec::read(self.keys, latent.turning, n_ctx_train, &self.ready_made),
            None if full => RopeSpec::read(self.keys, head_dim, n_ctx_train, &self.ready_made),
            None => window_rope(mine, family, head_dim, n_ctx_train, &self.ready_made),
        };
        rope.map(Some)
    }

    /// The factor on attention scores.
    fn attention_scale(&self, n_heads: usize, head_dim: usize) -> Result<f32> {
        let keys = self.keys;
        let multipliers = Multipliers::read(keys)?;
        let scale = match (keys.real(Key::AttentionScale)?, keys.real(Key::QueryScalar)?) {
            (Some(scale), _) => scale,
            (None, Some(scalar)) => 1.0 / scalar.sqrt(),
            (None, None) => self.usual_scale(n_heads, head_dim)?,
        };
        Ok(scale as f32 * multipliers.attention_in.powi(2) * multipliers.key)
    }

    /// The factor on attention scores if the checkpoint has no key for it.
    fn usual_scale(&self, n_heads: usize, head_dim: usize) -> Result<f64> {
        Ok(match (self.family.attention_scale, self.latent) {
            (AttentionScale::HiddenPerHead { n_layers }, _) if n_layers == self.n_layers => {
                (n_heads as f64 / self.hidden as f64).sqrt()
            }
            (AttentionScale::One, _) => 1.0,
            (AttentionScale::HeadDim | AttentionScale::HiddenPerHead { .. }, Some(latent)) => {
                latent_magnitude(self.keys)?.powi(2) / ((latent.plain + latent.turning) as f64).sqrt()
            }
            (AttentionScale::HeadDim | AttentionScale::HiddenPerHead { .. }, None) => {
                1.0 / (head_dim as f64).sqrt()
            }
        })
    }
}

impl RopeTensors {
    fn read(tensors: &mut Tensors<'_>) -> Result<RopeTensors> {
        // A head has at most 16384 columns, which are 8192 pairs.
        let mut factors = |role| tensors.small_vector(role, 8192);
        Ok(RopeTensors {
            divisors: factors(TensorRole::RopeDivisors)?,
            short: factors(TensorRole::RopeShort)?,
            long: factors(TensorRole::RopeLong)?,
        })
    }
}

/// The gate cutoff of each layer, in standard deviations above the mean. GGUF files store it;
/// config.json stores the share of a normal distribution below it.
fn cutoffs(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<Option<f32>>> {
    if keys.count(Key::Streams)?.is_none_or(|n| n < 2) {
        return Ok(vec![None; n_layers]);
    }
    let said = keys.reals(Key::Sparsity)?.ok_or_else(|| keys.missing(Key::Sparsity))?;
    if said.len() != n_layers {
        let found = format!("{} items", said.len());
        return Err(keys.bad(Key::Sparsity, found, format!("{n_layers}, one a layer")));
    }
    let cutoff = |value: f32| match keys.naming() {
        Naming::Gguf => Ok(Some(value).filter(|v| v.is_finite())),
        Naming::HuggingFace | Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => match value {
            0.0 => Ok(None),
            0.0..1.0 => Ok(Some(normal_quantile(f64::from(value)) as f32)),
            _ => Err(keys.bad(Key::Sparsity, value, "shares from 0 to below 1")),
        },
    };
    said.into_iter().map(cutoff).collect()
}

/// Quantile of the normal distribution at `part`, by bisection of its distribution function. The
/// series is `1/2 + exp(-x^2 / 2) / sqrt(2 pi) * (x + x^3 / 3 + x^5 / (3 * 5) + ...)` (Abramowitz
/// and Stegun, 26.2.11).
fn normal_quantile(part: f64) -> f64 {
    let below = |x: f64| {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 + (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        *if below(middle) < part { &mut low } else { &mut high } = middle;
    }
    (low + high) / 2.0
}

/// The experts of each layer.
fn experts(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<Option<ExpertSpec>>> {
    let n = keys.count(Key::Experts)?.unwrap_or(0);
    if n == 0 || family.experts == ExpertPlace::Nowhere || keys.flag(Key::ExpertsOn)? == Some(false) {
        return Ok(vec![None; n_layers]);
    }
    let n_used = keys.need_count(Key::ExpertsUsed)?;
    if n_used > n {
        return Err(keys.bad(Key::ExpertsUsed, n_used, format!("at most all of the {n} experts")));
    }
    let spec = ExpertSpec {
        n,
        n_used,
        ffn: match keys.count(Key::ExpertFfn)? {
            Some(ffn) => ffn,
            // If all layers have experts, the width of the feed-forward network is the experts'.
            None => keys.count(Key::Ffn)?.ok_or_else(|| keys.missing(Key::ExpertFfn))?,
        },
        normalise: keys.flag(Key::ExpertsNormalised)?.unwrap_or(false),
        factor: keys.real(Key::ExpertFactor)?.unwrap_or(1.0) as f32,
        scores: router_scores(keys, family)?,
        groups: None,
        clamp: match family.gate_clamped {
            true => Some((
                keys.real(Key::GateAlpha)?.unwrap_or(1.702) as f32,
                keys.real(Key::GateLimit)?.unwrap_or(7.0) as f32,
            )),
            false => None,
        },
        latent: keys.count(Key::LatentWidth)?,
    };
    if family.experts_weigh_input && n_used > 1 {
        return Err(keys.bad(
            Key::ExpertsUsed,
            n_used,
            "1, because the weight multiplies the expert's input",
        ));
    }
    let spec = ExpertSpec { groups: router_groups(keys, &spec)?, ..spec };
    let every = keys.count(Key::ExpertsEvery)?.unwrap_or(1).max(1);
    let dense = keys.reals(Key::DenseLayers)?.unwrap_or_default();
    let n_dense = keys.count(Key::FirstDenseLayers)?.unwrap_or(0);
    let listed = keys.reals(Key::ExpertLayers)?;
    let has = |l: usize| match &listed {
        Some(listed) => listed.contains(&(l as f32)),
        None => (l + 1).is_multiple_of(every) && !dense.contains(&(l as f32)) && l >= n_dense,
    };
    Ok((0..n_layers).map(|l| has(l).then_some(spec)).collect())
}

/// The function from a router's logits to its scores.
fn router_scores(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<RouterScores> {
    let expected = "softmax or sigmoid (in GGUF 1 to 3)";
    if keys.naming() == Naming::Gguf {
        return match keys.count(Key::ExpertScores)? {
            None | Some(0) => Ok(family.router_scores),
            // 3 is a softmax over the chosen experts, which equals a normalised softmax over all of
            // them.
            Some(1 | 3) => Ok(RouterScores::Softmax),
            Some(2) => Ok(RouterScores::Sigmoid),
            Some(other) => Err(keys.bad(Key::ExpertScores, other, expected)),
        };
    }
    match keys.word(Key::ExpertScores)? {
        None => Ok(family.router_scores),
        Some("softmax") => Ok(RouterScores::Softmax),
        Some("sigmoid") => Ok(RouterScores::Sigmoid),
        Some(other) => Err(keys.bad(Key::ExpertScores, format!("{other:?}"), expected)),
    }
}

/// The groups of experts that the router chooses among first, if there are several. Groups are
/// compared by their best expert, or by the sum of their best two if scores are sigmoids.
fn router_groups(keys: &Keys<'_>, experts: &ExpertSpec) -> Result<Option<RouterGroups>> {
    let Some(n) = keys.count(Key::ExpertGroups)?.filter(|n| *n > 1) else { return Ok(None) };
    let n_used = keys.count(Key::ExpertGroupsUsed)?.filter(|n| *n > 0).unwrap_or(n);
    let n_best = if experts.scores == RouterScores::Sigmoid { 2 } else { 1 };
    let of_group = experts.n / n;
    if !experts.n.is_multiple_of(n) || n_used > n || n_best > of_group || experts.n_used > of_group * n_used {
        let expected =
            format!("a divisor of the {} experts, with enough experts in the groups used", experts.n);
        return Err(keys.bad(Key::ExpertGroups, format!("{n}, {n_used} of them used"), expected));
    }
    Ok(Some(RouterGroups { n, n_used, n_best }))
}

/// The latent of keys and values.
fn latent(keys: &Keys<'_>) -> Result<LatentSpec> {
    let turning = keys.need_count(Key::TurningKeyDim)?;
    let plain = match (keys.naming(), keys.count(Key::LatentKeyDim)?) {
        (Naming::Gguf, Some(all)) => all.checked_sub(turning).filter(|n| *n > 0).ok_or_else(|| {
            keys.bad(Key::LatentKeyDim, all, format!("more than the {turning} that rotate"))
        })?,
        _ => keys.need_count(Key::PlainKeyDim)?,
    };
    Ok(LatentSpec {
        rank: keys.need_count(Key::LatentRank)?,
        query_rank: keys.count(Key::QueryRank)?.filter(|n| *n > 0),
        plain,
        turning,
        value: keys.need_count(Key::LatentValueDim)?,
    })
}

/// YaRN's factor on queries and on keys, which sharpens the softmax of latent attention.
fn latent_magnitude(keys: &Keys<'_>) -> Result<f64> {
    // GGUF files store a tenth of the factor.
    let all = match keys.naming() {
        Naming::Gguf => keys.real(Key::RopeLogMultiplier)?.map(|m| m * 10.0),
        Naming::HuggingFace | Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => {
            keys.real(Key::RopeMscaleAll)?
        }
    };
    let factor = keys.real(Key::RopeFactor)?.unwrap_or(1.0);
    Ok(match all {
        Some(all) if factor > 1.0 => 0.1 * all * factor.ln() + 1.0,
        _ => 1.0,
    })
}

/// The layer whose keys and values each layer reads, if not its own. The last layers share those of
/// the last earlier layer with the same window.
fn kv_from(keys: &Keys<'_>, windows: &[Option<usize>]) -> Result<Vec<Option<usize>>> {
    let n_layers = windows.len();
    let n_shared = keys.count(Key::SharedKvLayers)?.unwrap_or(0);
    if n_shared >= n_layers {
        return Err(keys.bad(Key::SharedKvLayers, n_shared, format!("fewer than the {n_layers} layers")));
    }
    let (own, shared) = windows.split_at(n_layers - n_shared);
    let source = |window: &Option<usize>| {
        own.iter().rposition(|w| w == window).map(Some).ok_or_else(|| {
            keys.bad(Key::SharedKvLayers, n_shared, format!("an earlier layer with the window {window:?}"))
        })
    };
    let shared = shared.iter().map(source).collect::<Result<Vec<_>>>()?;
    Ok(own.iter().map(|_| None).chain(shared).collect())
}

/// The window of each layer.
fn windows(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<Option<usize>>> {
    // Some converters write 0 for no window.
    let key = if family.chunked { Key::Chunk } else { Key::Window };
    let window = keys.count(key)?.filter(|w| *w > 0);
    let window = if keys.flag(Key::WindowUsed)? == Some(false) { None } else { window };

    let word = |choice: Choice<'_>| match choice {
        Choice::Word("full_attention") => Some(false),
        Choice::Word("sliding_attention" | "chunked_attention") => Some(true),
        // The kinds of mixed layers are read from their tensors.
        Choice::Word(_) if family.recurrent.is_some() => Some(false),
        Choice::Word(_) | Choice::Flag(_) => None,
    };
    if let Some(types) =
        keys.choices(Key::LayerTypes, n_layers, "full_attention or sliding_attention", word)?
    {
        if window.is_none() && types.contains(&true) {
            return Err(keys.missing(Key::Window));
        }
        return Ok(types.into_iter().map(|slides| window.filter(|_| slides)).collect());
    }
    let Some(window) = window else { return Ok(vec![None; n_layers]) };

    let flag = |choice: Choice<'_>| match choice {
        Choice::Flag(slides) => Some(slides),
        Choice::Word(_) => None,
    };
    if let Some(slides) = keys.choices(Key::WindowEvery, n_layers, "truth values", flag)? {
        return Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect());
    }
    let first = usize::from(!matches!(family.windows, WindowPattern::FullFirst(_)));
    let full_every = |n: usize| (0..n_layers).map(|l| ((l + first) % n != 0).then_some(window)).collect();
    if let Some(n) = keys.count(Key::WindowEvery)? {
        return Ok(full_every(n));
    }
    match family.windows {
        WindowPattern::All => Ok(vec![Some(window); n_layers]),
        WindowPattern::FullEvery(n) | WindowPattern::FullFirst(n) => Ok(full_every(n.max(1))),
        WindowPattern::FromKey => {
            let first = keys.need_count(Key::FirstWindowLayer)?;
            Ok((0..n_layers).map(|l| (l >= first).then_some(window)).collect())
        }
    }
}

/// True for each layer that applies RoPE.
fn rotates(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<bool>> {
    let flag = |choice: Choice<'_>| match choice {
        Choice::Flag(rotates) => Some(rotates),
        Choice::Word(_) => None,
    };
    if let Some(list) = keys.choices(Key::NoRopeLayers, n_layers, "0 or 1", flag)? {
        return Ok(list);
    }
    match keys.count(Key::NoRopeEvery)?.or(family.no_rope_every) {
        Some(1) if family.recurrent.is_some() => {
            let word = keys.word(Key::PositionKind)?.map(|kind| kind == "rope");
            Ok(vec![word.or(keys.flag(Key::RopeUsed)?).unwrap_or(false); n_layers])
        }
        Some(n) => Ok((0..n_layers).map(|l| (l + 1) % n.max(1) != 0).collect()),
        None => Ok(vec![true; n_layers]),
    }
}

/// The temperature of a layer's queries, if it has one.
fn temperature(keys: &Keys<'_>, family: &ArchDescriptor, rotates: bool) -> Result<Option<TemperatureSpec>> {
    let offset = match family.temperature {
        Temperature::All => 0.0,
        Temperature::WithoutRotation if !rotates => 1.0,
        Temperature::None | Temperature::WithoutRotation => return Ok(None),
    };
    if keys.flag(Key::TemperatureOn)? == Some(false) {
        return Ok(None);
    }
    let Some(beta) = keys.real(Key::TemperatureScale)?.filter(|beta| *beta > 0.0) else { return Ok(None) };
    let length = match keys.real(Key::TemperatureLength)? {
        Some(length) => length,
        None => keys.real(Key::RopeContext)?.ok_or_else(|| keys.missing(Key::TemperatureLength))?,
    };
    Ok(Some(TemperatureSpec { beta, length, offset }))
}

/// The RoPE of a layer with a window: its own if the checkpoint or the family has one.
fn window_rope(
    keys: &Keys<'_>,
    family: &ArchDescriptor,
    head_dim: usize,
    n_ctx_train: usize,
    ready_made: &RopeTensors,
) -> Result<RopeSpec> {
    if let Some(own) = keys.with_rope_objects(WINDOW_ROPE_OBJECTS) {
        return RopeSpec::read(&own, head_dim, n_ctx_train, &RopeTensors::default());
    }
    match keys.real(Key::WindowRopeTheta)?.or(family.window_rope_theta) {
        Some(theta) => {
            let shared = RopeSpec::read(keys, head_dim, n_ctx_train, &RopeTensors::default())?;
            Ok(RopeSpec { theta, scaling: RopeScaling::None, divisors: None, ..shared })
        }
        None if family.window_rope_unscaled => {
            let shared = RopeSpec::read(keys, head_dim, n_ctx_train, &RopeTensors::default())?;
            Ok(RopeSpec { scaling: RopeScaling::None, divisors: None, ..shared })
        }
        None => RopeSpec::read(keys, head_dim, n_ctx_train, ready_made),
    }
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        let known =
            [(0.5, 0.0), (0.95, 1.6448536269514722), (0.975, 1.959963984540054), (0.01, -2.3263478740408408)];
        for (part, x) in known {
            assert!((normal_quantile(part) - x).abs() < 1e-9, "{part}");
        }
    }
}
