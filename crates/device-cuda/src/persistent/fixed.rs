//! The persistent kernel for one model alone: declarations that make the numbers of the table
//! constants, followed by the text of the general kernel. Loops have a known length, and a phase
//! has one codec and one size. That makes less code, and 5 to 20 % less time a token
//! (`kernels/persistent/NOTES.md`). It needs NVRTC. The general kernel computes the same bits.

use super::header::{CONTINUES, GATE, HEAD, QKV};
use super::{PASS_ROWS, Persistent, Rows};
use crate::arguments::{PersistentArguments, PersistentPhase};
use crate::kernels::Kernels;
use std::fmt::Write;

/// Cycles from a block's own publication to its first poll (NOTES.md).
const POLL_DELAY_FIXED: u32 = 200;

/// A constant of a struct: its type, its name, its value.
type Constant = (&'static str, &'static str, String);

macro_rules! constants {
    ($kind:literal of $of:expr; $($name:ident)*) => {
        [$(($kind, stringify!($name), format!("{:?}", $of.$name))),*]
    };
}

/// The arguments of a launch that are no addresses and never change. It is `None` if a factor is
/// infinite or NaN, for which C++ has no literal. `n_rows` is left out so that the compiler does
/// not know how often code runs. `stop_phase` may change, and `table_stride` depends on the length
/// of the context.
fn of_arguments(arguments: &PersistentArguments) -> Option<Vec<Constant>> {
    let a = PersistentArguments { poll_delay: POLL_DELAY_FIXED, ..*arguments };
    let numbers = constants!("uint" of a; n_phases interleaved hidden n_kv_heads n_vocab n_splits page_len slot_bytes n_slots
        poll_delay refill_gates in_flight most_quads n_experts n_used expert_ffn expert_sigmoid expert_normalise);
    let factors = [
        ("rotation_scale1", a.rotation_scale1),
        ("rotation_scale2", a.rotation_scale2),
        ("eps", a.eps),
        ("attention_scale", a.attention_scale),
        ("softcap", a.softcap),
        ("expert_factor", a.expert_factor),
        ("expert_limit", a.expert_limit),
        ("expert_alpha", a.expert_alpha),
    ];
    if factors.iter().any(|(_, factor)| !factor.is_finite()) {
        return None;
    }
    // Debug prints the shortest decimal that reads back as the same f32, with a point or an
    // exponent.
    let factors = factors.map(|(name, factor)| ("float", name, format!("{factor:?}f")));
    Some(numbers.into_iter().chain(factors).collect())
}

/// The fields that have the same value in all of `phases`, and facts for the compiler alone.
fn of_phases(phases: &[&PersistentPhase], n_blocks: u32) -> Vec<Constant> {
    let of = |p: &PersistentPhase| {
        let numbers = constants!("uint" of p; window rotation qkv_part first_row kind codec input groups k_quads warps chunks activation gate_refill);
        // An address is never a constant, but its absence may be.
        let optional = [
            ("norm_or_sinks", p.norm_or_sinks),
            ("post_norm", p.post_norm),
            ("bias", p.bias),
            ("q_norm_or_second_bias", p.q_norm_or_second_bias),
            ("k_norm_or_factors", p.k_norm_or_factors),
        ];
        let optional = optional.map(|(name, address)| {
            ("const float *", name, if address == 0 { "nullptr".to_owned() } else { String::new() })
        });
        let together = if p.kind == GATE { 2 } else { 1 };
        let (fewest, most) =
            (p.groups / together / n_blocks * together, (p.groups / together).div_ceil(n_blocks) * together);
        let own_groups =
            ("uint", "own_groups", if fewest == most { most.to_string() } else { String::new() });
        // Groups of a block in its last pass, if that pass is not a whole one. They are 0 if there
        // are several passes and the number is not known.
        let known = fewest == most || most <= (PASS_ROWS / 8) as u32;
        let (fewest, most) = if known { (fewest, most) } else { (0, 0) };
        let of_blocks = [("FEWEST", fewest), ("MOST", most), ("QUADS", p.k_quads), ("WARPS", p.warps)];
        let of_blocks = of_blocks.map(|(name, n)| ("uint", name, n.to_string()));
        let all = numbers.into_iter().chain(optional).chain([own_groups]).chain(of_blocks);
        all.collect::<Vec<Constant>>()
    };
    let mut all = phases.iter().map(|phase| of(phase));
    let mut common = all.next().unwrap_or_default();
    for other in all {
        for (mine, its) in common.iter_mut().zip(other) {
            if mine.2 != its.2 {
                mine.2.clear();
            }
        }
    }
    common.retain(|(.., value)| !value.is_empty());
    // A bit for each codec of the phases.
    let codecs = phases.iter().fold(0u32, |codecs, phase| codecs | 1 << phase.codec);
    common.push(("uint", "CODECS", codecs.to_string()));
    common
}

/// Writes `struct name : base` with constants that hide the fields of the same names.
fn declare(out: &mut String, name: &str, base: &str, constants: &[Constant]) {
    // Writing to a string never fails.
    let _ = writeln!(out, "struct {name} : {base} {{");
    for (kind, field, value) in constants {
        let _ = writeln!(out, "    static constexpr {kind} {field} = {value};");
    }
    out.push_str("};\n");
}

/// The start of the file name of every fixed kernel.
pub const FIXED: &str = "persistent/fixed";

/// The file of a kernel for one table alone, or of the general kernel if there is no such kernel.
/// `embedding` is the C++ type that reads rows of the embedding (`linear/rows.cuh`). With it a
/// launch can compute several steps.
pub fn fixed_file(
    persistent: &Persistent,
    rows: Rows,
    arguments: &PersistentArguments,
    phases: &[PersistentPhase],
    embedding: Option<&str>,
    kernels: &Kernels,
) -> String {
    let file = persistent.general_file(rows, kernels);
    if !kernels.can_compile() {
        return file;
    }
    let general = persistent.source(rows);
    match fixed_source(&general, arguments, phases, persistent.n_blocks(), embedding) {
        Some(text) => kernels.generate(FIXED, text, Some(file)),
        None => file,
    }
}

/// The text of a kernel for one table alone, from the text of the general kernel. It is `None` if
/// layers differ in more than their types, or if a factor is not finite.
pub(super) fn fixed_source(
    general: &str,
    arguments: &PersistentArguments,
    phases: &[PersistentPhase],
    n_blocks: usize,
    embedding: Option<&str>,
) -> Option<String> {
    let (head, layers) = phases.split_last().filter(|(head, _)| head.kind == HEAD)?;
    let begins = |phase: &PersistentPhase| phase.kind == QKV && phase.qkv_part & CONTINUES == 0;
    let of_layer = layers.iter().skip(1).position(begins).map_or(layers.len(), |n| n + 1);
    let is_one_kind = (0..of_layer).all(|at| {
        let mut of_place = layers.iter().skip(at).step_by(of_layer);
        let first = of_place.next();
        let same = |phase: &PersistentPhase| {
            first.is_some_and(|first| {
                (first.kind, first.qkv_part, first.groups, first.k_quads, first.warps)
                    == (phase.kind, phase.qkv_part, phase.groups, phase.k_quads, phase.warps)
            })
        };
        of_place.all(same)
    });
    if of_layer == 0 || !layers.len().is_multiple_of(of_layer) || !is_one_kind {
        return None;
    }
    let mut out = String::from("#include \"persistent/arguments.h\"\n");
    if let Some(rows) = embedding {
        out += &format!("#include \"linear/rows.cuh\"\n#define PERSISTENT_EMBEDDING {rows}\n");
    }
    declare(&mut out, "PersistentTable", "PersistentArguments", &of_arguments(arguments)?);
    let mut list = String::from("#define PERSISTENT_FIXED(ONE)");
    for at in 0..of_layer {
        let phases: Vec<&PersistentPhase> = layers.iter().skip(at).step_by(of_layer).collect();
        let name = format!("PersistentPhase{at}");
        declare(&mut out, &name, "PersistentPhase", &of_phases(&phases, n_blocks as u32));
        list += &format!(" ONE({name})");
    }
    declare(&mut out, "PersistentHead", "PersistentPhase", &of_phases(&[head], n_blocks as u32));
    Some(out + &list + "\n" + general)
}
