//! Tests of decoders whose steps run in one launch, with one row or several. They compare with the
//! interpreter, at long contexts with a launch for each unit, and chained steps with single ones.

use super::{Decoder, decoders, half_decoders, tolerance};
use crate::CudaDevice;
use crate::device_impl::{NOT_WHOLE, ONE_ROW_WHOLE};
use crate::persistent::MOST_IN_TURN;
use ::weights::BlockType;
use device::{
    Choose, Device, KvType, Limits, Link, OutputRef, OwnedStep, Penalties, Plan, Program, Sampling, Slice,
    Ticket, Want,
};
use device_check::{BEST_AND_LOGITS, Sequences, check_cases, chosen_tokens, committed, limits};
use device_lower::fusion::fuse;

/// A program whose steps run in one launch, and one of the same plan that launches every unit.
struct Pair {
    whole: Box<dyn Program>,
    units: Box<dyn Program>,
    /// Allowed difference of logits, relative to their root mean square. Both programs round
    /// activations to 8 bits, but apply scales in another order.
    rounded: f32,
}

impl Pair {
    /// Runs a step on both programs, and compares the logits.
    fn agree(&mut self, step: &OwnedStep) -> Result<(), String> {
        for program in [&mut self.whole, &mut self.units] {
            program.run(&step.borrow()).map_err(|e| e.to_string())?;
        }
        let (expected, found) = (self.units.logits(), self.whole.logits());
        let size = expected.iter().map(|x| x * x).sum::<f32>() / expected.len().max(1) as f32;
        let bound = self.rounded * size.sqrt().max(1.0);
        // This comparison is false for NaN, so that NaN fails.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
        match expected.iter().zip(found).position(|pair| !near(pair)) {
            None => Ok(()),
            Some(at) => {
                let (a, b) = (expected[at], found[at]);
                let positions: Vec<u32> = step.spans.iter().map(|span| span.first_position).collect();
                Err(format!("positions {positions:?}, logit {at}: {b}, expected {a}"))
            }
        }
    }
}

/// Positions of the longest sequence of [`check_long`], if the device has enough memory for them.
const LONG: usize = 20_000;

/// Compares steps in one launch with the same steps on `plain`, which launches every unit. The
/// positions are beyond those that the interpreter reaches in a test. Steps have one row, one row
/// of each of several sequences, or several rows of a sequence. Returns the number of steps.
///
/// # Errors
/// Results differ, or the device failed.
pub fn check_long(device: &CudaDevice, plain: &CudaDevice) -> Result<usize, String> {
    let error = |e: device::Error| e.to_string();
    let mut n_steps = 0;
    for (decoder, kv_type) in [
        (Decoder { n_layers: 2, ..Decoder::SMALL }, KvType::F16),
        (Decoder { n_layers: 2, windows: true, ..decoders()[6] }, KvType::Q8_0),
        (Decoder { n_layers: 2, ..decoders()[6] }, KvType::F16),
        (Decoder { n_layers: 2, windows: true, ..decoders()[6] }, KvType::Fp8),
        (half_decoders()[0], KvType::F16),
    ] {
        let plan = Decoder { kv_type, ..decoder }.plan(11);
        let n_ctx = LONG;
        // Positions of the sequences of a step: near the end, in between, at a page's end and
        // before it, and at the start.
        let side_by_side = [n_ctx - 6, n_ctx / 2, n_ctx / 4 + 1, 1000, 300, 64, 63, 0];
        let of_group = (n_ctx.max(side_by_side.iter().sum()) + 64 * 16) / 64;
        let limits = Limits {
            kv_type,
            n_ctx,
            page_len: 64,
            n_pages: vec![of_group; plan.kv.groups.len()],
            max_rows: 1024,
            max_outputs: 8,
            ..limits(&plan.kv)
        };
        is_whole(device, decoder, &plan, &limits)?;
        let compile = |device: &CudaDevice| {
            let plan = fuse(&plan, device.fusion());
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(error)
        };
        // FP8 has 3 bits of mantissa. With few positions, a single value that rounds differently is
        // visible in the logits.
        let rounded = if kv_type == KvType::Fp8 { 0.1 } else { 0.05 };
        let mut pair = Pair { whole: compile(device)?, units: compile(plain)?, rounded };
        let mut agree = |step: &OwnedStep| {
            n_steps += 1;
            pair.agree(step).map_err(|reason| format!("{decoder:?}, {kv_type:?}, {reason}"))
        };
        // Only the last row is an output.
        let prompt = |sequences: &mut Sequences, slot: usize, n_rows: usize| {
            sequences.step(&[(slot, n_rows)]).with_outputs(vec![n_rows as u32 - 1], BEST_AND_LOGITS)
        };
        let mut sequences = Sequences::new(5, &plan.kv, &limits, 64);
        let mut position = 0;
        while position < n_ctx {
            let chunk = (n_ctx - position).saturating_sub(2).min(1000);
            for n_rows in [chunk, 1, 1].into_iter().filter(|n_rows| *n_rows > 0) {
                agree(&prompt(&mut sequences, 0, n_rows))?;
                position += n_rows;
            }
        }
        let mut sequences = Sequences::new(6, &plan.kv, &limits, 64);
        for (slot, n_tokens) in side_by_side.into_iter().enumerate() {
            for first in (0..n_tokens).step_by(1000) {
                agree(&prompt(&mut sequences, slot, (n_tokens - first).min(1000)))?;
            }
        }
        for slots in [&[0, 1, 2, 3, 4, 5, 6, 7][..], &[7, 0, 5], &[6, 5, 4, 3, 2, 1, 0, 7], &[0, 1], &[4, 0]]
        {
            let spans: Vec<(usize, usize)> = slots.iter().map(|slot| (*slot, 1)).collect();
            agree(&sequences.step(&spans))?;
        }
        // Several rows of a sequence.
        for spans in [
            &[(1, 8)][..],
            &[(2, 3), (5, 4)],
            &[(6, 1), (3, 5), (7, 2)],
            &[(1, 7), (4, 1)],
            &[(2, 2), (5, 6)],
        ] {
            agree(&sequences.step(spans))?;
        }
        runs_whole(device, decoder, pair.whole.as_mut(), &sequences.step(&[(3, 5), (1, 3)]))?;
        let all: Vec<(usize, usize)> = (0..8).map(|slot| (slot, 1)).collect();
        runs_whole(device, decoder, pair.whole.as_mut(), &sequences.step(&all))?;
    }
    Ok(n_steps)
}

/// Returns true if a decoder has a kernel for several rows. The profile must allow such kernels,
/// and a token may use at most 8 experts.
fn has_several(device: &CudaDevice, decoder: Decoder) -> bool {
    device.profile().persistent_rows > 1 && decoder.experts.is_none_or(|experts| experts.n_used <= 8)
}

/// Checks that a plan's one-row steps run in one launch, and also those of several rows if there is
/// a kernel for them.
fn is_whole(device: &CudaDevice, decoder: Decoder, plan: &Plan, limits: &Limits) -> Result<(), String> {
    let plan = fuse(plan, device.fusion());
    let memory = device.memory_plan(std::slice::from_ref(&plan), limits).map_err(|e| e.to_string())?;
    let is_reason = |note: &&String| {
        note.starts_with(NOT_WHOLE) || has_several(device, decoder) && note.starts_with(ONE_ROW_WHOLE)
    };
    memory.notes.iter().find(is_reason).map_or(Ok(()), |note| Err(note.clone()))
}

/// Numbers of rows of a decoder's steps to test with persistent kernels. The kernel for several
/// rows needs a block for each pair of a row and a KV head.
fn rows_of(device: &CudaDevice, decoder: Decoder) -> impl Iterator<Item = usize> {
    let profile = device.profile();
    let most = match has_several(device, decoder) {
        true => profile.n_processors / decoder.n_kv_heads,
        false => MOST_IN_TURN,
    };
    let most = most.min(profile.persistent_rows.max(1));
    [1, 2, 3, 5, 8].into_iter().filter(move |n_rows| *n_rows <= most)
}

/// Prefix of the name of the persistent kernel for a decoder's steps of `n_rows` rows.
fn name_of(device: &CudaDevice, decoder: Decoder, n_rows: usize) -> &'static str {
    match decoder.experts {
        Some(_) if n_rows > 1 && has_several(device, decoder) => "persistent_decode_rows_experts_",
        Some(_) => "persistent_decode_experts_",
        None if n_rows == 1 && !decoder.has_halves() => "persistent_decode_",
        None => "persistent_decode_rows_",
    }
}

/// Checks that steps run in the expected kernel. It is compiled for the plan's own table if the
/// profile allows this, NVRTC is installed, and all layers are of one kind.
fn is_of_its_own(device: &CudaDevice, decoder: Decoder, program: &dyn Program) -> Result<(), String> {
    let is_mixed = decoder.experts.is_some_and(|experts| experts.first_dense);
    let expected = device.profile().fixed_tables && device.kernels().can_compile() && !is_mixed;
    let of = if expected { "persistent/fixed_" } else { "persistent/decode_" };
    // A refused file runs the general kernel's code, so that this test would check nothing.
    if let Some(refused) = device.kernels().refused().first() {
        return Err(format!("refused by the compiler: {refused}"));
    }
    for n_rows in rows_of(device, decoder) {
        let commands = program.commands(0, n_rows);
        let kernels: Vec<&str> = commands.iter().map(|command| command.kernel.as_str()).collect();
        let name = name_of(device, decoder, n_rows);
        let is_meant = |kernel: &&str| kernel.starts_with(of) && kernel.contains(name);
        if !kernels.iter().any(is_meant) {
            return Err(format!("{n_rows} rows: expected a kernel {of}*, found {kernels:?}"));
        }
    }
    Ok(())
}

/// Runs a step, and checks that it ran in one launch. Without a kernel for several rows, it must
/// run in one launch for each row.
fn runs_whole(
    device: &CudaDevice,
    decoder: Decoder,
    program: &mut dyn Program,
    step: &OwnedStep,
) -> Result<(), String> {
    let mut timings = Vec::new();
    program.run_timed(&step.borrow(), &mut timings).map_err(|e| e.to_string())?;
    let n_rows = step.tokens.len();
    let commands = program.commands(step.plan, n_rows);
    let ran = timings.iter().filter(|timing| timing.duration > 0.0);
    let kernels = ran.filter_map(|timing| commands.get(timing.command));
    let name = name_of(device, decoder, n_rows);
    let n = kernels.filter(|command| command.kernel.contains(name)).count();
    let expected = if has_several(device, decoder) { 1 } else { n_rows };
    match n == expected {
        true => Ok(()),
        false => {
            Err(format!("{n} launches of the persistent kernel with {n_rows} rows, expected {expected}"))
        }
    }
}

/// Compares a decoder with the interpreter. Returns the number of steps.
///
/// # Errors
/// Results differ, or the persistent kernels cannot run the decoder.
pub fn check_decoder(device: &CudaDevice, decoder: Decoder, seed: u64) -> Result<usize, String> {
    let case = decoder.case(seed);
    is_whole(device, decoder, &case.plans[0], &case.limits)?;
    let n_steps = case.steps.len();
    let plan = fuse(&case.plans[0], device.fusion());
    let program = device.compile(std::slice::from_ref(&plan), &case.limits).and_then(committed);
    let mut program = program.map_err(|e| e.to_string())?;
    is_of_its_own(device, decoder, program.as_ref())?;
    let mut sequences = Sequences::new(seed, &plan.kv, &case.limits, 64);
    for n_rows in rows_of(device, decoder) {
        let spans: Vec<(usize, usize)> = (0..n_rows).map(|slot| (slot, 1)).collect();
        runs_whole(device, decoder, program.as_mut(), &sequences.step(&spans))?;
    }
    drop(program);
    check_cases(device as &dyn Device, [case], tolerance).map(|_| n_steps)
}

/// Choices of tokens to test with chains, each with a `Want` for every sequence: one sequence or
/// three.
fn wants_of_chains() -> Vec<Vec<Want>> {
    let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.1, random: 0.5 };
    let penalties = Some(Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 });
    let recent = Slice { start: 0, len: 20 };
    let sampled = Want { choose: Choose::Sample(sampling), ..Want::default() };
    let all = [Want::BEST, sampled, Want { penalties, recent, ..Want::BEST }];
    let alike = all.iter().flat_map(|want| [vec![*want], vec![*want; 3]]);
    alike.chain([all.to_vec()]).collect()
}

/// Decoders whose chains of steps are tested, with the number of tokens of the first sequence
/// before the chain.
pub fn chains() -> Vec<(Decoder, usize)> {
    // The residual has rows for each block of a large GPU, so that a launch can compute several
    // steps.
    let wide = Decoder { residual: 1088, n_layers: 2, ..Decoder::SMALL };
    vec![
        (Decoder::SMALL, 0),
        (decoders()[2], 0),
        (decoders()[8], 0),
        (half_decoders()[0], 0),
        // Several blocks attend to a KV head from 256 positions on; with heads of 128 columns, from
        // 128 on.
        (Decoder { windows: true, embedding: BlockType::Q5_1, ..wide }, 215),
        (Decoder { head_dim: 128, kv_type: KvType::Q8_0, embedding: BlockType::BF16, ..wide }, 90),
        (
            Decoder {
                n_heads: 8,
                head_norms: true,
                embedding: BlockType::Q4_0,
                kv_type: KvType::Fp8,
                ..wide
            },
            3,
        ),
    ]
}

/// Number of prompt tokens of each sequence of a chain.
const PROMPTS: [usize; 3] = [20, 7, 33];

/// Runs a chain of steps with a row of each sequence. Every step reads the tokens of the previous
/// one, and `ahead` steps are in flight. Returns the chosen tokens, step by step.
fn chain(
    program: &mut dyn Program,
    sequences: &mut Sequences,
    wants: &[Want],
    n_steps: u64,
    ahead: u64,
) -> device::Result<Vec<u32>> {
    let with = |step: OwnedStep, outputs: Vec<u32>| OwnedStep {
        recent: (0..20).collect(),
        outputs,
        wants: wants.to_vec(),
        ..step
    };
    let n = wants.len();
    let prompts: Vec<(usize, usize)> = PROMPTS.into_iter().take(n).enumerate().collect();
    let mut end = 0;
    let last_rows = prompts.iter().map(|(_, n_rows)| {
        end += *n_rows as u32;
        end - 1
    });
    let last_rows = last_rows.collect();
    let first = program.submit(&with(sequences.step(&prompts), last_rows).borrow())?;
    let rows: Vec<(usize, usize)> = (0..n).map(|slot| (slot, 1)).collect();
    let mut tokens = Vec::new();
    for index in 1..n_steps {
        if index >= ahead {
            program.wait(Ticket(first.0 + index - ahead))?;
            tokens.extend(chosen_tokens(program));
        }
        let ticket = Ticket(first.0 + index - 1);
        let link = |row: u32| Link { row, from: OutputRef { ticket, output: row } };
        let mut next = with(sequences.step(&rows), (0..n as u32).collect());
        next.links = (0..n as u32).map(link).collect();
        program.submit(&next.borrow())?;
    }
    for index in n_steps - ahead..n_steps {
        program.wait(Ticket(first.0 + index))?;
        tokens.extend(chosen_tokens(program));
    }
    Ok(tokens)
}

/// Checks that chains of steps in flight choose the same tokens as the same steps one at a time.
/// Chains are greedy, sampled and with penalties, of one sequence and of three. `only_greedy` tests
/// only greedy chains of one sequence, of which a launch may compute several steps. The first
/// sequence begins with `before` tokens. Returns the number of steps.
///
/// # Errors
/// Tokens differ, or the device failed.
pub fn check_chain(
    device: &CudaDevice,
    decoder: Decoder,
    before: usize,
    only_greedy: bool,
) -> Result<usize, String> {
    const STEPS: u64 = 60;
    let error = |e: device::Error| e.to_string();
    let mut n_steps = 0;
    let plan = decoder.plan(9);
    let limits = decoder.limits(&plan);
    is_whole(device, decoder, &plan, &limits)?;
    let plan = fuse(&plan, device.fusion());
    let mut program =
        device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(error)?;
    let all = wants_of_chains().into_iter().take(if only_greedy { 1 } else { usize::MAX });
    for wants in all.filter(|wants| rows_of(device, decoder).any(|n_rows| n_rows == wants.len())) {
        let n = wants.len();
        let rows: Vec<(usize, usize)> = (0..n).map(|slot| (slot, 1)).collect();
        let mut found: Vec<Vec<u32>> = Vec::new();
        for ahead in [1, program.max_in_flight() as u64] {
            let mut sequences = Sequences::new(9, &plan.kv, &limits, 64);
            for first in (0..before).step_by(limits.max_rows) {
                let step = sequences.step(&[(0, (before - first).min(limits.max_rows))]);
                program.run(&step.with_outputs(vec![], BEST_AND_LOGITS).borrow()).map_err(error)?;
            }
            found.push(chain(program.as_mut(), &mut sequences, &wants, STEPS, ahead).map_err(error)?);
            n_steps += STEPS as usize;
            runs_whole(device, decoder, program.as_mut(), &sequences.step(&rows))?;
        }
        if found[0] != found[1] || found[0].len() != STEPS as usize * n {
            return Err(format!("{wants:?}: {:?} one at a time, {:?} in flight", found[0], found[1]));
        }
        if found[0].contains(&u32::MAX) {
            return Err(format!("{wants:?}: no token in {:?}", found[0]));
        }
    }
    Ok(n_steps)
}
