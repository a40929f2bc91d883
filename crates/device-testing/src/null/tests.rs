use super::*;
use crate::{AttentionOptions, PlanBuilder, Sequences, limits};
use crate::{BEST_AND_LOGITS, chosen_tokens, committed};
use device::{PAGE_NONE, Span, Step};
use device_lower::fusion;
use weights::BlockType;

const N_VOCAB: usize = 50;

fn program(device: &NullDevice, layers: &[KvLayer]) -> (Plan, Limits, Box<dyn Program>) {
    let plan = plan(N_VOCAB, layers);
    let limits = limits(&plan.kv);
    let program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    (plan, limits, program)
}

/// Runs spans of any shape, and compares every row with the prediction from its sequence's tokens
/// alone.
#[test]
fn output_is_a_function_of_the_tokens() {
    for layers in
        [vec![], vec![layer(None)], vec![layer(Some(20)), layer(None)], vec![layer(Some(1)), layer(Some(3))]]
    {
        let device = NullDevice::default();
        let (plan, limits, mut program) = program(&device, &layers);
        let mut sequences = Sequences::new(9, &plan.kv, &limits, N_VOCAB as u32);
        for spans in
            [&[(0, 5)][..], &[(1, 40), (0, 1)], &[(0, 33), (1, 1), (2, 2)], &[(1, 1), (2, 9), (0, 1)]]
        {
            let step = sequences.step(spans);
            program.run(&step.borrow()).unwrap();
            let mut output = 0;
            for (slot, n_rows) in spans {
                let seen_so_far = sequences.tokens(*slot);
                for end in seen_so_far.len() - n_rows + 1..=seen_so_far.len() {
                    // Without a window of at least 2 there is no state to carry over.
                    let first = if layers.is_empty() { end - 1 } else { 0 };
                    let seen = &seen_so_far[first..end];
                    assert_eq!(
                        chosen_tokens(program.as_ref())[output],
                        next_token(seen, N_VOCAB),
                        "slot {slot} position {end}"
                    );
                    output += 1;
                }
            }
            assert_eq!(output, step.outputs.len());
            let logits = program.logits().chunks(N_VOCAB);
            for (logits, best) in logits.zip(&chosen_tokens(program.as_ref())) {
                let others = logits.iter().enumerate().filter(|(token, _)| *token as u32 != *best);
                assert!(others.into_iter().all(|(_, l)| (-1.0..0.0).contains(l)));
                assert_eq!(logits[*best as usize], BEST_LOGIT);
            }
        }
    }
}

#[test]
fn a_step_in_the_background_is_as_good_as_one_that_is_submitted() {
    crate::check_background(&NullDevice::default()).unwrap();
}

#[test]
fn greedy_follows_the_best_token() {
    let mut tokens = vec![3, 1, 4];
    let expected = greedy(&tokens, 20, N_VOCAB);
    for token in expected {
        assert_eq!(next_token(&tokens, N_VOCAB), token);
        tokens.push(token);
    }
}

fn step<'a>(tokens: &'a [u32], span: &'a [Span], tables: &'a [u32], outputs: &'a [u32]) -> Step<'a> {
    Step {
        tokens,
        spans: span,
        page_tables: tables,
        pages_per_table: 2,
        outputs,
        wants: &[BEST_AND_LOGITS; 8][..outputs.len()],
        ..Step::default()
    }
}

#[test]
fn stale_missing_and_uncopied_pages_show() {
    let device = NullDevice::default().recording().with_fusion(fusion::ALL);
    assert_eq!(device.fusion().len(), fusion::ALL.len());
    let (_, _, mut program) = program(&device, &[layer(None)]);
    device.take_events();
    let span = |first_position, n_rows| [Span { slot: 0, first_row: 0, n_rows, first_position }];
    let mut run = |tokens: &[u32], first: u32, table: &[u32]| {
        let outputs = [tokens.len() as u32 - 1];
        let result = program.run(&step(tokens, &span(first, tokens.len() as u32), table, &outputs));
        result.map(|()| chosen_tokens(program.as_ref())[0]).map_err(|e| e.to_string())
    };
    assert_eq!(run(&[1, 2, 3], 0, &[4, PAGE_NONE]), Ok(next_token(&[1, 2, 3], N_VOCAB)));
    assert!(run(&[9], 3, &[5, PAGE_NONE]).unwrap_err().contains("never written"));
    assert!(run(&[9], 3, &[PAGE_NONE, 4]).unwrap_err().contains("no page"));
    assert!(run(&[N_VOCAB as u32], 0, &[4, 5]).unwrap_err().contains("token 50"));
    program.copy_page(0, 4, 6).unwrap();
    assert!(program.copy_page(0, 4, 600).is_err());
    program.decommit(0, 4..5).unwrap();
    assert!(program.copy_page(0, 4, 7).unwrap_err().to_string().contains("not committed"));
    assert!(program.decommit(0, 4..5).is_err());
    let mut run = |table: &[u32]| {
        program
            .run(&step(&[9], &span(3, 1), table, &[0]))
            .map(|()| chosen_tokens(program.as_ref())[0])
            .map_err(|e| e.to_string())
    };
    assert!(run(&[4, PAGE_NONE]).unwrap_err().contains("page 4, which is not committed,"));
    assert_eq!(run(&[6, PAGE_NONE]), Ok(next_token(&[1, 2, 3, 9], N_VOCAB)));
    program.commit(0, 4..5).unwrap();
    let span = span(3, 1);
    let step = step(&[9], &span, &[4, PAGE_NONE], &[0]);
    assert!(program.run(&step).unwrap_err().to_string().contains("never written"));
    let events = device.take_events();
    // Refused calls are not recorded.
    assert_eq!(events.len(), 7);
    assert_eq!(events[2..4], [Event::CopyPage(0, 4, 6), Event::Decommit(0, 4..5)]);
    assert_eq!(events[5], Event::Commit(0, 4..5));
    assert!(device.take_events().is_empty());
}

/// Links, choices and refusals match a device that computes, with one step and with several in
/// flight.
#[test]
fn steps_keep_the_contract() {
    for n in [1, 4] {
        let device = NullDevice::default().with_steps_in_flight(n);
        crate::check_links(&device).unwrap();
        crate::check_wants(&device).unwrap();
        crate::check_refusals(&device).unwrap();
    }
    for granule in [1, 3, 8, 100] {
        let device = NullDevice::default().with_granule(granule);
        crate::check_commits(&device).unwrap();
        crate::check_shortage(Arc::new(device)).unwrap();
    }
}

#[test]
fn groups_that_disagree_show() {
    let (_, _, mut program) = program(&NullDevice::default(), &[layer(None), layer(Some(32))]);
    let spans = [Span { slot: 0, first_row: 0, n_rows: 2, first_position: 0 }];
    let full = [0, PAGE_NONE];
    program.run(&step(&[1, 2], &spans, &[full, [0, PAGE_NONE]].concat(), &[])).unwrap();
    program.run(&step(&[3, 4], &spans, &[[1, PAGE_NONE], [1, PAGE_NONE]].concat(), &[])).unwrap();
    let spans = [Span { first_position: 2, n_rows: 1, ..spans[0] }];
    let error = program.run(&step(&[5], &spans, &[full, [1, PAGE_NONE]].concat(), &[0])).unwrap_err();
    assert!(error.to_string().contains("another sequence's"), "{error}");
}

/// Encoder states are a function of the input, two slots share their pages, and all states must be
/// written.
#[test]
fn encoder_states_come_before_the_tokens() {
    let layers = [
        KvLayer {
            n_kv_heads: 1,
            head_dim: 16,
            window: None,
            encoder_states: Some(20),
            values_are_keys: false,
        },
        KvLayer { n_kv_heads: 1, head_dim: 16, window: None, encoder_states: None, values_are_keys: false },
    ];
    let mut b = PlanBuilder::new(0, N_VOCAB);
    let ids = layers.map(|layer| b.kv_layer(layer));
    let x = b.input(3, 2);
    let y = b.unfold(x, 3, 2);
    let y = b.linear(y, 16, BlockType::F32, false);
    b.kv_write(y, y, ids[0]);
    let writer = b.finish(y);
    let mut b = PlanBuilder::new(0, N_VOCAB);
    let ids = layers.map(|layer| b.kv_layer(layer));
    let x = b.embed(16);
    b.kv_write(x, x, ids[1]);
    let y = b.attention(x, ids[1], 1, AttentionOptions::default());
    let y = b.cross_attention(y, ids[0], 1);
    b.keep(y);
    let y = b.linear(y, N_VOCAB, BlockType::F32, false);
    let reader = b.finish(y);

    let limits = Limits { n_ctx: 16, ..limits(&reader.kv) };
    let mut program = NullDevice::default().compile(&[writer, reader], &limits).and_then(committed).unwrap();
    let input: Vec<f32> = (0..20 * 2 * 3).map(|i| i as f32).collect();
    let span = |slot, first_row, n_rows| Span { slot, first_row, n_rows, first_position: 0 };
    // Each slot has two pages of the sequence's group, then two of the encoder states'.
    let tables = [5, PAGE_NONE, 8, 9, 6, PAGE_NONE, 8, 9, 7, PAGE_NONE, 9, 8];
    let spans = [span(0, 0, 20)];
    let write = Step { input: &input, ..step(&[0; 20], &spans, &tables, &[]) };
    assert!(program.run(&Step { input: &[], ..write }).unwrap_err().to_string().contains("120"));
    let spans = [span(0, 0, 2), span(1, 2, 1)];
    let read = Step { plan: 1, ..step(&[4, 5, 6], &spans, &tables, &[1, 2]) };
    assert!(program.run(&read).unwrap_err().to_string().contains("never written"));
    program.run(&write).unwrap();
    program.run(&read).unwrap();
    let states = encoder_states(&input);
    let expected = [history_with(states, &[4, 5]), history_with(states, &[6])];
    assert_eq!(chosen_tokens(program.as_ref()), expected.map(|history| best(history, N_VOCAB)));
    assert_eq!(program.kept(0).len(), 3 * 16);
    assert_eq!(program.kept(0)[16], kept(expected[0], 0));
    assert!(program.kept(1).is_empty() && program.commands(2, 1).is_empty());
    program.decommit(1, 8..9).unwrap();
    assert!(program.run(&read).unwrap_err().to_string().contains("not committed"));
}
