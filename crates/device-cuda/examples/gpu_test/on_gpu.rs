//! The tests, and their command line.

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

/// The tests of a run.
struct Run {
    /// Names of the chosen tests; empty: all are chosen.
    wanted: Vec<String>,
    device: CudaDevice,
    /// The profile of this GPU.
    usual: Profile,
    failed: bool,
}

impl Run {
    fn is_wanted(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name)
    }

    /// Runs a test on the GPU with a profile, and prints its result.
    fn test(
        &mut self,
        name: &str,
        profile: Profile,
        check: impl FnOnce(&CudaDevice) -> Result<String, String>,
    ) {
        let started = Instant::now();
        let result = check(&self.device.with_profile(profile));
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(what) => println!("ok      {name}: {what} ({seconds:.1} s)"),
            Err(reason) => {
                self.failed = true;
                let reason: String = reason.chars().take(6000).collect();
                println!("FAILED  {name} ({seconds:.1} s): {reason}");
            }
        }
    }

    /// Compiles kernels in parallel: all of them, or those of the persistent kernel. A test chosen
    /// by its own name compiles its kernels itself.
    fn compile(&self) -> Result<(), device::Error> {
        let architecture = self.device.context().facts().architecture();
        let persistent = ["persistent", "general", "mixed"].into_iter().any(|name| self.is_wanted(name));
        let is_needed = |file: &&str| self.wanted.is_empty() || persistent && file.starts_with("persistent/");
        let files = kernels::files(&architecture).filter(is_needed);
        self.device.kernels().prepare(&files.map(str::to_owned).collect())
    }

    /// Tests of Ops, and of the promises of programs.
    fn ops(&mut self) {
        for kind in selftest::kinds() {
            let name = format!("{kind:?}");
            if self.is_wanted(&name) {
                self.test(&name, self.usual.clone(), |device| cases(device, kind));
            }
        }
        if self.is_wanted("promises") {
            for (name, check) in selftest::PROMISES {
                self.test(name, self.usual.clone(), |device| check(device).map(|()| "kept".to_owned()));
            }
        }
    }

    /// Tests of whole steps of decoders in one launch.
    fn persistent(&mut self) {
        let usual = self.usual.clone();
        let general = Profile { fixed_tables: false, ..usual.clone() };
        for (decoder, seed) in selftest::decoders().into_iter().zip(1..) {
            let name = format!("decoder {seed}");
            let mixed = decoder.mix.is_some() && self.is_wanted("mixed");
            let both = mixed || self.is_wanted("persistent") || self.is_wanted(&name);
            let is_general_wanted =
                both || self.is_wanted("general") || self.is_wanted(&format!("general {seed}"));
            for (profile, kernel, is_wanted) in
                [(&usual, "a kernel of its own", both), (&general, "the general kernel", is_general_wanted)]
            {
                if is_wanted {
                    let name = format!("{name}, steps in one launch of {kernel}");
                    self.test(&name, profile.clone(), |device| {
                        steps(selftest::check_decoder(device, decoder, seed))
                    });
                }
            }
        }
        // The weights of these decoders are smaller than a ring of the usual size. A shorter ring
        // wraps several times in a step. Cases: a dense decoder with several rows; a mixture with
        // one row and with several.
        let rings = self.is_wanted("persistent") || self.is_wanted("rings");
        let short = [(1, 8, 170_000), (25, 1, 100_000), (25, 8, 185_000)];
        for (seed, persistent_rows, shared_bytes) in short.into_iter().filter(|_| rings) {
            let short = Profile { persistent_rows, shared_bytes, ..general.clone() };
            let decoder = selftest::decoders()[seed - 1];
            let name = format!("decoder {seed}, steps of up to {persistent_rows} rows with a short ring");
            self.test(&name, short, |device| steps(selftest::check_decoder(device, decoder, seed as u64)));
        }
        for (index, (decoder, before)) in selftest::chains().into_iter().enumerate() {
            let name = format!("chain {}", index + 1);
            let all = self.is_wanted("persistent") || self.is_wanted("chains");
            if all || self.is_wanted(&name) {
                let name = format!("{name}, steps in flight");
                self.test(&name, usual.clone(), |device| {
                    steps(selftest::check_chain(device, decoder, before, !all))
                });
            }
        }
        if self.is_wanted("persistent") || self.is_wanted("long") {
            let plain = Profile { persistent: false, ..usual.clone() };
            self.test("long sequences in one launch each", usual, |device| {
                steps(selftest::check_long(device, &device.with_profile(plain)))
            });
        }
    }

    /// Tests of every family of kernels of products, and of each tile alone: small products never
    /// choose the wide ones.
    fn products(&mut self) {
        for (name, products) in [("planes", Products::Planes), ("mma", Products::Mma)] {
            if !self.is_wanted(name) {
                continue;
            }
            for kind in [OpKind::Linear, OpKind::Fused, OpKind::Attention] {
                let profile = Profile { products, ..self.usual.clone() };
                self.test(&format!("{kind:?}, products by {name}"), profile, |device| cases(device, kind));
            }
        }
        let tiles = self.usual.products == Products::Wgmma && self.is_wanted("tiles");
        for tile in (0..MOST_TILES).filter(|_| tiles) {
            let profile = Profile { only_tile: Some(tile), ..self.usual.clone() };
            self.test(&format!("Fused, tile {tile} alone"), profile, |device| cases(device, OpKind::Fused));
        }
    }

    /// Tests of attention whose positions are split over blocks.
    fn splits(&mut self) {
        for kind in selftest::kinds().into_iter().filter(|kind| selftest::may_split(*kind)) {
            let profile = Profile { long: 3, split_len: 32, n_blocks: 100_000, ..self.usual.clone() };
            self.test(&format!("{kind:?}, positions split"), profile, |device| cases(device, kind));
        }
    }
}

fn cases(device: &CudaDevice, kind: OpKind) -> Result<String, String> {
    selftest::check_kind(device, kind).map(|n| format!("{n} cases"))
}

fn steps(result: Result<usize, String>) -> Result<String, String> {
    result.map(|n| format!("{n} steps"))
}

/// Runs the tests that the arguments name.
pub fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let names = names();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(name)) {
        eprintln!("no test is called '{unknown}', expected some of: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let prepared = CudaDevice::new(0).and_then(|device| {
        println!("{}; {}", device.describe(), device.kernels().origin());
        let usual = Profile::new(device.context().facts());
        let run = Run { wanted, device, usual, failed: false };
        run.compile().map(|()| run)
    });
    let mut run = match prepared {
        Ok(run) => run,
        Err(error) => {
            eprintln!("no tests were run: {error}");
            return ExitCode::FAILURE;
        }
    };
    run.ops();
    if run.usual.products == Products::Wgmma {
        run.persistent();
    }
    run.products();
    if run.is_wanted("allocations") {
        run.test("allocations", run.usual.clone(), allocations);
    }
    if run.is_wanted("splits") {
        run.splits();
    }
    if run.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
