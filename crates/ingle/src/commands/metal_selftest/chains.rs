//! Whether chains of tokens, chosen on the device, are those that single steps and the engine's sampler choose.

use device::testing::{mini_transformer, one_sequence};
use device::{Device, KvType, Limits, Plan, Program, fusion};
use engine::SamplingParams;
use engine::sampling::{Sampler, Scratch};
use formats::BlockType;

/// Tokens of the prompt, and after it.
const N_PROMPT: usize = 19;
const N_MORE: usize = 40;

/// What was asked of the sampler, and whether the tokens agree or how they differ; every `every`th of all.
pub fn check(device: &dyn Device, every: usize) -> Vec<(String, Result<(), String>)> {
    let plan = fusion::fuse(&mini_transformer(3, BlockType::Q4_0), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..device::testing::limits(&plan.kv) };
    params()
        .into_iter()
        .step_by(every.max(1))
        .map(|(what, params)| (what.to_owned(), agree(device, &plan, &limits, &params)))
        .collect()
}

/// Each stage alone, all together, and none.
fn params() -> Vec<(&'static str, SamplingParams)> {
    let sampled = SamplingParams { temperature: 1.5, seed: Some(3), ..SamplingParams::default() };
    let penalties = SamplingParams {
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        penalty_window: 12,
        ..sampled.clone()
    };
    vec![
        ("greedy", SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        ("temperature", sampled.clone()),
        ("top-k", SamplingParams { top_k: 30, ..sampled.clone() }),
        ("top-p", SamplingParams { top_p: 0.9, ..sampled.clone() }),
        ("min-p", SamplingParams { min_p: 0.05, ..sampled }),
        ("penalties", penalties.clone()),
        ("greedy with penalties", SamplingParams { temperature: 0.0, ..penalties.clone() }),
        ("everything", SamplingParams { top_k: 30, top_p: 0.95, min_p: 0.01, ..penalties }),
    ]
}

/// An answer step by step, and in chains of several lengths.
fn agree(device: &dyn Device, plan: &Plan, limits: &Limits, params: &SamplingParams) -> Result<(), String> {
    let n_vocab = plan.value(plan.logits).cols;
    let compile = || device.compile(std::slice::from_ref(plan), limits).map_err(|e| e.to_string());
    let prompt: Vec<u32> = (0..N_PROMPT as u32).collect();
    let run = |program: &mut dyn Program, tokens: &[u32], first: usize| {
        let step = one_sequence(plan, limits, &tokens[first..], first as u32);
        program.run(&step.borrow()).map_err(|e| e.to_string())
    };
    let mut scratch = Scratch::new(n_vocab);
    let new_sampler = || Sampler::new(params, n_vocab).map_err(|e| e.to_string());

    let (mut program, mut sampler) = (compile()?, new_sampler()?);
    let (mut expected, mut n_done) = (prompt.clone(), 0);
    while expected.len() < N_PROMPT + N_MORE {
        run(program.as_mut(), &expected, n_done)?;
        n_done = expected.len();
        let choice = sampler.sample(program.logits_mut(), &expected, &mut scratch);
        expected.push(choice.map_err(|e| e.to_string())?.id);
    }

    let (mut program, mut sampler) = (compile()?, new_sampler()?);
    let mut found = prompt;
    run(program.as_mut(), &found[..N_PROMPT - 1], 0)?;
    for n in [3, 1, N_MORE - 4] {
        let before = found.clone();
        let last = before.len() - 1;
        let step = one_sequence(plan, limits, &before[last..], last as u32);
        let sampling = match sampler.wants_argmax() {
            true => None,
            false => sampler.ahead(&before, &mut scratch),
        };
        program.start_chain(&step.borrow(), n, sampling.as_ref()).map_err(|e| e.to_string())?;
        while let Some(token) = program.next_chained().map_err(|e| e.to_string())? {
            found.push(token);
            sampler.took_one();
        }
    }
    match found == expected {
        true => Ok(()),
        false => Err(format!("{:?}, expected {:?}", &found[N_PROMPT..], &expected[N_PROMPT..])),
    }
}
