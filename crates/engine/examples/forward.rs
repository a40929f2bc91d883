//! A model in one page, in reading order: its file, its plan, a program, steps, and tokens.
//!
//! ```text
//! cargo run --release -p ingle-engine --example forward -- fixtures/models/llama 1 20 300
//! ```
//!
//! The arguments are a model (a file or a folder) and the token ids of a prompt. The page runs one
//! sequence on the reference interpreter, a token a step, and chooses the most likely token. The
//! engine (`crates/engine/src/engine.rs`) does the same for many sequences, with a scheduler, a
//! prefix cache and samplers.

use std::path::Path;

use device::{Choose, Device, KvType, Limits, Numerics, STATE_NONE, Span, StateUse, Step, Want};
use model::ModelSpec;
use weights::Access;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Tokens after the prompt.
const N_TOKENS: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((path, prompt)) = arguments.split_first().filter(|(_, prompt)| !prompt.is_empty()) else {
        return Err(
            "expected a model and the token ids of a prompt, for example: fixtures/models/llama 1 20 300"
                .into(),
        );
    };
    let prompt = prompt.iter().map(|id| id.parse()).collect::<std::result::Result<Vec<u32>, _>>()?;
    println!("{:?}", forward(Path::new(path), &prompt, N_TOKENS)?);
    Ok(())
}

/// The `n_tokens` tokens that a model finds most likely after a prompt.
pub fn forward(path: &Path, prompt: &[u32], n_tokens: usize) -> Result<Vec<u32>> {
    // 1. The file: names, shapes and bytes of its tensors. Weights stay in the mapped file.
    let checkpoint = formats::open(path, Access::Map)?;

    // 2. The sizes of the model, and its forward pass as a flat list of Ops: `println!("{plan}")`
    //    shows each.
    let spec = ModelSpec::from_checkpoint(&checkpoint)?;
    let plan = spec.plan(&checkpoint)?;

    // 3. The program: a device compiles the plan for steps of one row. The KV pages of each group
    //    hold one sequence.
    let n_ctx = prompt.len() + n_tokens;
    let page_len = 16;
    let pages_per_table = n_ctx.div_ceil(page_len);
    let has_states = !plan.kv.states.is_empty();
    let limits = Limits {
        max_rows: 1,
        max_outputs: 1,
        max_spans: 1,
        n_ctx,
        page_len,
        n_pages: vec![pages_per_table; plan.kv.groups.len()],
        n_states: if has_states { 2 } else { 0 },
        background_rows: 0,
        kv_type: KvType::F32,
        numerics: Numerics::Fast,
    };
    let reference = device_reference::Reference::default();
    let mut program = reference.compile(std::slice::from_ref(&plan), &limits)?;
    program.commit_all()?;

    // 4. Steps. The table of each group lists the pages in the order of the positions.
    let pages = 0..pages_per_table as u32;
    let page_tables: Vec<u32> = plan.kv.groups.iter().flat_map(|_| pages.clone()).collect();
    let (mut tokens, mut chosen) = (prompt.to_vec(), Vec::new());
    for position in 0..n_ctx - 1 {
        // A recurrent layer reads the state of the step before, and writes the other of two.
        let to = position as u32 % 2;
        let states = [StateUse { from: if position == 0 { STATE_NONE } else { 1 - to }, to }];
        let span = Span { slot: 0, first_row: 0, n_rows: 1, first_position: position as u32 };
        program.run(&Step {
            tokens: &tokens[position..=position],
            spans: &[span],
            states: if has_states { &states } else { &[] },
            page_tables: &page_tables,
            pages_per_table,
            outputs: &[0],
            wants: &[Want { choose: Choose::Best, ..Want::default() }],
            ..Step::default()
        })?;

        // 5. The token with the largest logit. The next token of the prompt is known already.
        if position + 1 >= prompt.len() {
            let best = program.chosen().first().and_then(|chosen| chosen.token);
            let best = best.ok_or("every logit is NaN")?;
            tokens.push(best);
            chosen.push(best);
        }
    }
    Ok(chosen)
}
