//! The description of a spec that `inspect` prints.

use std::fmt;

use device::{OutputKind, RopeStyle};

use crate::descriptor::{NormKind, NormPlaces, QkNorm, RecurrentKind};
use crate::error::naming_word;
use crate::spec::{LayerSpec, ModelSpec};

/// A number of parameters in a short form: `134.5 M`.
fn short_count(n: u64) -> String {
    match n {
        0..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// `0-4, 6-10, 12`: ascending numbers with runs joined.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let show = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn norms(places: NormPlaces) -> &'static str {
    match (places.pre_attention || places.pre_ffn, places.post_attention || places.post_ffn) {
        (true, false) => "before each branch",
        (false, true) => "after each branch",
        (true, true) => "before and after each branch",
        (false, false) => "none",
    }
}

/// A line about the layers `members`, which are all like `kind`.
fn layers(kind: &LayerSpec, members: &[usize], style: RopeStyle) -> String {
    let rope = kind.rope.as_ref().map_or("none".to_owned(), |r| format!("{:?}, {r}", style));
    let sees = kind.window.map_or("all positions".to_owned(), |w| format!("a window of {w}"));
    let mut network = match kind.ffn {
        0 => String::new(),
        ffn => format!(", feed-forward {ffn}"),
    };
    if let Some(e) = kind.experts {
        network.push_str(&format!(", {} of {} experts of {}", e.n_used, e.n, e.ffn));
    }
    if let Some(cutoff) = kind.cutoff {
        network.push_str(&format!(" of gates from {cutoff:.2} deviations on"));
    }
    if let Some(from) = kind.kv_from {
        network.push_str(&format!(", keys and values of layer {from}"));
    }
    let attention = match kind.attends {
        true => format!(
            "{} query and {} KV heads of {}, sees {sees}, scale {}",
            kind.n_heads, kind.n_kv_heads, kind.head_dim, kind.attention_scale
        ),
        false => String::new(),
    };
    let recurrence = kind.recurrent.map_or(String::new(), |r| match r.kind {
        RecurrentKind::ShortConv => format!("short convolution over {} positions", r.conv_size),
        RecurrentKind::GatedDelta | RecurrentKind::SelectiveScan => format!(
            "{:?}, {} heads in {} groups, states of {} by {}",
            r.kind, r.n_heads, r.n_groups, r.rows, r.head_dim
        ),
    });
    let mixers: Vec<String> = [attention, recurrence].into_iter().filter(|mixer| !mixer.is_empty()).collect();
    let rotation = if kind.attends { format!(", rotation: {rope}") } else { String::new() };
    format!("{}: {}{network}{rotation}", ranges(members), mixers.join(" and "))
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<18} {value}");
        line("family", format!("{} ({} names)", self.family.title, naming_word(self.naming)))?;
        if self.n_parameters > 0 {
            line("parameters", format!("{} ({})", short_count(self.n_parameters), self.n_parameters))?;
        }
        line("context", format!("{} positions", self.n_ctx_train))?;
        match self.n_inputs {
            0 => line("vocabulary", self.n_vocab.to_string())?,
            n => {
                let rows = self.family.input_stride();
                line("input", format!("{rows} rows of {n} numbers for each position"))?;
            }
        }
        line("depth", format!("{} layers", self.n_layers()))?;
        line("hidden", self.hidden.to_string())?;
        let kind = match self.family.norm_kind {
            NormKind::Rms => "RMS",
            NormKind::Layer => "mean and variance",
        };
        let places = if self.family.norm_on_sum { "after each sum" } else { norms(self.family.norms) };
        line("norms", format!("{kind}, {places}, epsilon {:e}", self.norm_eps))?;
        match self.qk_norm {
            QkNorm::None => {}
            QkNorm::PerHead => line("q and k norms", "each head".to_owned())?,
            QkNorm::WholeRow => line("q and k norms", "all heads together".to_owned())?,
            QkNorm::PlainWhereTurning => {
                line("q and k norms", "each head, where it rotates, without a weight".to_owned())?;
            }
        }
        let gate = if self.family.gated { "gated " } else { "" };
        line("feed-forward", format!("{gate}{:?}", self.activation))?;
        let head = match (self.family.output, self.tied_head) {
            (OutputKind::Hidden, _) => "none (hidden states)",
            (_, true) => "the embedding",
            (_, false) => "its own",
        };
        line("head", head.to_owned())?;
        if self.family.bidirectional {
            line("attention", "in both directions".to_owned())?;
        }
        for (name, factor) in [
            ("embedding scale", self.embedding_scale),
            ("residual scale", self.residual_scale),
            ("logit scale", self.logit_scale),
        ] {
            if factor != 1.0 {
                line(name, factor.to_string())?;
            }
        }
        if self.next_layer.is_some() || self.n_next > 0 {
            line("predicts", "one more token with its own layer (--mtp)".to_owned())?;
        }
        if self.per_layer_width > 0 {
            line("per-layer inputs", format!("{} columns", self.per_layer_width))?;
        }
        if self.n_streams > 1 {
            let (n, rank) = (self.n_streams, self.laurel_rank);
            line("residual streams", format!("{n}, with a low-rank residual of {rank} columns"))?;
        }
        for (name, cap) in [("logit cap", self.logit_softcap), ("attention cap", self.attention_softcap)] {
            if let Some(cap) = cap {
                line(name, cap.to_string())?;
            }
        }
        // Equal layers share a line.
        let mut kinds: Vec<(&LayerSpec, Vec<usize>)> = Vec::new();
        for (l, layer) in self.layers.iter().enumerate() {
            match kinds.iter_mut().find(|(kind, _)| *kind == layer) {
                Some((_, members)) => members.push(l),
                None => kinds.push((layer, vec![l])),
            }
        }
        for (kind, members) in kinds {
            let value = layers(kind, &members, self.rope_style);
            line(if members.len() == 1 { "layer" } else { "layers" }, value)?;
        }
        if !self.unused_tensors.is_empty() {
            line("unused tensors", self.unused_tensors.len().to_string())?;
        }
        if let Some(encoder) = &self.encoder {
            write!(f, "encoder:\n{encoder}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined() {
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn counts_are_short() {
        assert_eq!(short_count(134_515_008), "134.5 M");
        assert_eq!(short_count(1_235_814_400), "1.24 B");
        assert_eq!(short_count(91_000), "91.0 k");
    }
}
