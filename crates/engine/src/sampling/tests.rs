//! Distributions and limits of the whole pipeline.

use proptest::prelude::*;

// A trait of proptest has the same name.
use super::Rng;
use super::*;

fn sample_many(params: &SamplingParams, logits: &[f32], tokens: &[u32], n: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut scratch = Scratch::new(logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        let choice = sampler.sample(&mut logits.to_vec(), tokens, &mut scratch).unwrap();
        counts[choice.id as usize] += 1;
    }
    counts
}

/// What the stages mean, written the slow way in f64: probabilities of all tokens.
fn expected(params: &SamplingParams, logits: &[f32], tokens: &[u32]) -> Vec<f64> {
    let mut l: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for &(id, bias) in &params.logit_bias {
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

/// Counts of `n` draws lie within 5 standard deviations of a binomial with the expected probability, and nothing that
/// was cut is ever drawn.
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
        &SamplingParams { logit_bias: vec![(3, f32::NEG_INFINITY), (5, 6.0)], ..seeded.clone() },
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
        logit_bias: vec![(7, 1.0)],
        ..seeded
    };
    check(&all, &LOGITS, &[0, 3, 0, 8]);
}

#[test]
fn top_p_over_a_large_flat_vocabulary_sorts_in_chunks() {
    let logits: Vec<f32> = (0..5003).map(|i| ((i * 7919) % 5003) as f32 * 1e-3).collect();
    let mut candidates = Vec::with_capacity(logits.len());
    for p in [0.01, 0.3, 0.6, 0.99, 0.9999] {
        let sorted = TopK(0).gather(&logits, &mut candidates);
        TopP(p).apply(&mut Ranking::new(&mut candidates, sorted, Temperature(1.0)));
        let params = SamplingParams { top_p: p, ..Default::default() };
        let n = expected(&params, &logits, &[]).iter().filter(|p| **p > 0.0).count();
        assert!(candidates.len().abs_diff(n) <= 1, "p {p}: {} kept, expected {n}", candidates.len());
        assert!(candidates.is_sorted_by(|a, b| best_first(a, b).is_le()));
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_needs_no_random_numbers() {
    let counts = sample_many(&SamplingParams::greedy(), &LOGITS, &[], 10);
    assert_eq!(counts[3], 10);
    let counts = sample_many(&SamplingParams { top_k: 1, ..Default::default() }, &LOGITS, &[], 10);
    assert_eq!(counts[3], 10);
    assert!(Sampler::new(&SamplingParams::greedy(), 9).unwrap().wants_argmax());
    let biased = SamplingParams { logit_bias: vec![(0, 9.0)], ..SamplingParams::greedy() };
    assert!(!Sampler::new(&biased, 9).unwrap().wants_argmax());
    assert_eq!(sample_many(&biased, &LOGITS, &[], 10)[0], 10);
}

#[test]
fn the_seed_decides() {
    let draw = |seed| {
        let params = SamplingParams { seed: Some(seed), ..Default::default() };
        let mut sampler = Sampler::new(&params, LOGITS.len()).unwrap();
        let mut scratch = Scratch::new(LOGITS.len());
        (0..32)
            .map(|_| sampler.sample(&mut LOGITS.to_vec(), &[], &mut scratch).unwrap().id)
            .collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

/// Which tokens are left depends on the temperature, in which order they are weighed does not: 1 and 1 + 2^-23 are equal
/// once they are divided.
#[test]
fn the_order_is_that_of_the_logits() {
    let logits = [0.0, 1.0, 1.0 + f32::EPSILON, -0.0];
    let mut candidates = Vec::with_capacity(4);
    let sorted = TopK(0).gather(&logits, &mut candidates);
    let mut ranking = Ranking::new(&mut candidates, sorted, Temperature(1e30));
    let mut ids = Vec::new();
    for n in 1..=4 {
        let place = ranking.first(|sum| sum > f64::from(n) - 0.5).unwrap();
        ids.push(ranking.id(place));
    }
    assert_eq!(ids, [2, 1, 0, 3]);
}

/// What a device is given: the numbers that the sampler itself would draw, and only those that were used are gone.
#[test]
fn a_device_gets_the_random_numbers_of_the_sampler() {
    let params =
        SamplingParams { seed: Some(5), penalty_window: 2, presence_penalty: 1.0, ..Default::default() };
    let mut sampler = Sampler::new(&params, LOGITS.len()).unwrap();
    let mut scratch = Scratch::new(LOGITS.len());
    let sampling = sampler.ahead(&[1, 2, 3], &mut scratch).unwrap();
    assert_eq!(sampling.penalties.unwrap().recent, [2, 3]);
    let randoms = sampling.randoms.to_vec();
    let mut rng = Rng::new(5);
    assert!(randoms.len() == MOST_AHEAD && randoms.iter().all(|u| *u == rng.uniform()));
    sampler.took_one();
    sampler.took_one();
    assert_eq!(sampler.ahead(&[], &mut scratch).unwrap().randoms[0], randoms[2]);
    let ahead =
        |params: SamplingParams| Sampler::new(&params, 9).unwrap().ahead(&[], &mut Scratch::new(9)).is_some();
    assert!(!ahead(SamplingParams { logprobs: true, ..params.clone() }));
    assert!(!ahead(SamplingParams { logit_bias: vec![(1, 1.0)], ..params.clone() }));
    let mut greedy = Sampler::new(&SamplingParams { top_k: 1, ..params }, 9).unwrap();
    assert_eq!(greedy.ahead(&[], &mut scratch).unwrap().top_k, 1);
    greedy.took_one();
    assert_eq!(greedy.rng.next_u64(), Rng::new(5).next_u64(), "greedy needs no random numbers");
}

#[test]
fn logprobs_are_the_models_own() {
    let params = SamplingParams {
        temperature: 0.3,
        repeat_penalty: 1.5,
        logit_bias: vec![(4, 1.0), (4, 1.0)],
        logprobs: true,
        ..Default::default()
    };
    let mut sampler = Sampler::new(&params, LOGITS.len()).unwrap();
    let mut scratch = Scratch::new(LOGITS.len());
    let normalizer = log_sum_exp(&LOGITS);
    for _ in 0..50 {
        let choice = sampler.sample(&mut LOGITS.to_vec(), &[4, 3], &mut scratch).unwrap();
        let want = f64::from(LOGITS[choice.id as usize]) - normalizer;
        assert!((f64::from(choice.logprob.unwrap()) - want).abs() < 1e-6);
    }
}

#[test]
fn values_outside_their_limits_are_named() {
    let bad = |params: SamplingParams| Sampler::new(&params, 9).unwrap_err();
    let d = SamplingParams::default;
    assert_eq!(
        bad(SamplingParams { temperature: -1.0, ..d() }).to_string(),
        "temperature is -1, expected a finite number, at least 0"
    );
    assert_eq!(
        bad(SamplingParams { top_p: 1.5, ..d() }).to_string(),
        "top_p is 1.5, expected a number from 0 to 1"
    );
    assert_eq!(bad(SamplingParams { min_p: f32::NAN, ..d() }).name, "min_p");
    assert_eq!(bad(SamplingParams { repeat_penalty: 0.0, ..d() }).name, "repeat_penalty");
    assert_eq!(bad(SamplingParams { presence_penalty: f32::INFINITY, ..d() }).name, "presence_penalty");
    assert_eq!(bad(SamplingParams { logit_bias: vec![(9, 0.0)], ..d() }).expected, "token ids below 9");
    assert_eq!(bad(SamplingParams { logit_bias: vec![(1, f32::INFINITY)], ..d() }).name, "logit_bias");
}

#[test]
fn nothing_to_pick_is_an_error_and_not_a_panic() {
    for params in [SamplingParams::default(), SamplingParams::greedy()] {
        let mut sampler = Sampler::new(&params, 3).unwrap();
        let mut scratch = Scratch::new(3);
        let none = [f32::NAN, f32::NEG_INFINITY, f32::NAN];
        let error = sampler.sample(&mut none.to_vec(), &[], &mut scratch).unwrap_err();
        assert!(matches!(error, Error::NoCandidate { n_vocab: 3 }), "{error}");
        // One good logit among them is enough.
        let one = [f32::NAN, -1.0, f32::NEG_INFINITY];
        assert_eq!(sampler.sample(&mut one.to_vec(), &[], &mut scratch).unwrap().id, 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the logits and parameters: the chosen token is one that the slow formula leaves, and buffers never grow.
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
        let mut sampler = Sampler::new(&params, logits.len()).unwrap();
        let mut scratch = Scratch::new(logits.len());
        let capacities = (scratch.candidates.capacity(), scratch.changed.capacity());
        for _ in 0..8 {
            let id = sampler.sample(&mut logits.clone(), &tokens, &mut scratch).unwrap().id;
            // f32 and f64 may cut one token apart at the edge: allow a shade more of everything.
            let wider = SamplingParams {
                top_p: if top_p < 1.0 { (top_p + 1e-5).min(1.0) } else { 1.0 }, min_p: min_p * 0.9999, ..params.clone()
            };
            prop_assert!(expected(&wider, &logits, &tokens)[id as usize] > 0.0);
        }
        prop_assert_eq!(capacities, (scratch.candidates.capacity(), scratch.changed.capacity()));
        prop_assert!(scratch.counts.iter().all(|c| *c == 0));
    }
}
