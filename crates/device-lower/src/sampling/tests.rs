//! Order of candidates; `ingle-engine` tests the whole pipeline by its distributions.

use device::{Sampling, Slice, Stage};

use super::*;

#[test]
fn top_p_over_a_large_flat_vocabulary_sorts_in_chunks() {
    let logits: Vec<f32> = (0..5003).map(|i| ((i * 7919) % 5003) as f32 * 1e-3).collect();
    let mut candidates = Vec::with_capacity(logits.len());
    for p in [0.01, 0.3, 0.6, 0.99, 0.9999] {
        let sorted = TopK(0).gather(Allowed::all(&logits), &mut candidates);
        TopP(p).apply(&mut Ranking::new(&mut candidates, sorted, Temperature(1.0)));
        let mut weights: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        let goal = f64::from(p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let is_before = |weight: &&f64| {
            sum += **weight;
            sum < goal
        };
        let n = weights.iter().take_while(is_before).count() + 1;
        assert!(candidates.len().abs_diff(n) <= 1, "p {p}: {} kept, expected {n}", candidates.len());
        assert!(candidates.is_sorted_by(|a, b| best_first(a, b).is_le()));
    }
}

/// The remaining tokens depend on the temperature, but the order in which they are weighted does
/// not: 1 and 1 + 2^-23 are equal after division.
#[test]
fn the_order_is_that_of_the_logits() {
    let logits = [0.0, 1.0, 1.0 + f32::EPSILON, -0.0];
    let mut candidates = Vec::with_capacity(4);
    let sorted = TopK(0).gather(Allowed::all(&logits), &mut candidates);
    let mut ranking = Ranking::new(&mut candidates, sorted, Temperature(1e30));
    let mut ids = Vec::new();
    for n in 1..=4 {
        let place = ranking.first(|sum| sum > f64::from(n) - 0.5).unwrap();
        ids.push(ranking.id(place));
    }
    assert_eq!(ids, [2, 1, 0, 3]);
}

/// Ids that a stage leaves, in order, by its definition.
fn left(stage: Stage, logits: &[f32]) -> Vec<u32> {
    let mut candidates = Vec::with_capacity(logits.len());
    Chain::run(&[stage], Allowed::all(logits), &mut candidates);
    let mut ids: Vec<u32> = candidates.iter().map(|candidate| candidate.id).collect();
    ids.sort_unstable();
    ids
}

/// Logarithms of probabilities that sum to 1.
fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() + 3.0).collect()
}

#[test]
fn stages_leave_the_defined_tokens() {
    // Entropy is 1.92 bits; surprises are 1.74, 1.32, 2.32, 3.32 and 4.32 bits.
    let logits = logits_of(&[0.3, 0.4, 0.2, 0.05, 0.05]);
    let xtc = |threshold, random| Stage::Xtc { probability: 0.5, threshold, random };
    let cases: [(Stage, &[u32]); 19] = [
        (Stage::TopK(2), &[0, 1]),
        (Stage::TopK(0), &[0, 1, 2, 3, 4]),
        (Stage::TopP(0.65), &[0, 1]),
        (Stage::TopP(0.0), &[1]),
        (Stage::MinP(0.45), &[0, 1, 2]),
        // The surprise of 0 is the nearest to the entropy, then that of 2, then that of 1.
        (Stage::Typical(0.2), &[0]),
        (Stage::Typical(0.45), &[0, 2]),
        (Stage::Typical(0.6), &[0, 1, 2]),
        // The deviation of the logits is 0.87.
        (Stage::TopNSigma(1.0), &[0, 1, 2]),
        (Stage::TopNSigma(0.1), &[1]),
        (xtc(0.15, 0.4), &[2, 3, 4]),
        (xtc(0.15, 0.6), &[0, 1, 2, 3, 4]),
        (xtc(0.35, 0.4), &[0, 1, 2, 3, 4]),
        (xtc(0.9, 0.4), &[0, 1, 2, 3, 4]),
        (Stage::MostSurprise { mu: 2.0 }, &[0, 1]),
        (Stage::MostSurprise { mu: -1.0 }, &[1]),
        (Stage::Temperature(0.0), &[1]),
        (Stage::Temperature(0.5), &[0, 1, 2, 3, 4]),
        (Stage::Dynamic { low: 0.0, high: 0.0, exponent: 1.0 }, &[1]),
    ];
    for (stage, expected) in cases {
        assert_eq!(left(stage, &logits), expected, "{stage:?}");
    }
}

/// With exponent 2, the estimate recovers it, and the number follows from the formula.
#[test]
fn mirostat_keeps_what_zipf_says() {
    let logits: Vec<f32> = (1..=1000).map(|rank| -2.0 * (rank as f32).ln()).collect();
    let n = ((1.0 * 8f64.exp2()) / (1.0 - 1000f64.powf(-1.0))).powf(0.5) as usize;
    assert_eq!(left(Stage::MirostatTopK { mu: 8.0 }, &logits).len(), n);
    assert_eq!(left(Stage::MirostatTopK { mu: -90.0 }, &logits), [0]);
}

#[test]
fn a_chain_picks_among_the_remaining_tokens() {
    let logits = logits_of(&[0.3, 0.4, 0.2, 0.05, 0.05]);
    let mut candidates = Vec::with_capacity(5);
    let mut pick =
        |stages: &[Stage], random| Chain::run(stages, Allowed::all(&logits), &mut candidates).pick(random);
    // 0.4 and 0.3 become 0.64 and 0.36 after a temperature that squares them.
    let stages = [Stage::TopK(2), Stage::Temperature(0.5)];
    let (token, surprise) = pick(&stages, 0.63).unwrap();
    assert_eq!(token, 1);
    assert!((surprise - 0.644).abs() < 1e-3, "{surprise}");
    assert_eq!(pick(&stages, 0.65).unwrap().0, 0);
    // After the stage, the order of the two does not matter; before it, the threshold meets other
    // numbers.
    assert_eq!(pick(&[Stage::Temperature(0.5), Stage::TopP(0.5)], 0.9).unwrap().0, 1);
    // A flat distribution gets the high temperature, a sharp one the low.
    let dynamic = Stage::Dynamic { low: 0.1, high: 1.0, exponent: 1.0 };
    assert_eq!(pick(&[dynamic], 0.99).unwrap().0, 4);
    let sharp = logits_of(&[0.996, 0.001, 0.001, 0.001, 0.001]);
    let mut candidates = Vec::with_capacity(5);
    assert_eq!(Chain::run(&[dynamic], Allowed::all(&sharp), &mut candidates).pick(0.999_9).unwrap().0, 0);
    assert_eq!(
        Chain::run(&[], Allowed::all(&[f32::NAN, f32::NEG_INFINITY]), &mut candidates).pick(0.5),
        None
    );
}

/// The probabilities of drawn tokens sum to 1 over the remaining tokens, for every way to draw.
#[test]
fn drawn_probabilities_are_over_the_remaining_tokens() {
    let logits = logits_of(&[0.3, 0.4, 0.2, 0.05, 0.05]);
    let stages = [Stage::TopK(3), Stage::Temperature(0.5)];
    let all = Slice { start: 0, len: 2 };
    let chosen = [
        Choose::Sample(Sampling { temperature: 0.5, top_k: 3, top_p: 1.0, min_p: 0.0, random: 0.5 }),
        Choose::Chain(device::Chain { stages: all, random: 0.5 }),
    ];
    // Squares of 0.4, 0.3 and 0.2, divided by their sum.
    let expected = [(1, 0.16 / 0.29), (0, 0.09 / 0.29), (2, 0.04 / 0.29_f64)];
    let step = Step { stages: &stages, ..Step::default() };
    let mut chooser = Chooser::new(5);
    for choose in chosen {
        let want = Want { choose, drawn: true, logprob: true, n_best: 5, ..Want::default() };
        let token = chooser.choose(&logits, &want, &step, std::iter::empty());
        let best: Vec<(u32, f32)> = chooser.best(&logits, &want).collect();
        assert_eq!(best.len(), 3);
        for ((id, logprob), (expected, probability)) in best.iter().zip(expected) {
            assert!(*id == expected && (f64::from(logprob.exp()) - probability).abs() < 1e-4, "{best:?}");
        }
        assert_eq!(token.token, Some(1));
        assert!((token.logprob - best[0].1).abs() < 1e-4, "{token:?}");
        // The model's own probabilities, of all tokens.
        let own = Want { drawn: false, ..want };
        let token = chooser.choose(&logits, &own, &step, std::iter::empty());
        assert!((token.logprob.exp() - 0.4).abs() < 1e-4, "{token:?}");
        assert_eq!(chooser.best(&logits, &own).count(), 5);
    }
    let want = Want { drawn: true, n_best: 2, ..Want::BEST };
    assert_eq!(chooser.choose(&logits, &want, &step, std::iter::empty()).token, Some(1));
    assert_eq!(chooser.best(&logits, &want).collect::<Vec<_>>(), [(1, 0.0)]);
}
