//! The kernels that choose tokens, through the emulator in several orders of lanes, against the
//! host's.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::launch::{Launch, Sanitizer};
use device::{Choose, Penalties, Sampling, Step, Want};
use device_lower::sampling::{self, Chooser};
use device_testing::Rng;
use ingle_device_metal::kernels::constant;

const SAMPLE: &str = "sampling/sample.metal";
const PENALTIES: &str = "sampling/penalties.metal";
const MASKS: &str = "sampling/masks.metal";
const NO_TOKEN: u32 = u32::MAX;
/// Words of a `Choice` (`step_parts.h`).
const CHOICE: usize = 20;
/// Ways of choosing a token (`step_parts.h`).
const NOTHING: u32 = 0;
const BEST: u32 = 1;
const SAMPLED: u32 = 2;
/// Initial value of words, still there if nothing was written.
const UNTOUCHED: u32 = 0xabcd_ef01;
/// Index of the first word for the step's tokens.
const FIRST_CHOSEN: u32 = 2;

/// A step of `n_outputs` outputs.
fn step(n_outputs: usize) -> [u32; 8] {
    [1, n_outputs as u32, 1, 1, 1, FIRST_CHOSEN, 0, 0]
}

/// The choice of an output.
fn choice(how: u32, params: &Sampling) -> [u32; CHOICE] {
    let nucleus = (f64::from(params.top_p) * 2f64.powi(32)) as u32;
    let nucleus = if params.top_p < 1.0 { nucleus.max(1) } else { 0 };
    let random = (params.random * 2f64.powi(64)) as u64;
    let mut words = [0; CHOICE];
    words[..5].copy_from_slice(&[how, params.top_k as u32, nucleus, random as u32, (random >> 32) as u32]);
    words[9..11].copy_from_slice(&[params.temperature.to_bits(), params.min_p.ln().to_bits()]);
    words
}

/// Everything off.
const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0.5 };

/// A kernel that chooses from the logits of outputs; the places of chosen tokens are before and
/// after them, too.
fn choose(
    file: &'static str,
    function: &str,
    logits: &[Vec<f32>],
    choices: &[[u32; CHOICE]],
    n_threads: usize,
) -> Launch {
    Launch::new(file, function)
        .arguments(&[logits[0].len() as u32, 0, 0, 0])
        .words(1, &step(logits.len()))
        .words(2, &choices.concat())
        .floats(3, &logits.concat())
        .words(4, &vec![UNTOUCHED; FIRST_CHOSEN as usize + logits.len() + 1])
        .grid([logits.len(), 1, 1], n_threads)
}

/// Sample one output.
fn sample(logits: &[f32], params: &Sampling, n_threads: usize) -> Launch {
    choose(SAMPLE, "sample", &[logits.to_vec()], &[choice(SAMPLED, params)], n_threads)
}

/// The token of one output; nothing else was written.
fn token(chosen: &[u32]) -> u32 {
    assert_eq!([chosen[0], chosen[1], chosen[3]], [UNTOUCHED; 3]);
    chosen[FIRST_CHOSEN as usize]
}

/// Token that the host chooses.
fn expected(logits: &[f32], params: &Sampling) -> Option<u32> {
    let want = Want { choose: Choose::Sample(*params), ..Want::default() };
    Chooser::new(logits.len()).choose(logits, &want, &Step::default(), std::iter::empty()).token
}

/// Logits of one of several kinds. They are like a model's, few distinct ones, all equal, or partly
/// NaN. Others are neighbours that a division makes equal, or flat, so that no list has the
/// nucleus.
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

/// The device always chooses the host's token. Its weights are the same floats, and its sums differ
/// by less than 2^-22. No random number of these seeds is that near a boundary.
#[test]
fn tokens_are_the_hosts() {
    let mut rng = Rng::new(5);
    let (mut n_none, mut tokens) = (0, std::collections::BTreeSet::new());
    for n_vocab in [1, 31, 97, 1000, 2049, 5003, 30011] {
        for kind in 0..KINDS {
            let logits = logits(&mut rng, n_vocab, kind);
            let n_cases = if n_vocab > 5000 { 1 } else { 3 };
            for _ in 0..n_cases {
                let mut one_of = |values: [f32; 4]| values[rng.below(4)];
                let params = Sampling {
                    temperature: one_of([0.1, 0.8, 1.0, 3.0]),
                    top_k: one_of([0.0, 2.0, 40.0, 700.0]) as usize,
                    top_p: one_of([0.0, 0.5, 0.95, 1.0]),
                    min_p: one_of([0.0, 0.05, 0.5, 1.0]),
                    random: (rng.bits() >> 11) as f64 / 2f64.powi(53),
                };
                let want = expected(&logits, &params);
                let n_threads = [64, 256, 1024][rng.below(3)];
                let got = token(&sample(&logits, &params, n_threads).run().words(4));
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
    // This random number is at no boundary for any number of equal weights.
    let default = Sampling { random: 0.371_234_5, ..PLAIN };
    for kind in [0, 1, 2, 5] {
        let logits = logits(&mut rng, 3001, kind);
        for params in [
            Sampling { top_k: 1, ..default },
            Sampling { top_k: 511, ..default },
            Sampling { top_k: 1500, ..default },
            Sampling { top_k: 3000, ..default },
            Sampling { top_k: 3001, ..default },
            Sampling { top_k: 9000, ..default },
            Sampling { top_p: 1e-30, ..default },
            Sampling { top_p: 0.999_999_94, ..default },
            Sampling { min_p: 1e-30, ..default },
            Sampling { temperature: 1e-30, ..default },
            Sampling { temperature: 1e30, top_p: 0.7, top_k: 2000, ..default },
            Sampling { temperature: 2.0, min_p: 0.3, top_k: 2000, ..default },
        ] {
            let got = token(&sample(&logits, &params, 512).run().words(4));
            assert_eq!(got, expected(&logits, &params).unwrap(), "kind {kind}, {params:?}");
        }
    }
}

/// The whole range of random numbers chooses every token as often as it weighs, the first with the
/// smallest.
#[test]
fn random_numbers_invert_the_sums() {
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
    let of = |random| token(&sample(&logits, &Sampling { random, ..PLAIN }, 32).run().words(4));
    let chosen: Vec<u32> = (0..16).map(|i| of((f64::from(i) + 0.5) / 16.0)).collect();
    assert_eq!(chosen, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]);
    assert_eq!([0.0, 1.0 - 2f64.powi(-53)].map(of), [0, 3]);
}

/// Each output is chosen as it wants, from its own logits, by one of two kernels; the others leave
/// it alone.
#[test]
fn outputs_of_a_step_are_chosen_each_in_its_way() {
    let mut rng = Rng::new(11);
    let rows: Vec<Vec<f32>> = (0..5).map(|_| logits(&mut rng, 1000, 0)).collect();
    let params = |index: usize| Sampling { random: 0.17 * index as f64, top_k: 9 * index, ..PLAIN };
    let hows = [SAMPLED, BEST, NOTHING, SAMPLED, BEST];
    let choices: Vec<[u32; CHOICE]> =
        hows.iter().enumerate().map(|(i, how)| choice(*how, &params(i))).collect();
    for (file, function, mine) in [(SAMPLE, "sample", SAMPLED), ("argmax.metal", "argmax", BEST)] {
        let launch = choose(file, function, &rows, &choices, 128);
        let launch =
            if mine == BEST { launch.flag(constant::BESTS, false).words(5, &[0; 2]) } else { launch };
        let chosen = launch.run().words(4);
        for (index, (row, how)) in rows.iter().zip(hows).enumerate() {
            let want = match how == mine {
                true if how == BEST => sampling::argmax(row).unwrap(),
                true => expected(row, &params(index)).unwrap(),
                false => UNTOUCHED,
            };
            assert_eq!(chosen[FIRST_CHOSEN as usize + index], want, "output {index} by {function}");
        }
    }
}

/// No token is chosen if the host chooses none, or if an infinite logit leaves no probabilities.
#[test]
fn nothing_to_choose_is_said() {
    let params = Sampling { top_k: 3, top_p: 0.9, ..PLAIN };
    for logits in [vec![f32::NAN; 70], vec![f32::NEG_INFINITY; 3], vec![1.0, f32::INFINITY, 0.0, f32::NAN]] {
        assert_eq!(token(&sample(&logits, &params, 64).run().words(4)), NO_TOKEN);
    }
    let one = [f32::NAN, f32::NEG_INFINITY, -f32::MAX, f32::NAN];
    assert_eq!(token(&sample(&one, &params, 64).run().words(4)), 2);
}

/// Results in the form of a head's: the largest logit of each `n` columns and its column, or no
/// column.
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

/// The largest of the logits, or of a head's results for each `n` of them.
fn largest(logits: &[f32], n: Option<usize>) -> Launch {
    let parts = n.map_or(vec![0; 2], |n| parts(logits, n));
    let cols = n.map_or(logits.len(), |_| parts.len() / 2);
    choose("argmax.metal", "argmax", &[logits.to_vec()], &[choice(BEST, &PLAIN)], 96)
        .arguments(&[cols as u32, 0, 0, 0])
        .flag(constant::BESTS, n.is_some())
        .words(5, &parts)
}

/// The best of a row, and of the parts that a head left of it, is the lowest of equal ones. It is
/// never NaN; there is none if no value is above -infinity.
#[test]
fn the_best_is_the_first_of_the_largest() {
    let mut rng = Rng::new(9);
    for n_vocab in [1, 33, 1000, 5003] {
        for kind in 0..=KINDS {
            let logits = match kind {
                KINDS => vec![[f32::NEG_INFINITY, f32::NAN][n_vocab % 2]; n_vocab],
                kind => logits(&mut rng, n_vocab, kind),
            };
            let want = sampling::argmax(&logits).unwrap_or(NO_TOKEN);
            for n in [None, Some(8)] {
                let got = token(&largest(&logits, n).run().words(4));
                assert_eq!(got, want, "{n_vocab} logits of kind {kind}, by parts of {n:?}");
            }
        }
    }
}

/// Bit for bit as the contract defines them, of several outputs, some without; with tokens that
/// earlier steps chose, or did not.
#[test]
fn biases_and_penalties_are_as_defined() {
    let mut rng = Rng::new(7);
    for lens in [[(0, 0), (9, 0), (0, 3)], [(1, 0), (70, 5), (0, 0)], [(300, 9), (40, 1), (600, 600)]] {
        for (repeat, presence, frequency) in [(1.3, 0.0, 0.0), (1.0, 0.5, 0.25), (0.9, -1.0, 0.1)] {
            let n_vocab = 1 + rng.below(90);
            let n_chosen = 7;
            let mut chosen: Vec<u32> = (0..n_chosen).map(|_| rng.below(n_vocab) as u32).collect();
            chosen[3] = NO_TOKEN;
            // Some lists do not begin at the end of the previous list.
            let (mut recent, mut pending) = (vec![u32::MAX; 2], vec![u32::MAX; 3]);
            let (mut choices, mut biases) = (vec![], vec![0; 2]);
            let rows: Vec<Vec<f32>> = lens.iter().map(|_| logits(&mut rng, n_vocab, 3)).collect();
            let mut want = vec![];
            for ((n_recent, n_pending), row) in lens.iter().zip(&rows) {
                let tokens: Vec<u32> = (0..*n_recent).map(|_| rng.below(n_vocab) as u32).collect();
                let places: Vec<u32> = (0..*n_pending).map(|_| rng.below(n_chosen) as u32).collect();
                let mut words = choice(BEST, &PLAIN);
                words[5..9].copy_from_slice(&[
                    recent.len() as u32,
                    *n_recent,
                    pending.len() as u32,
                    *n_pending,
                ]);
                words[11..14].copy_from_slice(&[repeat, presence, frequency].map(f32::to_bits));
                // Some tokens have biases too, and some of them two.
                let n_biases = rng.below(3) * rng.below(n_vocab + 3);
                words[15..17].copy_from_slice(&[biases.len() as u32 / 2, n_biases as u32]);
                choices.push(words);
                let mut row = row.clone();
                for _ in 0..n_biases {
                    let (token, value) = (rng.below(n_vocab), rng.below(9) as f32 - 4.0);
                    row[token] += value;
                    biases.extend([token as u32, value.to_bits()]);
                }
                let known = places.iter().map(|place| chosen[*place as usize]).filter(|t| *t != NO_TOKEN);
                want.extend(penalised(&row, Penalties { repeat, presence, frequency }, &tokens, known));
                recent.extend(tokens);
                pending.extend(places);
            }
            let n_items = choices.iter().map(|words| words[6] + words[8] + words[16]).max().unwrap();
            let n_groups = n_items.div_ceil(256).max(1) as usize;
            let got = Launch::new(PENALTIES, "penalties")
                .arguments(&[n_vocab as u32, 0, 0, 0])
                .words(1, &step(rows.len()))
                .words(2, &choices.concat())
                .floats(3, &rows.concat())
                .words(4, &recent)
                .words(5, &pending)
                .words(6, &chosen)
                .words(7, &biases)
                .grid([n_groups, rows.len(), 1], 256)
                .run()
                .words(3);
            assert_eq!(got, want, "{lens:?}, penalties {repeat}, {presence}, {frequency}");
        }
    }
}

/// Minus infinity where a bit is 0, of outputs with a mask; the others stay, and so do the bits
/// after the vocabulary.
#[test]
fn masks_are_as_defined() {
    let mut rng = Rng::new(11);
    for n_vocab in [1, 32, 77, 1000] {
        let rows: Vec<Vec<f32>> = (0..3).map(|_| logits(&mut rng, n_vocab, 0)).collect();
        let n_words = n_vocab.div_ceil(32);
        let words: Vec<u32> = (0..2 * n_words + 1).map(|_| rng.bits() as u32).collect();
        let starts = [None, Some(1), Some(1 + n_words)];
        let choices = starts.map(|start| {
            let mut words = choice(BEST, &PLAIN);
            words[17] = start.map_or(0, |start| 1 + start as u32);
            words
        });
        let allows = |start: usize, token: usize| words[start + token / 32] >> (token % 32) & 1 == 1;
        let want: Vec<u32> = starts
            .iter()
            .zip(&rows)
            .flat_map(|(start, row)| {
                row.iter().enumerate().map(|(token, logit)| match start {
                    Some(start) if !allows(*start, token) => f32::NEG_INFINITY.to_bits(),
                    Some(_) | None => logit.to_bits(),
                })
            })
            .collect();
        let got = Launch::new(MASKS, "masks")
            .arguments(&[n_vocab as u32, 0, 0, 0])
            .words(1, &step(rows.len()))
            .words(2, &choices.concat())
            .floats(3, &rows.concat())
            .words(4, &words)
            .grid([2, rows.len(), 1], 64)
            .run()
            .words(3);
        assert_eq!(got, want, "{n_vocab}");
    }
}

/// The bits of logits after penalties, as `device::Penalties` defines them.
fn penalised(
    logits: &[f32],
    penalties: Penalties,
    recent: &[u32],
    pending: impl Iterator<Item = u32> + Clone,
) -> Vec<u32> {
    let mut counts = vec![0u32; logits.len()];
    recent.iter().copied().chain(pending).for_each(|token| counts[token as usize] += 1);
    let Penalties { repeat, presence, frequency } = penalties;
    let changed = logits.iter().zip(counts).map(|(logit, count)| match count {
        0 => *logit,
        n => (if *logit > 0.0 { logit / repeat } else { logit * repeat }) - (presence + frequency * n as f32),
    });
    changed.map(f32::to_bits).collect()
}

#[test]
fn sanitizers_find_nothing() {
    let logits = logits(&mut Rng::new(8), 700, 0);
    let params = Sampling { top_k: 50, top_p: 0.9, ..PLAIN };
    let want = expected(&logits, &params).unwrap();
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        let out = sample(&logits, &params, 128).sanitize_file(sanitizer);
        assert_eq!(token(&out.words(4)), want);
        let best = largest(&logits, Some(4)).sanitize_file(sanitizer);
        assert_eq!(token(&best.words(4)), sampling::argmax(&logits).unwrap());
        let mut words = choice(BEST, &params);
        words[5..9].copy_from_slice(&[0, 4, 0, 1]);
        Launch::new(PENALTIES, "penalties")
            .arguments(&[9, 0, 0, 0])
            .words(1, &step(1))
            .words(2, &words)
            .floats(3, &logits[..9])
            .words(4, &[1, 2, 1, 8])
            .words(5, &[0])
            .words(6, &[2])
            .words(7, &[0, 0])
            .grid([1, 1, 1], 64)
            .sanitize_file(sanitizer);
    }
}
