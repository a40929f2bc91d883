//! Cases that every device must pass, compared with the reference interpreter, on every instruction
//! set of this machine.

#![allow(clippy::unwrap_used)]

use device::Device;
use device::{Activation, KvType, Limits, Numerics, OpKind, ValueId};
use device_testing::{
    Case, PlanBuilder, Sequences, cases, check_cases, check_op_cases, compare, compare_chunks, limits,
    mini_transformer,
};
use ingle_device_cpu::{CpuDevice, Isa, Options};
use weights::BlockType;

/// Tolerance for this device's arithmetic in a case.
///
/// Sums in other orders, and exponentials accurate to 3e-7, stay within a few times the error of
/// f32 in any order. Quantised weights are multiplied with activations rounded to 1/127 of the
/// largest of 32. That is an error of about 0.7 % of a product's size, and five times that in the
/// worst of thousands of products. Each following layer adds the same amount.
fn tolerance(case: &Case) -> f32 {
    // Types without an integer kernel are decoded and multiplied in f32.
    let decoded = case.block == BlockType::I16_ROWS || BlockType::GGUF_EXTRA.contains(&case.block);
    let plain = case.block.is_float() || decoded;
    match case.kind {
        _ if plain => 4.0 * case.tolerance,
        OpKind::Fused => 0.15 + case.tolerance,
        _ => 0.04 + case.tolerance,
    }
}

/// Checks every `every`th case.
fn check(isa: Isa, threads: usize, every: usize) {
    let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
    match check_cases(&device, check_op_cases().into_iter().step_by(every), tolerance) {
        Ok(n) => println!("{n} cases on {isa} with {threads} threads"),
        Err(failures) => panic!("{isa}, {threads} threads: {failures}"),
    }
}

/// Every case runs on the best instruction set of this machine, and on AVX2, which most machines
/// have. Other instruction sets get every second case, or all of them in long runs.
#[test]
fn agrees_with_the_reference_on_every_instruction_set() {
    for isa in Isa::available() {
        let is_usual = isa == Isa::detect() || isa == Isa::Avx2;
        check(isa, 2, if is_usual || cases(1) > 1 { 1 } else { 2 });
    }
}

/// One worker alone, then more workers than most test machines have and than some shares have
/// units.
#[test]
fn agrees_for_any_number_of_threads() {
    for threads in [1, 5] {
        check(Isa::detect(), threads, 1);
    }
}

/// Rows are long enough that their activations are rounded to BF16 if the processor multiplies it,
/// beside a matrix that reads them in f32. They run alone, in chunks, through a gate and by
/// experts.
#[test]
fn wide_matrices_in_bf16_agree() {
    const COLS: usize = 544;
    let bf16 = BlockType::BF16;
    let plan = |build: &dyn Fn(&mut PlanBuilder) -> ValueId| {
        let mut b = PlanBuilder::new(1, 64);
        let y = build(&mut b);
        b.finish(y)
    };
    let plans = [
        plan(&|b| {
            let x = b.embed(COLS);
            let x = b.rms_norm(x, COLS);
            let (y, z) = (b.linear(x, 33, bf16, true), b.linear(x, 33, BlockType::F32, false));
            b.add(y, z)
        }),
        plan(&|b| {
            let x = b.embed(COLS);
            let (gate, up) = (b.linear(x, 20, bf16, false), b.linear(x, 20, bf16, false));
            b.gate(gate, up, Activation::Silu)
        }),
        plan(&|b| {
            let router = b.embed_from(5, BlockType::F32, 2.0);
            let (ids, _) = b.route(router, 2, true, 1.0, false);
            let x = b.embed(COLS);
            b.expert_linear((x, false), ids, (5, 33), bf16)
        }),
    ];
    for isa in Isa::available() {
        let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(2) }).unwrap();
        for (index, plan) in plans.iter().enumerate() {
            let limits = limits(&plan.kv);
            let mut sequences = Sequences::new(3, &plan.kv, &limits, 64);
            let steps = [1, 2, 5, 17, 40].map(|n| sequences.step(&[(0, n)])).to_vec();
            let (name, kind) = (format!("plan {index}"), OpKind::Fused);
            let mut case =
                Case { name, kind, block: bf16, plans: vec![plan.clone()], limits, steps, tolerance: 1e-4 };
            // A rounding is 2^-9 of a number. A sum's error is about 1e-3 of its usual size, and
            // five times that in the worst case. A gate multiplies two such sums, of up to twice
            // that size.
            let tolerance = if isa.multiplies_bf16() { 2e-2 } else { case.tolerance };
            compare(&device, &case, tolerance).unwrap_or_else(|e| panic!("{isa}: {e}"));
            case.limits.numerics = Numerics::Deterministic;
            compare_chunks(&device, &case, 0.0).unwrap_or_else(|e| panic!("{isa}: {e}"));
        }
    }
}

/// A row has the same bits alone and in a chunk. Every case runs on the best instruction set of
/// this machine, and every third on the others, or all of them in long runs.
#[test]
fn deterministic_rows_are_the_same_bits_in_any_company() {
    for isa in Isa::available() {
        let every = if isa == Isa::detect() || cases(1) > 1 { 1 } else { 3 };
        let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(2) }).unwrap();
        let mut failures = Vec::new();
        // Q8_0 is a KV type of Metal only.
        let all = check_op_cases().into_iter();
        let all = all.filter(|case| device.kv_types().contains(&case.limits.kv_type));
        for mut case in all.step_by(every) {
            case.limits.numerics = Numerics::Deterministic;
            failures.extend(compare_chunks(&device, &case, 0.0).err());
        }
        assert!(failures.is_empty(), "{isa}:\n{}", failures.join("\n"));
    }
}

/// Sequences have two chunks of positions (256 each), so that partial results are combined. One
/// worker combines them with rows of a prompt, several with single rows, for fewer and for more
/// sequences than can be split.
#[test]
fn long_sequences_agree_and_keep_their_bits() {
    for (isa, threads) in Isa::available().into_iter().zip([2, 3, 4, 5]) {
        let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
        for kv_type in [KvType::F32, KvType::F16, KvType::I16, KvType::I8] {
            let plan = mini_transformer(5, BlockType::F32);
            let limits = Limits { kv_type, numerics: Numerics::Deterministic, ..limits(&plan.kv) };
            let mut sequences = Sequences::new(9, &plan.kv, &limits, 60);
            let spans: [&[(usize, usize)]; 15] = [
                &[(0, 64)],
                &[(1, 64)],
                &[(1, 61)],
                &[(0, 64)],
                &[(0, 60)],
                &[(0, 3)],
                &[(0, 1)],
                &[(0, 1)],
                &[(0, 64)],
                &[(0, 50), (1, 14)],
                &[(0, 1), (1, 50)],
                &[(1, 63), (0, 1)],
                &[(0, 1), (1, 1)],
                &[(0, 1), (1, 30), (2, 1)],
                &[(0, 1), (1, 1), (2, 1)],
            ];
            let steps = spans.iter().map(|spans| sequences.step(spans)).collect();
            let case = Case {
                name: format!("long sequences, {isa}, {threads} threads, {kv_type:?}"),
                kind: OpKind::Fused,
                block: BlockType::F32,
                plans: vec![plan],
                limits,
                steps,
                tolerance: match kv_type {
                    KvType::F32 => 2e-5,
                    KvType::I8 => 5e-3,
                    _ => 2e-3,
                },
            };
            compare(&device, &case, tolerance(&case)).unwrap();
            compare_chunks(&device, &case, 0.0).unwrap();
        }
    }
}
