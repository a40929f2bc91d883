//! The kernels that choose tokens, through the emulator in several orders of lanes, against the engine's sampler.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::launch::{Launch, Outcome, Sanitizer};
use device::testing::Rng;
use engine::sampling::{Sampler, SamplingParams, Scratch};
use ingle_device_metal::kernels::constant;

const SAMPLE: &str = "sampling/sample.metal";
const PENALTIES: &str = "sampling/penalties.metal";
const NO_TOKEN: u32 = u32::MAX;

/// The step buffer of a chain.
fn step(n_chained: u32, n_recent: u32) -> [u32; 8] {
    [1, 1, 1, 1, 1, n_chained, n_recent, 0]
}

/// Sampling.
fn arguments(n_vocab: usize, window: usize, params: &SamplingParams) -> [u32; 12] {
    let nucleus = (f64::from(params.top_p) * 2f64.powi(32)) as u32;
    let nucleus = if params.top_p < 1.0 { nucleus.max(1) } else { 0 };
    let floats = [
        params.temperature,
        params.min_p.ln(),
        params.repeat_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    ];
    let mut words = [0; 12];
    words[..4].copy_from_slice(&[n_vocab as u32, params.top_k as u32, nucleus, window as u32]);
    words[4..9].copy_from_slice(&floats.map(f32::to_bits));
    words
}

/// Choose with the random number `u`, the last of three steps of a chain.
fn sample(logits: &[f32], params: &SamplingParams, u: f64, n_threads: usize) -> Launch {
    let random = (u * 2f64.powi(64)) as u64;
    Launch::new(SAMPLE, "sample")
        .words(1, &step(2, 0))
        .words(2, &arguments(logits.len(), 0, params))
        .floats(3, logits)
        .words(4, &[7, 7, 7, 7, random as u32, (random >> 32) as u32])
        .words(5, &[123_456_789])
        .words(6, &[LAST])
        .words(7, &[40])
        .words(8, &[0, 1, 40, 0])
        .words(9, &[UNTOUCHED; 4])
        .words(10, &[UNTOUCHED; 4])
        .grid([1, 1, 1], n_threads)
}

/// The token of the step that is done.
const LAST: u32 = 11;
/// Where nothing was written.
const UNTOUCHED: u32 = 0xabcd_ef01;

/// That the token became the next step's, the third of the chain; the kernel's buffers for that begin at `first`.
fn check_advance(outcome: &Outcome, first: u32, token: u32) {
    let next = if token == NO_TOKEN { LAST } else { token };
    assert_eq!(outcome.words(1)[5], 3, "n_chained");
    assert_eq!(outcome.words(first), [next], "token");
    assert_eq!(outcome.words(first + 1), [41], "position");
    assert_eq!(outcome.words(first + 2), [0, 1, 41, 0], "span");
    assert_eq!(outcome.words(first + 3), [UNTOUCHED, UNTOUCHED, token, UNTOUCHED], "chosen");
    assert_eq!(outcome.words(first + 4), [UNTOUCHED, UNTOUCHED, next, UNTOUCHED], "recent");
}

/// What the sampler chooses, and the random number that it used.
fn expected(logits: &[f32], params: &SamplingParams) -> (Option<u32>, f64) {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut scratch = Scratch::new(logits.len());
    let u = sampler.ahead(&[], &mut scratch).unwrap().randoms[0];
    let choice = sampler.sample(&mut logits.to_vec(), &[], &mut scratch);
    (choice.ok().map(|choice| choice.id), u)
}

/// Logits of one of several kinds: as a model has them; few distinct ones; all equal; with some that are none; neighbours that
/// a division makes equal; flat, so that no list has the nucleus.
fn logits(rng: &mut Rng, n: usize, kind: usize) -> Vec<f32> {
    let uniform = |rng: &mut Rng| (rng.bits() >> 40) as f32 / (1u64 << 24) as f32;
    (0..n)
        .map(|id| match kind {
            0 => (0..4).map(|_| uniform(rng)).sum::<f32>() * 8.0 - 20.0,
            1 => rng.below(7) as f32 - 3.0,
            2 => -1.5,
            3 => match rng.below(4) {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 if id % 2 == 0 => -0.0,
                2 => 0.0,
                _ => uniform(rng) * 3.0,
            },
            4 => f32::from_bits(3.0f32.to_bits() + rng.below(40) as u32),
            _ => uniform(rng) * 0.5,
        })
        .collect()
}

const KINDS: usize = 6;

/// The same token, always: weights are the same floats here, and no random number of these seeds lies within 2^-22 of a boundary,
/// by which the sums differ.
#[test]
fn tokens_are_the_samplers() {
    let mut rng = Rng::new(5);
    let (mut n_none, mut tokens) = (0, std::collections::BTreeSet::new());
    for n_vocab in [1, 31, 97, 1000, 2049, 5003, 30011] {
        for kind in 0..KINDS {
            let logits = logits(&mut rng, n_vocab, kind);
            let n_cases = if n_vocab > 5000 { 1 } else { 3 };
            for _ in 0..n_cases {
                let mut one_of = |values: [f32; 4]| values[rng.below(4)];
                let params = SamplingParams {
                    temperature: one_of([0.1, 0.8, 1.0, 3.0]),
                    top_k: one_of([0.0, 2.0, 40.0, 700.0]) as usize,
                    top_p: one_of([0.0, 0.5, 0.95, 1.0]),
                    min_p: one_of([0.0, 0.05, 0.5, 1.0]),
                    seed: Some(rng.bits()),
                    ..SamplingParams::default()
                };
                let (want, u) = expected(&logits, &params);
                let n_threads = [64, 256, 1024][rng.below(3)];
                let outcome = sample(&logits, &params, u, n_threads).run();
                let got = outcome.words(5)[0];
                check_advance(&outcome, 6, got);
                assert_eq!(
                    got,
                    want.unwrap_or(NO_TOKEN),
                    "{n_vocab} logits of kind {kind}, {n_threads} threads, {params:?}"
                );
                n_none += usize::from(want.is_none());
                tokens.insert(got);
            }
        }
    }
    assert!(tokens.len() > 30 && n_none < 5, "{} tokens, {n_none} of none", tokens.len());
}

/// Each stage alone, at its edges, where the list ends, and where equals are cut.
#[test]
fn stages_at_their_edges() {
    let mut rng = Rng::new(6);
    let default = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    for kind in [0, 1, 2, 5] {
        let logits = logits(&mut rng, 3001, kind);
        for params in [
            SamplingParams { top_k: 1, ..default.clone() },
            SamplingParams { top_k: 511, ..default.clone() },
            SamplingParams { top_k: 1500, ..default.clone() },
            SamplingParams { top_k: 3000, ..default.clone() },
            SamplingParams { top_k: 3001, ..default.clone() },
            SamplingParams { top_k: 9000, ..default.clone() },
            SamplingParams { top_p: 1e-30, ..default.clone() },
            SamplingParams { top_p: 0.999_999_94, ..default.clone() },
            SamplingParams { min_p: 1e-30, ..default.clone() },
            SamplingParams { temperature: 1e-30, ..default.clone() },
            SamplingParams { temperature: 1e30, top_p: 0.7, top_k: 2000, ..default.clone() },
            SamplingParams { temperature: 2.0, min_p: 0.3, top_k: 2000, ..default.clone() },
        ] {
            let (want, u) = expected(&logits, &params);
            let got = sample(&logits, &params, u, 512).run().words(5)[0];
            assert_eq!(got, want.unwrap(), "kind {kind}, {params:?}");
        }
    }
}

/// The whole range of random numbers chooses every token as often as it weighs, the first with the smallest.
#[test]
fn random_numbers_invert_the_sums() {
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
    let params = SamplingParams::default();
    let chosen: Vec<u32> = (0..16)
        .map(|i| sample(&logits, &params, (f64::from(i) + 0.5) / 16.0, 32).run().words(5)[0])
        .collect();
    assert_eq!(chosen, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]);
    let largest = 1.0 - 2f64.powi(-53);
    assert_eq!([0.0, largest].map(|u| sample(&logits, &params, u, 32).run().words(5)[0]), [0, 3]);
}

/// No token where the sampler has none, or where an infinity leaves no probabilities.
#[test]
fn nothing_to_choose_is_said() {
    let params = SamplingParams { top_k: 3, top_p: 0.9, ..SamplingParams::default() };
    for logits in [vec![f32::NAN; 70], vec![f32::NEG_INFINITY; 3], vec![1.0, f32::INFINITY, 0.0, f32::NAN]] {
        let outcome = sample(&logits, &params, 0.5, 64).run();
        assert_eq!(outcome.words(5), [NO_TOKEN]);
        check_advance(&outcome, 6, NO_TOKEN);
    }
    let one = [f32::NAN, f32::NEG_INFINITY, -f32::MAX, f32::NAN];
    assert_eq!(sample(&one, &params, 0.5, 64).run().words(5), [2]);
}

/// As a head leaves them: of each `n` columns the largest and which it is, where there is none no column.
fn parts(logits: &[f32], n: usize) -> Vec<u32> {
    let part = |(index, part): (usize, &[f32])| {
        let numbers = part.iter().enumerate().filter(|(_, v)| !v.is_nan());
        let best = numbers.fold((-f32::MAX, NO_TOKEN), |(most, at), (i, v)| match *v > most {
            true => (*v, (index * n + i) as u32),
            false => (most, at),
        });
        [best.0.to_bits(), best.1]
    };
    logits.chunks(n).enumerate().flat_map(part).collect()
}

/// The first of the largest; 0 where there is none.
fn first_largest(logits: &[f32]) -> u32 {
    let best = |best: (f32, usize), (i, v): (usize, &f32)| if *v > best.0 { (*v, i) } else { best };
    logits.iter().enumerate().fold((f32::NEG_INFINITY, 0), best).1 as u32
}

/// The best of what a head left, the last of three steps of a chain.
fn largest(parts: &[u32]) -> Launch {
    Launch::new("argmax.metal", "argmax")
        .flag(constant::BESTS, true)
        .flag(constant::CHAINED, true)
        .arguments(&[parts.len() as u32 / 2, 0, 0, 0])
        .words(1, &step(2, 0))
        .words(3, &[123_456_789])
        .words(4, parts)
        .words(5, &[LAST])
        .words(6, &[40])
        .words(7, &[0, 1, 40, 0])
        .words(8, &[UNTOUCHED; 4])
        .words(9, &[UNTOUCHED; 4])
        .grid([1, 1, 1], 96)
}

/// Of the row, and of what a head left of it: the lowest of equals, never NaN, the first where nothing is more than -infinity.
#[test]
fn the_best_is_the_first_of_the_largest() {
    let mut rng = Rng::new(9);
    for n_vocab in [1, 33, 1000, 5003] {
        for kind in 0..=KINDS {
            let logits = match kind {
                KINDS => vec![[f32::NEG_INFINITY, f32::NAN][n_vocab % 2]; n_vocab],
                kind => logits(&mut rng, n_vocab, kind),
            };
            let want = first_largest(&logits);
            let outcome = largest(&parts(&logits, 8)).run();
            assert_eq!(outcome.words(3), [want], "{n_vocab} logits of kind {kind}, by parts");
            check_advance(&outcome, 5, want);
            let row = Launch::new("argmax.metal", "argmax")
                .flag(constant::BESTS, false)
                .flag(constant::CHAINED, false)
                .arguments(&[n_vocab as u32, 0, 0, 0])
                .words(1, &step(2, 0))
                .floats(2, &logits)
                .words(3, &[123_456_789])
                .grid([1, 1, 1], 96);
            assert_eq!(row.run().words(3), [want], "{n_vocab} logits of kind {kind}");
        }
    }
}

/// Bit for bit what the sampler's penalties give, with the tokens that the chain has added.
#[test]
fn penalties_are_the_samplers() {
    let mut rng = Rng::new(7);
    for (n_recent, n_chained, window) in
        [(0, 0, 9), (0, 3, 64), (1, 0, 64), (70, 5, 64), (300, 9, 1000), (40, 1, 1)]
    {
        for (repeat_penalty, presence_penalty, frequency_penalty) in
            [(1.3, 0.0, 0.0), (1.0, 0.5, 0.25), (0.9, -1.0, 0.1)]
        {
            let n_vocab = 1 + rng.below(90);
            let tokens: Vec<u32> = (0..n_recent + n_chained).map(|_| rng.below(n_vocab) as u32).collect();
            let before = logits(&mut rng, n_vocab, 3);
            let params = SamplingParams {
                repeat_penalty,
                presence_penalty,
                frequency_penalty,
                penalty_window: window,
                temperature: 0.0,
                ..SamplingParams::default()
            };
            let mut want = before.clone();
            // An error where no logit is one: the penalties are done before.
            let _ = Sampler::new(&params, n_vocab).unwrap().sample(
                &mut want,
                &tokens,
                &mut Scratch::new(n_vocab),
            );
            // What is bound has room for more tokens.
            let recent = [&tokens[..], &[u32::MAX; 5]].concat();
            let got = Launch::new(PENALTIES, "penalties")
                .words(1, &step(n_chained as u32, n_recent as u32))
                .words(2, &arguments(n_vocab, window, &params))
                .words(3, &recent)
                .floats(4, &before)
                .grid([window.div_ceil(256), 1, 1], 256)
                .run()
                .words(4);
            let want: Vec<u32> = want.iter().map(|l| l.to_bits()).collect();
            assert_eq!(got, want, "{n_recent} + {n_chained} tokens, a window of {window}");
        }
    }
}

#[test]
fn sanitizers_find_nothing() {
    let logits = logits(&mut Rng::new(8), 700, 0);
    let params = SamplingParams { top_k: 50, top_p: 0.9, seed: Some(3), ..SamplingParams::default() };
    let (want, u) = expected(&logits, &params);
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        let out = sample(&logits, &params, u, 128).sanitize_file(sanitizer);
        assert_eq!(out.words(5), [want.unwrap()]);
        let best = largest(&parts(&logits, 4)).sanitize_file(sanitizer);
        assert_eq!(best.words(3), [first_largest(&logits)]);
        Launch::new(PENALTIES, "penalties")
            .words(1, &step(0, 4))
            .words(2, &arguments(9, 4, &params))
            .words(3, &[1, 2, 1, 8])
            .floats(4, &logits[..9])
            .grid([1, 1, 1], 64)
            .sanitize_file(sanitizer);
    }
}
