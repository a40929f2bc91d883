//! Tests of small checkpoints with known answers on the reference interpreter: f32, each row in a
//! fixed order. So nothing that the engine does between prompt and logits may change a bit.
#![allow(clippy::unwrap_used)]

use crate::common;
use std::sync::Arc;

use crate::common::{FAMILIES, all_logits, expected, greedy, options};
use device::{Device, Numerics};
use ingle_engine::*;

fn engine(name: &str, options: &LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(device_reference::Reference::new(1));
    Engine::new(common::model(name), &device, options).unwrap()
}

#[test]
fn logits_agree_with_the_reference_by_every_way_of_prefill() {
    for name in FAMILIES {
        let want = expected(name);
        let mut first: Option<Vec<Vec<f32>>> = None;
        for (chunk, n_outputs) in [(64, 64), (7, 5), (40, 1)] {
            let options = LoadOptions { n_outputs: Some(n_outputs), ..options(64, chunk, 1) };
            let mut engine = engine(name, &options);
            for prefill in [Prefill::Batched, Prefill::PerToken] {
                let logits = all_logits(&mut engine, &want.input, prefill);
                for (position, want) in want.positions.iter().zip(&want.logits) {
                    for (id, want) in want.iter().enumerate() {
                        let got = f64::from(logits[*position][id]);
                        // The answers are printed with 5 decimals, and the two sum in different
                        // orders.
                        assert!(
                            (got - want).abs() < 1e-3,
                            "{name}, position {position}, id {id}: {got}, expected {want}"
                        );
                    }
                }
                let mut last = Vec::new();
                let mut visit = |position, logits: &[f32]| {
                    last.push((position, logits.to_vec()));
                    Ok(())
                };
                engine.evaluate(&want.input, 9, prefill, &mut visit).unwrap();
                assert!(last.iter().map(|(p, _)| *p).eq(31..40));
                assert!(last.iter().all(|(position, row)| row == &logits[*position]));
                // Two ways of the engine itself must agree exactly.
                assert!(
                    first.get_or_insert_with(|| logits.clone()) == &logits,
                    "{name}, {chunk}, {prefill:?}"
                );
            }
        }
    }
}

#[test]
fn greedy_answers_agree_and_reuse_changes_nothing() {
    for name in FAMILIES {
        let want = expected(name);
        let mut engine = engine(name, &options(64, 16, 1));
        let request = || Request {
            sampling: SamplingParams { logprobs: true, ..SamplingParams::greedy() },
            ignore_end: true,
            ..greedy(&want.input, want.greedy.len())
        };
        let first = engine.complete(request()).unwrap();
        assert_eq!(first.tokens, want.greedy, "{name}");
        let again = engine.complete(request()).unwrap();
        assert!(again.finished.timings.reused_tokens > 30, "{name}: {:?}", again.finished.timings);
        assert_eq!((again.tokens, again.logprobs), (first.tokens, first.logprobs), "{name}");
    }
}

#[test]
fn sequences_that_share_steps_get_their_own_answers() {
    for name in FAMILIES {
        let input = expected(name).input;
        let prompts = [&input[..], &input[..17], &input[5..], &input[30..]];
        let mut alone = engine(name, &options(64, 64, 1));
        let want: Vec<Vec<u32>> =
            prompts.iter().map(|p| alone.complete(greedy(p, 9)).unwrap().tokens).collect();
        let mut together = engine(name, &options(64, 24, 3));
        let ids: Vec<SequenceId> = prompts.iter().map(|p| together.add(greedy(p, 9)).unwrap()).collect();
        let mut got = vec![Vec::new(); prompts.len()];
        let mut more = true;
        while more {
            more = together
                .step(&mut |event| {
                    if let Event::Token { sequence, id, .. } = event {
                        got[ids.iter().position(|i| *i == sequence).unwrap()].push(id);
                    }
                })
                .unwrap();
        }
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn the_prefill_check_passes_without_any_tolerance() {
    for name in FAMILIES {
        let exact =
            LoadOptions { numerics: Numerics::Deterministic, n_outputs: Some(3), ..options(64, 13, 1) };
        let check = engine(name, &exact).validate_prefill(&expected(name).input).unwrap();
        assert_eq!((check.rms, check.bound, check.n_positions), (0.0, 0.0, 3), "{name}");
        assert!(check.spread > 0.1);
    }
}

#[test]
fn scores_are_sorted_and_normalised() {
    let want = expected("qwen3");
    let mut engine = engine("qwen3", &LoadOptions { n_outputs: Some(8), ..options(64, 16, 1) });
    let scores = engine.score(&want.input, 160, Prefill::Batched).unwrap();
    assert_eq!(scores.len(), want.input.len());
    for (position, score) in scores.iter().enumerate() {
        assert_eq!(score.position, position);
        assert!(score.top.is_sorted_by(|a, b| a.logit >= b.logit));
        let sum: f64 = score.top.iter().map(|t| t.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        assert_eq!(score.next.map(|n| n.id), want.input.get(position + 1).copied());
    }
    assert_eq!(scores.last().unwrap().top[0].id, want.greedy[0]);
    assert_eq!(engine.score(&want.input, 3, Prefill::PerToken).unwrap()[5].top, scores[5].top[..3]);
    assert!(matches!(
        engine.score(&[1; 65], 1, Prefill::Batched).unwrap_err(),
        Error::TooManyTokens { n_tokens: 65, n_ctx: 64 }
    ));
}

#[test]
fn perplexity_is_the_mean_over_windows() {
    let input = expected("llama").input;
    let mut engine = engine("llama", &LoadOptions { n_outputs: Some(4), ..options(64, 16, 1) });
    let mut windows = 0;
    let got = engine
        .perplexity(&input, Some(1), Some(15), Prefill::Batched, &mut |_, n| windows += (n == 3) as usize)
        .unwrap();
    // The expected value, computed here: windows of 14 tokens after a start token.
    let mut sum = 0.0;
    for chunk in input.chunks(14) {
        let tokens = [&[1], chunk].concat();
        sum -= engine
            .score(&tokens, 0, Prefill::Batched)
            .unwrap()
            .iter()
            .filter_map(|s| s.next)
            .map(|n| n.logprob)
            .sum::<f64>();
    }
    assert_eq!((got.n_tokens, got.n_windows, got.window, windows), (input.len(), 3, 15, 3));
    assert!((got.nll - sum / input.len() as f64).abs() < 1e-9);
    assert!((got.perplexity - got.nll.exp()).abs() < 1e-9);
    let without = engine.perplexity(&input, None, Some(20), Prefill::Batched, &mut |_, _| {}).unwrap();
    assert_eq!((without.n_tokens, without.n_windows), (input.len() - 2, 2));
    let error = engine.perplexity(&input, None, Some(65), Prefill::Batched, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "window is 65, expected a number from 2 to the context length 64");
    assert!(matches!(
        engine.perplexity(&[1], None, None, Prefill::Batched, &mut |_, _| {}).unwrap_err(),
        Error::TooFewTokens { .. }
    ));
}
