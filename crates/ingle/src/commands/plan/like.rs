//! What other engines would give keys and values on this machine, or on one that is described, by their own formulas; and what
//! Ingle would. docs/memory.md says where the formulas come from.

use clap::ValueEnum;
use serde::Serialize;

/// Whose formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// 0.9 of all memory less weights and the peak that was profiled; refuses to start if others hold more than a tenth
    Vllm,
    /// 0.9 of what the GPU may use (2/3 of the memory up to 36 GiB, 3/4 beyond) less what is in use
    Mistralrs,
    /// What the GPU may use less its own; the whole context at start
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// 0.9 of what the GPU may use less weights and overhead
    VllmMetal,
}

/// A machine with one user. Bytes.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub total: u64,
    /// What other programs hold.
    pub others: u64,
}

/// What a model takes. Bytes.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub weights: u64,
    /// Activations and the like.
    pub peak: u64,
    pub kv_per_token: u64,
    /// Tokens.
    pub context: u64,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub engine: &'static str,
    /// Bytes for keys and values; absent: it does not start.
    pub kv_bytes: Option<u64>,
    /// Tokens of them.
    pub kv_tokens: Option<u64>,
    /// What does not fit beside others if it takes all of that.
    pub over: u64,
    /// The same when others take 4 GiB more while it runs.
    pub over_after_4gib: u64,
    pub why: String,
}

const MORE: u64 = 4 << 30;

/// macOS lets a GPU use so much: `recommendedMaxWorkingSetSize`, as measured by others on many Macs.
fn gpu_limit(total: u64) -> u64 {
    if total <= 36 << 30 { total / 3 * 2 } else { total / 4 * 3 }
}

fn part(bytes: u64, tenths: u64) -> u64 {
    bytes / 10 * tenths
}

impl Engine {
    /// What it would do.
    pub fn outcome(self, machine: Machine, needs: Needs) -> Outcome {
        let fixed = needs.weights + needs.peak;
        let free = machine.total.saturating_sub(machine.others);
        let (name, kv, why) = match self {
            Engine::Vllm => {
                let asked = part(machine.total, 9);
                let kv = (free >= asked).then(|| asked.saturating_sub(fixed));
                let why = match kv {
                    Some(_) => "total x 0.9 - weights - peak; kept to the end".to_owned(),
                    None => "refuses to start: less than 0.9 of the memory is free".to_owned(),
                };
                ("vllm", kv, why)
            }
            Engine::Mistralrs => {
                let kv = part(gpu_limit(machine.total), 9).saturating_sub(fixed);
                (
                    "mistralrs",
                    Some(kv),
                    "min(hint, 2/3 or 3/4 of RAM) x 0.9 - used; others do not count".to_owned(),
                )
            }
            Engine::LlamaCpp => {
                let whole = needs.kv_per_token * needs.context;
                let left = gpu_limit(machine.total).saturating_sub(fixed);
                let why = match whole <= left {
                    true => "the whole context at start; others do not count".to_owned(),
                    false => "the whole context at start does not fit in what the GPU may use".to_owned(),
                };
                ("llama.cpp", (whole <= left).then_some(whole), why)
            }
            Engine::VllmMetal => {
                let kv = part(gpu_limit(machine.total), 9).saturating_sub(fixed);
                ("vllm-metal", Some(kv), "limit x 0.9 - active - overhead; others do not count".to_owned())
            }
        };
        // Nothing of weights or context fits: it does not start.
        let kv = kv.filter(|kv| *kv > 0);
        let held = kv.map_or(0, |kv| kv + fixed);
        let over = |others: u64| match kv {
            Some(_) => (held + others).saturating_sub(machine.total),
            None => 0,
        };
        Outcome {
            engine: name,
            kv_bytes: kv,
            kv_tokens: kv.map(|kv| kv / needs.kv_per_token.max(1)),
            over: over(machine.others),
            over_after_4gib: over(machine.others + MORE),
            why,
        }
    }
}

/// What Ingle would do: it gives back what others take, down to weights, activations and nothing else.
pub fn ingle(machine: Machine, needs: Needs) -> Outcome {
    let fixed = needs.weights + needs.peak;
    let reserve = engine::reserve(machine.total);
    let kv_beside = |others: u64| machine.total.saturating_sub(others + fixed + reserve);
    let kv = Some(kv_beside(machine.others)).filter(|kv| *kv > 0);
    let after = kv_beside(machine.others + MORE);
    let over = |others: u64, kv: u64| match kv {
        0 => (fixed + others).saturating_sub(machine.total),
        kv => (fixed + others + kv).saturating_sub(machine.total),
    };
    let why = match kv {
        Some(_) => format!(
            "held + free - reserve - growth; {} tokens when others take 4 GiB more",
            after / needs.kv_per_token.max(1)
        ),
        None => "does not load: the itemised plan says what would fit".to_owned(),
    };
    Outcome {
        engine: "ingle",
        kv_bytes: kv,
        kv_tokens: kv.map(|kv| kv / needs.kv_per_token.max(1)),
        over: 0,
        over_after_4gib: kv.map_or(0, |_| over(machine.others + MORE, after)),
        why,
    }
}

/// A table for people.
pub fn table(outcomes: &[Outcome]) -> String {
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
    let mut out =
        format!("{:<11} {:>12} {:>12} {:>12} {:>14}  how", "engine", "KV", "tokens", "over", "over, +4 GiB");
    for o in outcomes {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        out.push_str(&format!(
            "\n{:<11} {:>12} {:>12} {:>12} {:>14}  {}",
            o.engine,
            or_none(o.kv_bytes.map(gib)),
            or_none(o.kv_tokens.map(|n| n.to_string())),
            gib(o.over),
            gib(o.over_after_4gib),
            o.why
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const NEEDS: Needs = Needs { weights: 5 * GIB, peak: GIB, kv_per_token: 128 << 10, context: 8192 };

    #[test]
    fn formulas_on_a_mac_of_sixteen() {
        let alone = Machine { total: 16 * GIB, others: 0 };
        let near = |found: Option<u64>, gib: f64| {
            let found = found.unwrap() as f64 / GIB as f64;
            assert!((found - gib).abs() < 0.01, "{found} is not {gib}");
        };
        near(Engine::Vllm.outcome(alone, NEEDS).kv_bytes, 16.0 * 0.9 - 6.0);
        near(Engine::Mistralrs.outcome(alone, NEEDS).kv_bytes, 16.0 * 2.0 / 3.0 * 0.9 - 6.0);
        near(Engine::VllmMetal.outcome(alone, NEEDS).kv_bytes, 16.0 * 2.0 / 3.0 * 0.9 - 6.0);
        near(Engine::LlamaCpp.outcome(alone, NEEDS).kv_bytes, 1.0);
        near(ingle(alone, NEEDS).kv_bytes, 16.0 - 6.0 - 1.0);
        assert_eq!(Engine::LlamaCpp.outcome(alone, Needs { context: 1 << 20, ..NEEDS }).kv_bytes, None);
    }

    #[test]
    fn only_two_notice_others() {
        let busy = Machine { total: 16 * GIB, others: 8 * GIB };
        assert_eq!(Engine::Vllm.outcome(busy, NEEDS).kv_bytes, None);
        assert!(Engine::Mistralrs.outcome(busy, NEEDS).over > GIB);
        let ours = ingle(busy, NEEDS);
        assert_eq!((ours.kv_bytes, ours.over, ours.over_after_4gib), (Some(GIB), 0, 2 * GIB));
        let large = Machine { total: 64 * GIB, others: 8 * GIB };
        assert_eq!(ingle(large, NEEDS).over_after_4gib, 0);
        let kv = Engine::Mistralrs.outcome(large, NEEDS).kv_bytes.unwrap() as f64 / GIB as f64;
        assert!((kv - (64.0 * 0.75 * 0.9 - 6.0)).abs() < 0.01);
    }
}
