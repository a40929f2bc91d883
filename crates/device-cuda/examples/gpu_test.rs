//! The tests that need a GPU, as one program for a machine without a Rust toolchain (`cargo xtask
//! gpu-test` bundles it). Arguments choose by name: `gpu_test Linear promises "decoder 45"`.

use device::{
    Choose, Device, KvType, Limits, Link, OpKind, OutputRef, OwnedStep, Penalties, Sampling, Slice, Ticket,
    Want,
};
use device_lower::fusion;
use device_testing::{CountingAllocator, Sequences, committed, limits, mini_transformer, one_sequence};
use ingle_device_cuda::products::{MOST_TILES, Products};
use ingle_device_cuda::{CudaDevice, Profile, kernels, selftest};
use std::process::ExitCode;
use std::time::Instant;
use weights::BlockType;

// The count has the allocations of this program, but not allocations by NVIDIA's driver.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Checks that steps allocate nothing after compilation: single steps and steps in flight, with
/// greedy, sampled and host-chosen tokens.
fn allocations(device: &CudaDevice) -> Result<String, String> {
    let error = |e: device::Error| e.to_string();
    let mut n_steps = 0;
    for block in [BlockType::F32, BlockType::Q4_1, BlockType::Q6_K] {
        let plan = fusion::fuse(&mini_transformer(1, block), device.fusion());
        let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
        let mut program =
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(error)?;
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let steps: Vec<_> = [&[(0, 40)][..], &[(0, 1)], &[(0, 1), (1, 17)], &[(1, 1)], &[(0, 1), (1, 1)]]
            .iter()
            .map(|spans| sequences.step(spans))
            .collect();
        // The first step of a size is launched command by command. The second records a graph.
        for step in steps.iter().chain(&steps) {
            program.run(&step.borrow()).map_err(error)?;
        }
        let before = CountingAllocator::calls();
        for step in &steps {
            program.run(&step.borrow()).map_err(error)?;
        }
        let n = CountingAllocator::calls() - before;
        if n > 0 {
            return Err(format!("{block}: {n} allocations in {} steps", steps.len()));
        }
        let penalties = Some(Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 });
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.1, random: 0.5 };
        let recent = Slice { start: 0, len: 30 };
        let sampled = Want { choose: Choose::Sample(sampling), penalties, recent, ..Want::default() };
        let on_host = Want { logprob: true, logits: true, ..sampled };
        for want in [Want::BEST, sampled, on_host] {
            let first = one_sequence(&plan, &limits, &[1], 40).with_outputs(vec![0], want);
            let mut step = OwnedStep { recent: (0..30).collect(), ..first };
            let first = program.submit(&step.borrow()).map_err(error)?;
            step.links = vec![Link { row: 0, from: OutputRef { ticket: first, output: 0 } }];
            let ahead = program.max_in_flight() as u64;
            let mut before = 0;
            for index in 1..24 {
                if index == 4 {
                    before = CountingAllocator::calls();
                }
                if index >= ahead {
                    program.wait(Ticket(first.0 + index - ahead)).map_err(error)?;
                }
                step.links[0].from.ticket = program.submit(&step.borrow()).map_err(error)?;
                n_steps += 1;
            }
            let n = CountingAllocator::calls() - before;
            if n > 0 {
                return Err(format!("{block}: {n} allocations in 20 steps in flight, {want:?}"));
            }
            for index in 24 - ahead..24 {
                program.wait(Ticket(first.0 + index)).map_err(error)?;
            }
        }
    }
    Ok(format!("none in {n_steps} steps"))
}

/// Valid names of tests.
fn names() -> Vec<String> {
    let several = "promises persistent general mixed rings chains long planes mma tiles allocations splits";
    let decoders = 1..=selftest::decoders().len();
    let one = decoders.flat_map(|n| [format!("decoder {n}"), format!("general {n}")]);
    let chains = (1..=selftest::chains().len()).map(|n| format!("chain {n}"));
    let kinds = selftest::kinds().into_iter().map(|kind| format!("{kind:?}"));
    kinds.chain(several.split(' ').map(str::to_owned)).chain(one).chain(chains).collect()
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let names = names();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(name)) {
        eprintln!("no test is called '{unknown}', expected some of: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let device = match CudaDevice::new(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("no tests were run: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}; {}", device.describe(), device.kernels().origin());
    // Compiles kernels in parallel: all of them, or those of the persistent kernel. A test chosen
    // by its own name compiles its kernels itself.
    let architecture = device.context().facts().architecture();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let persistent = ["persistent", "general", "mixed"].into_iter().any(is_wanted);
    let is_needed = |file: &&str| wanted.is_empty() || persistent && file.starts_with("persistent/");
    let files = kernels::files(&architecture).filter(is_needed);
    if let Err(error) = device.kernels().prepare(&files.map(str::to_owned).collect()) {
        eprintln!("no tests were run: {error}");
        return ExitCode::FAILURE;
    }
    let mut failed = false;
    let mut report = |name: &str, started: Instant, result: Result<String, String>| {
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(what) => println!("ok      {name}: {what} ({seconds:.1} s)"),
            Err(reason) => {
                failed = true;
                println!(
                    "FAILED  {name} ({seconds:.1} s): {}",
                    reason.chars().take(6000).collect::<String>()
                );
            }
        }
    };
    for kind in selftest::kinds() {
        let name = format!("{kind:?}");
        if is_wanted(&name) {
            let started = Instant::now();
            report(&name, started, selftest::check_kind(&device, kind).map(|n| format!("{n} cases")));
        }
    }
    if is_wanted("promises") {
        for (name, check) in selftest::PROMISES {
            let started = Instant::now();
            report(name, started, check(&device).map(|()| "kept".to_owned()));
        }
    }
    let usual = Profile::new(device.context().facts());
    if usual.products == Products::Wgmma {
        let general = Profile { fixed_tables: false, ..usual.clone() };
        let general = CudaDevice::new(0).map(|device| device.with_profile(general));
        for (decoder, seed) in selftest::decoders().into_iter().zip(1..) {
            let name = format!("decoder {seed}");
            let mixed = decoder.mix.is_some() && is_wanted("mixed");
            let all = mixed || is_wanted("persistent") || is_wanted(&name);
            for (device, of, is_wanted) in [
                (Ok(&device), "a kernel of its own", all),
                (
                    general.as_ref(),
                    "the general kernel",
                    all || is_wanted("general") || is_wanted(&format!("general {seed}")),
                ),
            ] {
                if !is_wanted {
                    continue;
                }
                let started = Instant::now();
                let result = device
                    .map_err(ToString::to_string)
                    .and_then(|device| selftest::check_decoder(device, decoder, seed))
                    .map(|n| format!("{n} steps"));
                report(&format!("{name}, steps in one launch of {of}"), started, result);
            }
        }
        // The weights of these decoders are smaller than a ring of the usual size. A shorter ring
        // wraps several times in a step. Cases: a dense decoder with several rows; a mixture with
        // one row and with several.
        let rings = is_wanted("persistent") || is_wanted("rings");
        let short = [(1, 8, 170_000), (25, 1, 100_000), (25, 8, 185_000)];
        for (seed, persistent_rows, shared_bytes) in short.into_iter().filter(|_| rings) {
            let started = Instant::now();
            let short = Profile { fixed_tables: false, persistent_rows, shared_bytes, ..usual.clone() };
            let decoder = selftest::decoders()[seed - 1];
            let result = CudaDevice::new(0).map_err(|e| e.to_string()).and_then(|device| {
                selftest::check_decoder(&device.with_profile(short), decoder, seed as u64)
            });
            let name = format!("decoder {seed}, steps of up to {persistent_rows} rows with a short ring");
            report(&name, started, result.map(|n| format!("{n} steps")));
        }
        for (index, (decoder, before)) in selftest::chains().into_iter().enumerate() {
            let name = format!("chain {}", index + 1);
            let all = is_wanted("persistent") || is_wanted("chains");
            if !all && !is_wanted(&name) {
                continue;
            }
            let started = Instant::now();
            let result = selftest::check_chain(&device, decoder, before, !all).map(|n| format!("{n} steps"));
            report(&format!("{name}, steps in flight"), started, result);
        }
        if is_wanted("persistent") || is_wanted("long") {
            let started = Instant::now();
            let plain = Profile { persistent: false, ..usual.clone() };
            let result = CudaDevice::new(0)
                .map_err(|e| e.to_string())
                .and_then(|plain_device| selftest::check_long(&device, &plain_device.with_profile(plain)));
            report("long sequences in one launch each", started, result.map(|n| format!("{n} steps")));
        }
    }
    for (name, profile) in [
        ("planes", Profile { products: Products::Planes, ..usual.clone() }),
        ("mma", Profile { products: Products::Mma, ..usual.clone() }),
    ] {
        if !is_wanted(name) {
            continue;
        }
        let device = match CudaDevice::new(0) {
            Ok(device) => device.with_profile(profile),
            Err(error) => {
                report(name, Instant::now(), Err(error.to_string()));
                continue;
            }
        };
        for kind in [OpKind::Linear, OpKind::Fused, OpKind::Attention] {
            let (name, started) = (format!("{kind:?}, products by {name}"), Instant::now());
            report(&name, started, selftest::check_kind(&device, kind).map(|n| format!("{n} cases")));
        }
    }
    // Small products never choose the wide tiles, so each tile is forced in turn.
    for tile in (0..MOST_TILES).filter(|_| is_wanted("tiles")) {
        let usual = Profile::new(device.context().facts());
        if usual.products != Products::Wgmma {
            break;
        }
        let profile = Profile { only_tile: Some(tile), ..usual };
        let (name, started) = (format!("Fused, tile {tile} alone"), Instant::now());
        let result = CudaDevice::new(0).map_err(|e| e.to_string()).and_then(|device| {
            selftest::check_kind(&device.with_profile(profile), OpKind::Fused).map(|n| format!("{n} cases"))
        });
        report(&name, started, result);
    }
    if is_wanted("allocations") {
        report("allocations", Instant::now(), allocations(&device));
    }
    if is_wanted("splits") {
        let profile = Profile { long: 3, split_len: 32, n_blocks: 100_000, ..device.profile().clone() };
        let device = device.with_profile(profile);
        for kind in selftest::kinds().into_iter().filter(|kind| selftest::may_split(*kind)) {
            let (name, started) = (format!("{kind:?}, positions split"), Instant::now());
            report(&name, started, selftest::check_kind(&device, kind).map(|n| format!("{n} cases")));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
