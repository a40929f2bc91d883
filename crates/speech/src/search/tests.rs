//! Searches with a model that is a function of the tokens so far, compared with an exhaustive
//! search.

use super::*;
use crate::options::TranscribeOptions;
use crate::rules::tests::tokens;

/// Size of the vocabulary: text is 0 to 9 and 10 is the end; other tokens are never probable.
const N_VOCAB: usize = 12;

/// A model whose logits are a hash of the tokens.
struct Drawn {
    beams: Vec<Vec<u32>>,
    logits: Vec<f32>,
    n_steps: usize,
}

/// The logits after tokens, the same in each call.
fn row(tokens: &[u32]) -> Vec<f32> {
    let seed =
        tokens.iter().fold(99u64, |seed, token| seed.wrapping_mul(31).wrapping_add(u64::from(*token) + 1));
    let mut rng = Rng::new(seed);
    let mut row: Vec<f32> = (0..N_VOCAB).map(|_| 6.0 * rng.uniform() as f32).collect();
    row[10] += tokens.len() as f32 - 2.0; // the longer, the likelier it ends
    row[11] = f32::NEG_INFINITY;
    row
}

impl Drawn {
    fn new() -> Drawn {
        Drawn { beams: vec![vec![]], logits: row(&[]), n_steps: 0 }
    }
}

impl Beams for Drawn {
    fn logits(&mut self) -> &mut [f32] {
        &mut self.logits
    }

    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<()> {
        self.n_steps += 1;
        let grown = |(parent, token): (&usize, &u32)| [&self.beams[*parent][..], &[*token]].concat();
        self.beams = parents.iter().zip(tokens).map(grown).collect();
        self.logits = self.beams.iter().flat_map(|tokens| row(tokens)).collect();
        Ok(())
    }
}

fn rules() -> Rules {
    let options =
        TranscribeOptions { timestamps: false, suppress_non_speech: false, ..TranscribeOptions::default() };
    Rules::new(&tokens(), 0, N_VOCAB, &options)
}

fn bounds(max_tokens: usize, length_penalty: f32) -> Bounds {
    Bounds { n_vocab: N_VOCAB, max_tokens, length_penalty }
}

/// Collects every hypothesis of up to `max_tokens` steps, including the end.
fn all(rules: &Rules, max_tokens: usize, so_far: Hypothesis, out: &mut Vec<Hypothesis>) {
    let mut logits = row(&so_far.tokens);
    let scored = rules.score(&so_far.tokens, &mut logits);
    for token in 0..=10u32 {
        let log_prob = so_far.log_prob + logits[token as usize] - scored.normaliser;
        if log_prob == f32::NEG_INFINITY {
            continue;
        }
        let mut grown = Hypothesis { log_prob, ..so_far.clone() };
        if token != rules.eot() {
            grown.tokens.push(token);
        }
        if token == rules.eot() || grown.tokens.len() == max_tokens {
            out.push(grown);
        } else {
            all(rules, max_tokens, grown, out);
        }
    }
}

#[test]
fn enough_beams_find_the_best_of_all() {
    for length_penalty in [0.0, 1.0] {
        let rules = rules();
        let mut hypotheses = Vec::new();
        all(&rules, 3, Hypothesis::default(), &mut hypotheses);
        let exact = best_of(hypotheses, length_penalty).unwrap();
        let mut model = Drawn::new();
        let found = beam_search(&mut model, &rules, 1100, 1.0, &bounds(3, length_penalty)).unwrap().unwrap();
        assert_eq!(found.tokens, exact.tokens);
        assert!((found.log_prob - exact.log_prob).abs() < 1e-5);
    }
}

#[test]
fn one_beam_is_greedy() {
    let rules = rules();
    let mut tokens = Vec::new();
    let mut log_prob = 0.0;
    loop {
        let mut logits = row(&tokens);
        let scored = rules.score(&tokens, &mut logits);
        let best = (0..N_VOCAB).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        log_prob += logits[best] - scored.normaliser;
        if best == 10 {
            break;
        }
        tokens.push(best as u32);
    }
    let found = beam_search(&mut Drawn::new(), &rules, 1, 1.0, &bounds(20, 1.0)).unwrap().unwrap();
    assert_eq!(found.tokens, tokens);
    assert!((found.log_prob - log_prob).abs() < 1e-5);
    assert!((found.mean_log_prob() - log_prob / (tokens.len() + 1) as f32).abs() < 1e-6);
}

#[test]
fn patience_searches_longer() {
    let steps = |patience| {
        let mut model = Drawn::new();
        let found = beam_search(&mut model, &rules(), 4, patience, &bounds(40, 1.0)).unwrap().unwrap();
        (model.n_steps, found.score(1.0))
    };
    let (short, long) = (steps(1.0), steps(4.0));
    assert!(short.0 < long.0 && short.1 <= long.1, "{short:?} {long:?}");
}

#[test]
fn a_hypothesis_that_never_ends_is_cut() {
    let found = beam_search(&mut Drawn::new(), &rules(), 5, 1.0, &bounds(1, 1.0)).unwrap().unwrap();
    assert!(found.tokens.len() <= 1);
}

#[test]
fn samples_follow_the_probabilities_and_the_seed() {
    let rules = rules();
    let run = |seed| {
        let mut rng = Rng::new(seed);
        sample(&mut Drawn::new(), &rules, 5, 0.8, &mut rng, &bounds(30, 1.0)).unwrap().unwrap()
    };
    assert_eq!(run(3), run(3));
    assert!((0..9).any(|seed| run(seed) != run(seed + 1)));
    // At temperature 1 the frequency of a token is its probability.
    let mut logits = row(&[]);
    let scored = rules.score(&[], &mut logits);
    let (mut rng, mut weights, mut counts) = (Rng::new(1), Vec::new(), [0u32; N_VOCAB]);
    for _ in 0..20_000 {
        counts[pick(&logits, &scored.ids, 1.0, &mut rng, &mut weights).unwrap() as usize] += 1;
    }
    for (count, logit) in counts.iter().zip(&logits) {
        let p = f64::from(logit - scored.normaliser).exp();
        // Five standard deviations.
        let bound = 5.0 * (p * (1.0 - p) * 20_000.0).sqrt() + 1e-9;
        assert!((f64::from(*count) - p * 20_000.0).abs() <= bound, "{count} for {p}");
    }
}

#[test]
fn no_numbers_give_no_hypothesis() {
    struct Broken(Vec<f32>);
    impl Beams for Broken {
        fn logits(&mut self) -> &mut [f32] {
            &mut self.0
        }
        fn advance(&mut self, _: &[usize], _: &[u32]) -> Result<()> {
            Ok(())
        }
    }
    for value in [f32::NAN, f32::NEG_INFINITY] {
        let mut model = Broken(vec![value; N_VOCAB]);
        assert_eq!(beam_search(&mut model, &rules(), 5, 1.0, &bounds(9, 1.0)).unwrap(), None);
        let mut rng = Rng::new(1);
        assert_eq!(sample(&mut model, &rules(), 5, 0.5, &mut rng, &bounds(9, 1.0)).unwrap(), None);
    }
}
