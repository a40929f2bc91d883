//! The numbers of each layer: its width, its experts, its window, its rotation, whose keys it reads.

use device::{RouterGroups, RouterScores};
use weights::Naming;

use super::{ExpertSpec, LatentSpec, LayerSpec, TemperatureSpec, need};
use crate::descriptor::{
    ArchDescriptor, AttentionScale, ExpertPlace, RecurrentPlace, Temperature, WindowPattern,
};
use crate::error::Result;
use crate::keys::{Choice, Keys};
use crate::names::{Key, TensorRole, WINDOW_ROPE_OBJECTS};
use crate::recurrent::{Mixers, Multipliers, RecurrentSpec};
use crate::rope::{RopeScaling, RopeSpec, RopeTensors};
use crate::tensors::Tensors;

/// The layers, in their order.
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
    let multipliers = Multipliers::read(keys)?;
    let kv_from = kv_from(keys, &windows)?;
    let wide_shared_kv = keys.flag(Key::WideSharedKv)? == Some(true);
    let given_scale = match (keys.real(Key::AttentionScale)?, keys.real(Key::QueryScalar)?) {
        (Some(scale), _) => Some(scale),
        (None, Some(scalar)) => Some(1.0 / scalar.sqrt()),
        (None, None) => None,
    };
    let magnitude = if family.latent { latent_magnitude(keys)? } else { 1.0 };
    // Half of the largest head's columns is the most that can be.
    let mut factors = |role| tensors.small_vector(role, 8192);
    let ready_made = RopeTensors {
        divisors: factors(TensorRole::RopeDivisors)?,
        short: factors(TensorRole::RopeShort)?,
        long: factors(TensorRole::RopeLong)?,
    };

    let mut layers = Vec::with_capacity(n_layers);
    for (l, ((n_heads, n_kv_heads), mut ffn)) in heads.into_iter().zip(kv_heads).zip(ffn).enumerate() {
        let window = windows.get(l).copied().flatten();
        let mixers = Mixers::of(family, tensors, l);
        let kv_from = kv_from.get(l).copied().flatten();
        let experts = experts.get(l).copied().flatten();
        let one_mixer = family.recurrent.is_some_and(|r| r.place == RecurrentPlace::OneMixer);
        let experts = experts.filter(|_| !one_mixer || tensors.has_in(TensorRole::Router, l));
        let mine = keys.of_layer(l, window.is_some());
        let full = |key: Key| if window.is_none() { mine.count(key) } else { Ok(None) };
        let keys_are_values = family.keys_as_values
            && window.is_none()
            && kv_from.is_none()
            && !tensors.has_in(TensorRole::AttnV, l)
            && (keys.naming() == Naming::Gguf || keys.flag(Key::KeysAreValues)? == Some(true));
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
        match (experts, family.experts) {
            (Some(_), ExpertPlace::Instead) => ffn = 0,
            (Some(experts), ExpertPlace::WithPlainShared) => {
                let n_shared = keys.count(Key::SharedExperts)?.unwrap_or(0);
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(n_shared * experts.ffn);
            }
            (Some(_), ExpertPlace::WithShared) => ffn = keys.need_count(Key::SharedFfn)?,
            (Some(_), ExpertPlace::BesideShared) => ffn = keys.count(Key::SharedFfn)?.unwrap_or(0),
            // Where no layer has experts, all have what would be shared.
            (None, ExpertPlace::BesideShared) if !one_mixer => {
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(ffn);
            }
            _ if wide_shared_kv && kv_from.is_some() => ffn *= 2,
            _ => {}
        }
        // A layer of one mixer is a feed-forward network only if it is nothing else.
        if one_mixer && (mixers.attends || mixers.recurs) {
            ffn = 0;
        } else if ffn == 0 && experts.is_none() && family.recurrent.is_none() {
            return Err(keys.bad(Key::Ffn, 0, format!("at least 1 (layer {l})")));
        }
        let (n_heads, n_kv_heads) = if mixers.attends { (n_heads, n_kv_heads) } else { (1, 1) };
        for (key, n) in [(Key::Heads, n_heads), (Key::KvHeads, n_kv_heads)] {
            if n == 0 {
                return Err(keys.bad(key, 0, format!("at least 1 (layer {l})")));
            }
        }
        if n_heads % n_kv_heads != 0 {
            let expected = format!("a divisor of the {n_heads} query heads (layer {l})");
            return Err(keys.bad(Key::KvHeads, n_kv_heads, expected));
        }
        let latent = if family.latent { Some(latent(keys)?) } else { None };
        let (n_kv_heads, head_dim, value_dim) = match latent {
            Some(latent) => (1, Some(latent.rank + latent.turning), None),
            None => (n_kv_heads, head_dim, value_dim),
        };
        let head_dim = match head_dim {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
            None => {
                return Err(keys.bad(Key::Heads, n_heads, format!("a divisor of the hidden size {hidden}")));
            }
        };
        if let Some(value_dim) = value_dim.filter(|v| *v != head_dim) {
            return Err(keys.bad(Key::ValueDim, value_dim, format!("the same as of a key, {head_dim}")));
        }
        let rope = match rotates.get(l) {
            Some(false) => None,
            _ if family.rope_in_windows_only && window.is_none() && windows.iter().any(Option::is_some) => {
                None
            }
            _ if latent.is_some() => {
                let n = latent.map_or(0, |latent| latent.turning);
                Some(RopeSpec::read(keys, n, n_ctx_train, &ready_made)?)
            }
            _ if window.is_some() => Some(window_rope(&mine, family, head_dim, n_ctx_train, &ready_made)?),
            _ => Some(RopeSpec::read(keys, head_dim, n_ctx_train, &ready_made)?),
        };
        let attention_scale = given_scale.unwrap_or_else(|| match family.attention_scale {
            AttentionScale::HiddenPerHead { n_layers: n } if n == n_layers => {
                (n_heads as f64 / hidden as f64).sqrt()
            }
            AttentionScale::One => 1.0,
            _ => match latent {
                Some(latent) => magnitude * magnitude / ((latent.plain + latent.turning) as f64).sqrt(),
                None => 1.0 / (head_dim as f64).sqrt(),
            },
        }) as f32
            * multipliers.attention_in.powi(2)
            * multipliers.key;
        let temperature = temperature(keys, family, rope.is_some())?;
        layers.push(LayerSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            ffn,
            experts,
            kv_from,
            keys_are_values,
            latent,
            window,
            rope,
            temperature,
            attention_scale,
            attends: mixers.attends,
            recurrent: recurrent.filter(|_| mixers.recurs),
            cutoff: cutoffs.get(l).copied().flatten(),
        });
    }
    Ok(layers)
}

/// From where on the gates of each layer count, in standard deviations above their mean. GGUF files say this, others which part of a
/// normal distribution lies below.
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
        _ if value == 0.0 => Ok(None),
        _ if value > 0.0 && value < 1.0 => Ok(Some(normal_quantile(f64::from(value)) as f32)),
        _ => Err(keys.bad(Key::Sparsity, value, "parts from 0 to below 1")),
    };
    said.into_iter().map(cutoff).collect()
}

/// Where the distribution function of the normal distribution is `part`: by bisection, of its series
/// `1/2 + exp(-x^2 / 2) / sqrt(2 pi) * (x + x^3 / 3 + x^5 / (3 * 5) + ...)` (Abramowitz and Stegun, 26.2.11).
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
            // Where all layers have experts, the one number is theirs.
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
        return Err(keys.bad(Key::ExpertsUsed, n_used, "1: experts whose weight is on their input"));
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

/// What a router makes of its logits.
fn router_scores(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<RouterScores> {
    let expected = "softmax or sigmoid (in GGUF 1 to 3)";
    if keys.naming() == Naming::Gguf {
        return match keys.count(Key::ExpertScores)? {
            None | Some(0) => Ok(family.router_scores),
            // 3: a softmax of those chosen, which is one over all, normalised.
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

/// The groups of experts that are chosen first, if there are several. They are compared by their best expert, where scores are
/// sigmoids by their best two.
fn router_groups(keys: &Keys<'_>, experts: &ExpertSpec) -> Result<Option<RouterGroups>> {
    let Some(n) = keys.count(Key::ExpertGroups)?.filter(|n| *n > 1) else { return Ok(None) };
    let n_used = keys.count(Key::ExpertGroupsUsed)?.filter(|n| *n > 0).unwrap_or(n);
    let n_best = if experts.scores == RouterScores::Sigmoid { 2 } else { 1 };
    let of_group = experts.n / n;
    if !experts.n.is_multiple_of(n) || n_used > n || n_best > of_group || experts.n_used > of_group * n_used {
        let expected = format!("a divisor of the {} experts, with enough in those used", experts.n);
        return Err(keys.bad(Key::ExpertGroups, format!("{n}, {n_used} of them used"), expected));
    }
    Ok(Some(RouterGroups { n, n_used, n_best }))
}

/// The latent of a layer's keys and values.
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

/// The factor on queries and on keys by which YaRN sharpens the softmax of latent attention.
fn latent_magnitude(keys: &Keys<'_>) -> Result<f64> {
    // GGUF files hold a tenth of it.
    let all = match keys.naming() {
        Naming::Gguf => keys.real(Key::RopeLogMultiplier)?.map(|m| m * 10.0),
        _ => keys.real(Key::RopeMscaleAll)?,
    };
    let factor = keys.real(Key::RopeFactor)?.unwrap_or(1.0);
    Ok(match all {
        Some(all) if factor > 1.0 => 0.1 * all * factor.ln() + 1.0,
        _ => 1.0,
    })
}

/// The layer whose keys and values each layer reads, if not its own: the last ones read those of the last before them that
/// sees as far.
fn kv_from(keys: &Keys<'_>, windows: &[Option<usize>]) -> Result<Vec<Option<usize>>> {
    let n_layers = windows.len();
    let n_shared = keys.count(Key::SharedKvLayers)?.unwrap_or(0);
    if n_shared >= n_layers {
        return Err(keys.bad(Key::SharedKvLayers, n_shared, format!("fewer than the {n_layers} layers")));
    }
    let (own, shared) = windows.split_at(n_layers - n_shared);
    let source = |window: &Option<usize>| {
        own.iter().rposition(|w| w == window).map(Some).ok_or_else(|| {
            keys.bad(Key::SharedKvLayers, n_shared, format!("a layer before them with the window {window:?}"))
        })
    };
    let shared = shared.iter().map(source).collect::<Result<Vec<_>>>()?;
    Ok(own.iter().map(|_| None).chain(shared).collect())
}

/// The window of each layer.
fn windows(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<Option<usize>>> {
    // 0 is how some converters write that there is none.
    let key = if family.chunked { Key::Chunk } else { Key::Window };
    let window = keys.count(key)?.filter(|w| *w > 0);
    let window = if keys.flag(Key::WindowUsed)? == Some(false) { None } else { window };

    let word = |choice: Choice<'_>| match choice {
        Choice::Word("full_attention") => Some(false),
        Choice::Word("sliding_attention" | "chunked_attention") => Some(true),
        // What a layer is, its tensors say.
        Choice::Word(_) if family.recurrent.is_some() => Some(false),
        _ => None,
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

/// Whether each layer rotates its queries and keys.
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

/// How a layer scales its queries by their position.
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

/// The rotation of a layer with a window: its own, where the checkpoint or the family says so.
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
