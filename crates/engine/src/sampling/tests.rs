//! Tests of the distributions and limits of the whole sampling pipeline.

use device_testing::cases;
use proptest::prelude::*;

// A trait of proptest has the same name.
use super::Rng;
use super::*;
use crate::scheduler::{History, StepBuffers};
use device::{Chosen, Limits};
use device_lower::sampling::{Chooser, log_sum_exp};

/// The choice of a device from these logits after these tokens.
fn sample(sampler: &mut Sampler, logits: &[f32], tokens: &[u32], chooser: &mut Chooser) -> Chosen {
    let limits = Limits {
        max_outputs: 1,
        max_rows: 1,
        max_spans: 1,
        n_ctx: 64,
        ..device_testing::limits(&Default::default())
    };
    let mut buffers = StepBuffers::new(&limits, 0, 1, false);
    let want = buffers.want(sampler, &History { tokens, ..History::default() }, 0);
    let chosen = chooser.choose(logits, &want, &buffers.lists(), std::iter::empty());
    sampler.took_one(chosen.surprise);
    chosen
}

fn sample_many(params: &SamplingParams, logits: &[f32], tokens: &[u32], n: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(params, logits.len(), None).unwrap();
    let mut chooser = Chooser::new(logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        let chosen = sample(&mut sampler, logits, tokens, &mut chooser);
        counts[chosen.token.unwrap() as usize] += 1;
    }
    counts
}

/// The definition of the stages, computed slowly in f64: probabilities of all tokens.
fn expected(params: &SamplingParams, logits: &[f32], tokens: &[u32]) -> Vec<f64> {
    let mut l: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for &(id, bias) in params.logit_bias.iter() {
        l[id as usize] += f64::from(bias);
    }
    let window =
        if params.penalty_window == 0 { tokens.len() } else { params.penalty_window.min(tokens.len()) };
    let recent = &tokens[tokens.len() - window..];
    for (id, l) in l.iter_mut().enumerate() {
        let count = recent.iter().filter(|t| **t as usize == id).count() as f64;
        if count > 0.0 {
            *l = if *l > 0.0 {
                *l / f64::from(params.repeat_penalty)
            } else {
                *l * f64::from(params.repeat_penalty)
            };
            *l -= f64::from(params.presence_penalty) + f64::from(params.frequency_penalty) * count;
        }
    }
    l.iter_mut().for_each(|l| *l /= f64::from(params.temperature));
    let mut order: Vec<usize> = (0..l.len()).collect();
    order.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let p_of = |order: &[usize]| -> Vec<f64> {
        let max = l[order[0]];
        let w: Vec<f64> = order.iter().map(|&i| (l[i] - max).exp()).collect();
        let sum: f64 = w.iter().sum();
        w.iter().map(|w| w / sum).collect()
    };
    let mut sum = 0.0;
    let nucleus = p_of(&order).into_iter().take_while(|p| {
        let before = sum;
        sum += p;
        params.top_p >= 1.0 || before < f64::from(params.top_p) - 1e-9
    });
    let n = nucleus.count();
    order.truncate(n.max(1));
    let p = p_of(&order);
    let n = p.iter().filter(|x| **x >= f64::from(params.min_p) * p[0] * (1.0 - 1e-6)).count();
    order.truncate(n);
    let mut out = vec![0.0; l.len()];
    for (i, p) in order.iter().zip(p_of(&order)) {
        out[*i] = p;
    }
    out
}

/// Check that counts of `n` draws are within 5 standard deviations of a binomial with the expected
/// probability, and that dropped tokens are never drawn.
fn check(params: &SamplingParams, logits: &[f32], tokens: &[u32]) {
    const N: usize = 4000;
    let counts = sample_many(params, logits, tokens, N);
    for (id, p) in expected(params, logits, tokens).into_iter().enumerate() {
        let (mean, sd) = (p * N as f64, (p * (1.0 - p) * N as f64).sqrt());
        let got = counts[id] as f64;
        assert!(
            (got - mean).abs() <= 5.0 * sd + 1.0,
            "token {id}: {got}, expected {mean} ± {sd}; {params:?}"
        );
        assert!(p > 0.0 || counts[id] == 0, "token {id} was cut and drawn; {params:?}");
    }
}

const LOGITS: [f32; 9] = [2.0, -1.0, 0.5, 3.0, 3.0, -4.0, 1.5, 0.0, 2.5];

#[test]
fn every_stage_alone_and_all_together() {
    let seeded = SamplingParams { seed: Some(3), ..Default::default() };
    check(&seeded, &LOGITS, &[]);
    check(&SamplingParams { temperature: 0.5, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { temperature: 2.5, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { top_k: 3, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { top_p: 0.7, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { top_p: 0.0, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { min_p: 0.3, ..seeded.clone() }, &LOGITS, &[]);
    check(&SamplingParams { repeat_penalty: 1.7, ..seeded.clone() }, &LOGITS, &[3, 1, 3]);
    check(
        &SamplingParams { presence_penalty: 0.6, frequency_penalty: 0.9, ..seeded.clone() },
        &LOGITS,
        &[3, 1, 3],
    );
    check(
        &SamplingParams { presence_penalty: 2.0, penalty_window: 2, ..seeded.clone() },
        &LOGITS,
        &[4, 1, 3],
    );
    check(
        &SamplingParams { logit_bias: [(3, f32::NEG_INFINITY), (5, 6.0)].into(), ..seeded.clone() },
        &LOGITS,
        &[],
    );
    let all = SamplingParams {
        temperature: 0.8,
        top_k: 7,
        top_p: 0.9,
        min_p: 0.05,
        repeat_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        penalty_window: 0,
        logit_bias: [(7, 1.0)].into(),
        ..seeded
    };
    check(&all, &LOGITS, &[0, 3, 0, 8]);
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_needs_no_random_numbers() {
    let counts = sample_many(&SamplingParams::greedy(), &LOGITS, &[], 10);
    assert_eq!(counts[3], 10);
    let counts = sample_many(&SamplingParams { top_k: 1, ..Default::default() }, &LOGITS, &[], 10);
    assert_eq!(counts[3], 10);
    assert_eq!(Sampler::new(&SamplingParams::greedy(), 9, None).unwrap().want(0), Want::BEST);
    let biased = SamplingParams { logit_bias: [(0, 9.0)].into(), ..SamplingParams::greedy() };
    assert_eq!(sample_many(&biased, &LOGITS, &[], 10)[0], 10);
}

#[test]
fn the_seed_decides() {
    let draw = |seed| {
        let params = SamplingParams { seed: Some(seed), ..Default::default() };
        let mut sampler = Sampler::new(&params, LOGITS.len(), None).unwrap();
        let mut chooser = Chooser::new(LOGITS.len());
        (0..32).map(|_| sample(&mut sampler, &LOGITS, &[], &mut chooser).token).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn wants_have_the_random_numbers_in_order_and_only_those_taken_are_gone() {
    let params =
        SamplingParams { seed: Some(5), penalty_window: 2, presence_penalty: 1.0, ..Default::default() };
    let mut sampler = Sampler::new(&params, LOGITS.len(), None).unwrap();
    assert_eq!(sampler.penalty_window(), Some(2));
    let random = |sampler: &Sampler, n_ahead: usize| match sampler.want(n_ahead).choose {
        Choose::Sample(sampling) => sampling.random,
        other => panic!("{other:?}"),
    };
    let mut rng = Rng::new(5);
    let randoms: Vec<f64> = (0..8).map(|_| rng.uniform()).collect();
    assert!((0..8).all(|n| random(&sampler, n) == randoms[n]));
    sampler.took_one(f32::NAN);
    sampler.took_one(f32::NAN);
    assert_eq!(random(&sampler, 0), randoms[2]);
    let mut greedy = Sampler::new(&SamplingParams { top_k: 1, ..params }, 9, None).unwrap();
    assert_eq!(greedy.want(3).choose, Choose::Best);
    greedy.took_one(f32::NAN);
    assert_eq!(greedy.rng.next_u64(), Rng::new(5).next_u64(), "greedy needs no random numbers");
}

#[test]
fn logprobs_are_the_models_own() {
    let params = SamplingParams {
        temperature: 0.3,
        repeat_penalty: 1.5,
        logit_bias: [(4, 1.0), (4, 1.0)].into(),
        logprobs: true,
        ..Default::default()
    };
    let mut sampler = Sampler::new(&params, LOGITS.len(), None).unwrap();
    let mut chooser = Chooser::new(LOGITS.len());
    let normalizer = log_sum_exp(&LOGITS);
    for _ in 0..50 {
        let chosen = sample(&mut sampler, &LOGITS, &[4, 3], &mut chooser);
        let want = f64::from(LOGITS[chosen.token.unwrap() as usize]) - normalizer;
        assert!((f64::from(chosen.logprob) - want).abs() < 1e-6);
    }
}

#[test]
fn values_outside_their_limits_are_named() {
    let bad = |params: SamplingParams| Sampler::new(&params, 9, None).unwrap_err();
    let d = SamplingParams::default;
    assert_eq!(
        bad(SamplingParams { temperature: -1.0, ..d() }).to_string(),
        "temperature is -1, expected a number from 0 to 1000000"
    );
    assert_eq!(
        bad(SamplingParams { top_p: 1.5, ..d() }).to_string(),
        "top_p is 1.5, expected a number from 0 to 1"
    );
    assert_eq!(bad(SamplingParams { min_p: f32::NAN, ..d() }).name, "min_p");
    assert_eq!(bad(SamplingParams { repeat_penalty: 0.0, ..d() }).name, "repeat_penalty");
    assert_eq!(bad(SamplingParams { presence_penalty: f32::INFINITY, ..d() }).name, "presence_penalty");
    assert_eq!(bad(SamplingParams { logit_bias: [(9, 0.0)].into(), ..d() }).expected, "token ids below 9");
    assert_eq!(bad(SamplingParams { logit_bias: [(1, f32::INFINITY)].into(), ..d() }).name, "logit_bias");
}

/// Extreme values are refused, or still allow a token: none makes every logit NaN.
#[test]
fn no_parameter_leaves_a_model_without_a_token() {
    type Set = fn(&mut SamplingParams, f32);
    let all: [(&str, Set); 16] = [
        ("temperature", |p, x| p.temperature = x),
        ("top_p", |p, x| p.top_p = x),
        ("min_p", |p, x| p.min_p = x),
        ("repeat_penalty", |p, x| p.repeat_penalty = x),
        ("presence_penalty", |p, x| p.presence_penalty = x),
        ("frequency_penalty", |p, x| p.frequency_penalty = x),
        ("typical_p", |p, x| p.typical_p = x),
        ("top_n_sigma", |p, x| p.top_n_sigma = x),
        ("xtc_probability", |p, x| p.xtc_probability = x),
        ("xtc_threshold", |p, x| (p.xtc_probability, p.xtc_threshold) = (1.0, x)),
        ("dynatemp_range", |p, x| p.dynatemp_range = x),
        ("dynatemp_exponent", |p, x| (p.dynatemp_range, p.dynatemp_exponent) = (1.0, x)),
        ("mirostat_tau", |p, x| p.mirostat = Some(Mirostat { version: 2, tau: x, eta: 0.1 })),
        ("mirostat_eta", |p, x| p.mirostat = Some(Mirostat { version: 1, tau: 5.0, eta: x })),
        ("dry_base", |p, x| p.dry = Some(Dry { base: x, ..Dry::default() })),
        // One token is left unbiased: forbidding all would leave nothing to choose.
        ("logit_bias", |p, x| p.logit_bias = (0..8).chain(0..8).map(|id| (id, x)).collect()),
    ];
    let values = [1e-45, 1e-38, 1e-7, 1e-6, 0.0, 0.5, 1.0, 1e6, 1e9, 3e38, f32::MAX, f32::INFINITY, f32::NAN];
    let mut n_refused = 0;
    for (name, set) in all {
        for value in values.iter().flat_map(|value| [*value, -value]) {
            let mut params = SamplingParams { seed: Some(1), penalty_window: 0, ..SamplingParams::default() };
            set(&mut params, value);
            // Combine the value with others at their limits.
            for others in [false, true] {
                if others {
                    (params.temperature, params.frequency_penalty) = (params.temperature.min(1e-30), -1e6);
                }
                let Ok(mut sampler) = Sampler::new(&params, LOGITS.len(), None) else {
                    n_refused += 1;
                    continue;
                };
                let mut chooser = Chooser::new(LOGITS.len());
                let mut tokens = vec![4; 100];
                for _ in 0..20 {
                    let chosen = sample(&mut sampler, &LOGITS, &tokens, &mut chooser);
                    tokens.push(chosen.token.unwrap_or_else(|| panic!("{name} {value}: no token")));
                    sampler.took_one(chosen.surprise);
                }
            }
        }
    }
    assert!(n_refused > 100, "{n_refused}");
}

#[test]
fn where_nothing_can_be_picked_nothing_is_chosen() {
    for params in [SamplingParams::default(), SamplingParams::greedy()] {
        let mut sampler = Sampler::new(&params, 3, None).unwrap();
        let mut chooser = Chooser::new(3);
        let none = [f32::NAN, f32::NEG_INFINITY, f32::NAN];
        assert_eq!(sample(&mut sampler, &none, &[], &mut chooser).token, None);
        // One good logit among them is enough.
        let one = [f32::NAN, -1.0, f32::NEG_INFINITY];
        assert_eq!(sample(&mut sampler, &one, &[], &mut chooser).token, Some(1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(300)))]

    /// For any logits and parameters the chosen token is one that the slow formula keeps, and
    /// buffers never grow.
    #[test]
    fn chosen_tokens_survive_the_stages(
        logits in prop::collection::vec(prop_oneof![8 => -9.0f32..9.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(1.0f32)], 1..70),
        temperature in 0.05f32..3.0, top_k in 0usize..80, top_p in 0.0f32..=1.0, min_p in 0.0f32..=1.0,
        repeat_penalty in 0.5f32..2.0, presence_penalty in -1.0f32..1.0, penalty_window in 0usize..9,
        recent in prop::collection::vec(any::<prop::sample::Index>(), 0..20), seed in any::<u64>(),
    ) {
        prop_assume!(logits.iter().any(|l| *l > f32::NEG_INFINITY));
        let tokens: Vec<u32> = recent.iter().map(|i| i.index(logits.len()) as u32).collect();
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, penalty_window, seed: Some(seed),
            ..Default::default()
        };
        let mut sampler = Sampler::new(&params, logits.len(), None).unwrap();
        let mut chooser = Chooser::new(logits.len());
        for _ in 0..8 {
            let id = sample(&mut sampler, &logits, &tokens, &mut chooser).token.unwrap();
            // f32 and f64 may differ in one token at the edge, so the wider parameters keep
            // slightly more.
            let wider = SamplingParams {
                top_p: if top_p < 1.0 { (top_p + 1e-5).min(1.0) } else { 1.0 }, min_p: min_p * 0.9999, ..params.clone()
            };
            prop_assert!(expected(&wider, &logits, &tokens)[id as usize] > 0.0);
        }
    }
}

#[test]
fn the_order_of_samplers_decides() {
    use super::SamplerName::{MinP, Penalties, Temperature, TopK, TopP};
    let of = |order: &[SamplerName]| {
        let params = SamplingParams {
            temperature: 0.2,
            top_p: 0.8,
            order: Some(order.to_vec()),
            seed: Some(1),
            ..Default::default()
        };
        let counts = sample_many(&params, &LOGITS, &[], 300);
        counts.iter().filter(|n| **n > 0).count()
    };
    // After the low temperature two equal tokens have all probability; before it, three are needed
    // for 0.8.
    assert_eq!(of(&[Temperature, TopP]), 2);
    assert_eq!(of(&[TopP]), 4);
    assert!(of(&[MinP, TopK]) > 4);
    // Penalties run only if the order names them.
    let penalised = |order: Vec<SamplerName>| {
        let params = SamplingParams {
            presence_penalty: 1e6,
            order: Some(order),
            seed: Some(2),
            ..SamplingParams::default()
        };
        sample_many(&params, &LOGITS, &[3, 4], 100)[3] == 0
    };
    assert!(penalised(vec![Penalties, Temperature]));
    assert!(!penalised(vec![Temperature]));
}

/// The mean surprise of Mirostat's choices approaches its target from both sides.
#[test]
fn mirostat_reaches_its_target() {
    let logits: Vec<f32> = (0..5000).map(|i| -1.1 * ((i + 1) as f32).ln()).collect();
    for (version, tau) in [(1, 2.0), (1, 6.0), (2, 2.0), (2, 6.0)] {
        let mirostat = Some(Mirostat { version, tau, eta: 0.1 });
        let params = SamplingParams { mirostat, seed: Some(4), ..Default::default() };
        let mut sampler = Sampler::new(&params, logits.len(), None).unwrap();
        let mut chooser = Chooser::new(logits.len());
        let n = 600;
        let sum: f32 = (0..n).map(|_| sample(&mut sampler, &logits, &[], &mut chooser).surprise).sum();
        let mean = sum / n as f32;
        assert!((mean - tau).abs() < 0.2, "version {version}: {mean} bits, expected about {tau}");
    }
}

/// DRY ends loops that a model without it would never leave.
#[test]
fn dry_leaves_a_loop() {
    let dry = Some(Dry { multiplier: 5.0, breakers: vec![].into(), ..Dry::default() });
    let params = SamplingParams { temperature: 0.0, dry, ..Default::default() };
    let mut sampler = Sampler::new(&params, LOGITS.len(), None).unwrap();
    let mut chooser = Chooser::new(LOGITS.len());
    let next = |tokens: &[u32], sampler: &mut Sampler, chooser: &mut Chooser| {
        sample(sampler, &LOGITS, tokens, chooser).token
    };
    assert_eq!(next(&[7, 3], &mut sampler, &mut chooser), Some(3));
    assert_eq!(next(&[3, 3, 3, 3], &mut sampler, &mut chooser), Some(4));
    assert!(sampler.sees_tokens() && !sampler.adapts());
}
