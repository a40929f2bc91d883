//! The order of candidates; `ingle-engine` tests the whole pipeline by its distributions.

use super::*;

#[test]
fn top_p_over_a_large_flat_vocabulary_sorts_in_chunks() {
    let logits: Vec<f32> = (0..5003).map(|i| ((i * 7919) % 5003) as f32 * 1e-3).collect();
    let mut candidates = Vec::with_capacity(logits.len());
    for p in [0.01, 0.3, 0.6, 0.99, 0.9999] {
        let sorted = TopK(0).gather(&logits, &mut candidates);
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
