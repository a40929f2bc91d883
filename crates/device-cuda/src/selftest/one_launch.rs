//! Decoders whose steps of one row take one launch: against the interpreter, against a launch for each unit at long contexts, and chains of
//! steps in flight.

use super::{Decoder, decoders, tolerance};
use crate::CudaDevice;
use device::{
    Device, KvType, Limits, Link, OutputRef, OwnedStep, Penalties, Plan, Sampling, Slice, Ticket, Want,
};
use device_lower::fusion::fuse;
use device_testing::{
    BEST_AND_LOGITS, Sequences, check_cases, chosen_tokens, committed, limits, one_sequence,
};

/// Steps of one row at positions beyond those that the interpreter reaches in a test: in one launch, and on `plain`, which launches every
/// unit. Gives the number of steps.
///
/// # Errors
/// Where they differ, or an error of the device.
pub fn check_long(device: &CudaDevice, plain: &CudaDevice) -> Result<usize, String> {
    const ROUNDED: f32 = 0.05; // activations in 8 bits, scales of another order
    let error = |e: device::Error| e.to_string();
    let mut n_steps = 0;
    for (decoder, kv_type) in [
        (Decoder { n_layers: 2, ..Decoder::SMALL }, KvType::F16),
        (Decoder { n_layers: 2, windows: true, ..decoders()[6] }, KvType::Q8_0),
        (Decoder { n_layers: 2, ..decoders()[6] }, KvType::F16),
        (Decoder { n_layers: 2, windows: true, ..decoders()[6] }, KvType::Fp8),
    ] {
        let plan = Decoder { kv_type, ..decoder }.plan(11);
        let n_ctx = device.profile().persistent_positions;
        let of_group = n_ctx / 64 + 2;
        let n_pages = vec![of_group; plan.kv.groups.len()];
        let limits = Limits {
            kv_type,
            n_ctx,
            page_len: 64,
            n_pages,
            max_rows: 1024,
            max_outputs: 1,
            ..limits(&plan.kv)
        };
        is_whole(device, &plan, &limits)?;
        let compile = |device: &CudaDevice| {
            let plan = fuse(&plan, device.fusion());
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(error)
        };
        let (mut whole, mut units) = (compile(device)?, compile(plain)?);
        let mut sequences = Sequences::new(5, &plan.kv, &limits, 64);
        let mut position = 0;
        while position < n_ctx {
            let chunk = (n_ctx - position).saturating_sub(2).min(1000);
            for n_rows in [chunk, 1, 1] {
                let step = if n_rows > 0 { sequences.step(&[(0, n_rows)]) } else { continue };
                let last = n_rows as u32 - 1;
                let step = step.with_outputs(vec![last], BEST_AND_LOGITS);
                position += n_rows;
                for program in [&mut whole, &mut units] {
                    program.run(&step.borrow()).map_err(error)?;
                }
                let (expected, found) = (units.logits(), whole.logits());
                let size = expected.iter().map(|x| x * x).sum::<f32>() / expected.len().max(1) as f32;
                let bound = ROUNDED * size.sqrt().max(1.0);
                // Written so that NaN fails.
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
                let far = expected.iter().zip(found).position(|pair| !near(pair));
                if let Some(at) = far {
                    let (a, b) = (expected[at], found[at]);
                    return Err(format!(
                        "{decoder:?}, {kv_type:?}, position {position}, token {at}: {b}, expected {a}"
                    ));
                }
                n_steps += 1;
            }
        }
    }
    Ok(n_steps)
}

/// Whether a plan's steps of one row run in one launch.
fn is_whole(device: &CudaDevice, plan: &Plan, limits: &Limits) -> Result<(), String> {
    let plan = fuse(plan, device.fusion());
    let memory = device.memory_plan(std::slice::from_ref(&plan), limits).map_err(|e| e.to_string())?;
    match memory.notes.first() {
        None => Ok(()),
        Some(note) => Err(note.clone()),
    }
}

/// Whether steps of one row run in the kernel that is meant: one compiled for the plan's table, where the profile says so and the compiler is
/// there, unless layers differ.
fn is_of_its_own(device: &CudaDevice, decoder: Decoder, program: &dyn device::Program) -> Result<(), String> {
    let commands = program.commands(0, 1);
    let kernels: Vec<&str> = commands.iter().map(|command| command.kernel.as_str()).collect();
    let is_mixed = decoder.experts.is_some_and(|experts| experts.first_dense);
    let expected = device.profile().fixed_tables && device.kernels().can_compile() && !is_mixed;
    let of = if expected { "persistent/fixed_" } else { "persistent/decode_" };
    match kernels.iter().any(|kernel| kernel.starts_with(of)) {
        true => Ok(()),
        false => Err(format!("expected a kernel {of}*, found {kernels:?}")),
    }
}

/// A decoder against the interpreter. Gives the number of steps.
///
/// # Errors
/// Where they differ; or that the persistent kernel does not take it.
pub fn check_decoder(device: &CudaDevice, decoder: Decoder, seed: u64) -> Result<usize, String> {
    let case = decoder.case(seed);
    is_whole(device, &case.plans[0], &case.limits)?;
    let n_steps = case.steps.len();
    let plan = fuse(&case.plans[0], device.fusion());
    let program = device.compile(std::slice::from_ref(&plan), &case.limits).map_err(|e| e.to_string())?;
    is_of_its_own(device, decoder, program.as_ref())?;
    drop(program);
    check_cases(device as &dyn Device, [case], tolerance).map(|_| n_steps)
}

/// Chains of steps in flight, each linked to the one before, choose what the same steps choose one at a time; greedy, sampled and with
/// penalties. Gives the number of steps.
///
/// # Errors
/// Where they differ, or an error of the device.
pub fn check_chains(device: &CudaDevice) -> Result<usize, String> {
    const STEPS: u64 = 60;
    let error = |e: device::Error| e.to_string();
    let mut n_steps = 0;
    for decoder in [Decoder::SMALL, decoders()[2], decoders()[8]] {
        let plan = decoder.plan(9);
        let limits = decoder.limits(&plan);
        is_whole(device, &plan, &limits)?;
        let plan = fuse(&plan, device.fusion());
        let mut program =
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(error)?;
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.1, random: 0.5 };
        let penalties = Some(Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 });
        let recent = Slice { start: 0, len: 20 };
        let sampled = Want { choose: device::Choose::Sample(sampling), ..Want::default() };
        for want in [Want::BEST, sampled, Want { penalties, recent, ..Want::BEST }] {
            let mut found: Vec<Vec<u32>> = Vec::new();
            for ahead in [1, program.max_in_flight() as u64] {
                let mut tokens = Vec::new();
                let step = |tokens: &[u32], position: u32| -> OwnedStep {
                    let step = one_sequence(&plan, &limits, tokens, position);
                    let last = tokens.len() as u32 - 1;
                    OwnedStep { recent: (0..20).collect(), ..step }.with_outputs(vec![last], want)
                };
                let prompt: Vec<u32> = (0..20).collect();
                let first = program.submit(&step(&prompt, 0).borrow()).map_err(error)?;
                for index in 1..STEPS {
                    if index >= ahead {
                        program.wait(Ticket(first.0 + index - ahead)).map_err(error)?;
                        tokens.extend(chosen_tokens(program.as_ref()));
                    }
                    let mut next = step(&[0], 19 + index as u32);
                    next.links = vec![Link {
                        row: 0,
                        from: OutputRef { ticket: Ticket(first.0 + index - 1), output: 0 },
                    }];
                    program.submit(&next.borrow()).map_err(error)?;
                    n_steps += 1;
                }
                for index in STEPS - ahead..STEPS {
                    program.wait(Ticket(first.0 + index)).map_err(error)?;
                    tokens.extend(chosen_tokens(program.as_ref()));
                }
                let mut timings = Vec::new();
                program.run_timed(&step(&[1], 19 + STEPS as u32).borrow(), &mut timings).map_err(error)?;
                let commands = program.commands(0, 1);
                let ran =
                    |timing: &device::Timing| commands[timing.command].kernel.starts_with("persistent/");
                if !timings.iter().any(|timing| ran(timing) && timing.duration > 0.0) {
                    return Err("the persistent kernel did not run".to_owned());
                }
                found.push(tokens);
            }
            if found[0] != found[1] || found[0].len() as u64 != STEPS {
                return Err(format!("{want:?}: {:?} one at a time, {:?} in flight", found[0], found[1]));
            }
            if found[0].contains(&u32::MAX) {
                return Err(format!("{want:?}: no token in {:?}", found[0]));
            }
        }
    }
    Ok(n_steps)
}
