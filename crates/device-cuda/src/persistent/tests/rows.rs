//! Tests of the kernel for several rows: the decoders that it runs, and its arguments.

use super::super::header::{
    EXCHANGE_ROWS_GATED, EXCHANGE_ROWS_MIDDLE, EXCHANGE_ROWS_QKV, ROTARY_AT, ROWS_EXCHANGE,
};
use super::super::rows::*;
use super::*;

/// The reason why a decoder has no kernel for several rows, though it has that for one row.
fn one_row_alone(shape: Decoder, profile: &Profile, limits: impl FnOnce(Limits) -> Limits) -> String {
    let plan = plan_of(shape);
    let limits = limits(f16(&plan.kv));
    let found = Persistent::new(&plan, &lower(&plan, profile.passes), &limits, profile);
    found.unwrap().several.unwrap_err()
}

fn refused(shape: Decoder) -> String {
    one_row_alone(shape, &Profile::hopper(), |limits| limits)
}

#[test]
fn parts_of_the_exchange_follow_each_other() {
    // Inputs of 8,192 and 32,768 columns.
    let columns = [EXCHANGE_ROWS_MIDDLE, EXCHANGE_ROWS_QKV - EXCHANGE_ROWS_GATED].map(|bytes| bytes / 16);
    assert_eq!(columns, [8192, 32_768]);
    assert_eq!(ROTARY_AT, 2 * ROWS_EXCHANGE + 256);
}

#[test]
fn dense_decoders_have_it_and_its_limits_have_reasons() {
    let dense = decoders().into_iter().filter(|decoder| decoder.experts.is_none());
    for decoder in dense.filter(|decoder| decoder.kv_type == KvType::F16) {
        assert_eq!(found(&plan_of(decoder)).unwrap().several, Ok(8), "{decoder:?}");
    }
    assert_eq!(found(&plan_of(mixture())).unwrap().several, Ok(8));
    let many = Experts { n: 16, n_used: 9, ..Experts::SMALL };
    assert!(refused(Decoder { experts: Some(many), ..SMALL }).contains("experts of a token: 9"));
    let without_compiler = Profile { other_shapes: false, ..Profile::hopper() };
    let files = Decoder { head_dim: 128, n_heads: 4, ..mixture() };
    assert!(one_row_alone(files, &without_compiler, |limits| limits).contains("no kernel is prebuilt"));
    let wide = Decoder { n_kv_heads: 8, n_heads: 16, n_layers: 1, ..SMALL };
    assert!(refused(Decoder { residual: 132 * 40, ..wide }).contains("rows of the residual in a block: 40"));
    assert!(refused(Decoder { ffn: 32_776, ..wide }).contains("columns of the network: 32776"));
    let heads = Decoder { head_dim: 128, n_heads: 72, n_kv_heads: 36, ..wide };
    assert!(refused(heads).contains("columns of attention: 9216"));
    // Each row needs a block for every KV head.
    let most = |n_kv_heads: usize| {
        let shape = Decoder { n_kv_heads, n_heads: 2 * n_kv_heads, n_layers: 1, ..SMALL };
        found(&plan_of(shape)).unwrap()
    };
    for n_kv_heads in [16, 20, 32, 60] {
        let found = most(n_kv_heads);
        assert_eq!(found.several, Ok(8.min(found.n_blocks() / n_kv_heads)), "{n_kv_heads}");
    }
    assert!(most(64).several.is_ok_and(|most| most == 2));
    let usual = Profile::hopper();
    let none = |profile: Profile| one_row_alone(SMALL, &profile, |limits| limits).contains("profile");
    assert!(none(Profile { persistent_rows: 1, ..usual.clone() }));
    let small = Profile { shared_bytes: 140_000, ..usual.clone() };
    assert!(one_row_alone(SMALL, &small, |limits| limits).contains("slots of shared memory"));
    // A program whose steps have one output.
    for change in [|limits| Limits { max_rows: 1, ..limits }, |limits| Limits { max_outputs: 1, ..limits }] {
        assert!(one_row_alone(SMALL, &usual, change).contains("no step has several"));
    }
    let plan = plan_of(SMALL);
    let units = lower(&plan, usual.passes);
    let of = |limits: &Limits, profile: &Profile| {
        Persistent::new(&plan, &units, limits, profile).unwrap().several.unwrap()
    };
    let limits = f16(&plan.kv);
    assert_eq!(of(&Limits { max_outputs: 3, ..limits.clone() }, &usual), 3);
    // The rows may be of one sequence.
    assert_eq!(of(&Limits { max_spans: 1, ..limits.clone() }, &usual), 8);
    assert_eq!(of(&limits, &Profile { persistent_rows: 4, ..usual }), 4);
}

#[test]
fn a_few_rows_of_a_mixture_that_the_kernel_does_not_take_go_one_after_the_other() {
    let mixture = || {
        let many = Experts { n: 16, n_used: 9, bias: true, ..Experts::SMALL };
        Decoder { experts: Some(many), ..SMALL }
    };
    let usual = Profile::hopper();
    let in_turn = |shape: Decoder, profile: &Profile, change: fn(Limits) -> Limits| {
        let plan = plan_of(shape);
        let limits = change(f16(&plan.kv));
        Persistent::new(&plan, &lower(&plan, profile.passes), &limits, profile).unwrap()
    };
    let found = in_turn(mixture(), &usual, |limits| limits);
    assert_eq!(found.in_turn, 3);
    let few = RowClass::ALL.into_iter().filter(|class| *class <= RowClass::Four);
    assert!(few.into_iter().all(|class| found.rows_of(class) == Rows::One));
    assert_eq!(in_turn(mixture(), &usual, |limits| Limits { max_outputs: 2, ..limits }).in_turn, 2);
    assert_eq!(in_turn(mixture(), &usual, |limits| Limits { max_rows: 1, ..limits }).in_turn, 1);
    assert_eq!(
        in_turn(mixture(), &Profile { persistent_rows: 1, ..usual.clone() }, |limits| limits).in_turn,
        1
    );
    assert_eq!(in_turn(SMALL, &Profile { persistent_rows: 1, ..usual }, |limits| limits).in_turn, 1);
}

#[test]
fn two_rows_of_a_mixture_with_large_experts_take_a_launch_each() {
    let large = Experts { n: 4, n_used: 4, ffn: 2080, block: BlockType::MXFP4, ..Experts::SMALL };
    let large = found(&plan_of(Decoder { residual: 2880, experts: Some(large), ..SMALL })).unwrap();
    let small = found(&plan_of(mixture())).unwrap();
    let of =
        |found: &Persistent| [RowClass::One, RowClass::Two, RowClass::Four].map(|class| found.rows_of(class));
    assert_eq!(of(&large), [Rows::One, Rows::One, Rows::Several]);
    assert_eq!(of(&small), [Rows::One, Rows::Several, Rows::Several]);
    assert_eq!(large.several, Ok(8));
}

#[test]
fn it_has_arguments_and_shared_memory_of_its_own() {
    // Two quads of the residual, three of the network, two groups of pages.
    let shape = Decoder { residual: 1056, ffn: 2112, windows: true, ..SMALL };
    let plan = plan_of(shape);
    let mine = found(&plan).unwrap();
    let (one, shared_of_one) = arguments_of(&plan, &mine, Rows::One);
    let (several, shared) = arguments_of(&plan, &mine, Rows::Several);
    assert_eq!((one.most_quads, one.table_stride), (3, 0));
    // 512 positions in pages of 16.
    assert_eq!((several.most_quads, several.table_stride, several.n_splits), (4, 2 * 32, 0));
    assert_eq!((several.n_phases, several.slot_bytes), (one.n_phases, one.slot_bytes));
    let usual = Profile::hopper().shared_bytes;
    // PERSISTENT_SHARED_ROWS(64, 3), the input, the phases.
    let rest = 4752 + 12 * 64 + 36 * 3 * 64 + 64 * 3 + 33_024 + 4 * 16_640;
    let rest = rest + size_of::<PersistentPhase>() as u32 * several.n_phases;
    assert_eq!(shared, several.n_slots * several.slot_bytes + rest);
    assert!(shared <= usual && shared + several.slot_bytes > usual && shared_of_one <= usual);
    assert!(several.n_slots < one.n_slots && several.in_flight < several.n_slots);
}

#[test]
fn its_kernel_has_a_name_and_constants_of_its_own() {
    let (mine, one, phases) = table_of(SMALL);
    assert_eq!(mine.kernel(Rows::Several).name(), "persistent_decode_rows_64_3");
    let plan = plan_of(SMALL);
    let q8_0 = Limits { kv_type: KvType::Q8_0, ..f16(&plan.kv) };
    let profile = Profile::hopper();
    let over_q8_0 = Persistent::new(&plan, &lower(&plan, profile.passes), &q8_0, &profile).unwrap();
    let kernel = over_q8_0.kernel(Rows::Several);
    let (file, name) = (kernel.file(), kernel.name());
    let names = ["persistent/decode_rows_q8_0_64_3.cu", "persistent_decode_rows_q8_0_64_3"];
    assert_eq!([&file[..], &name], names);
    let (several, _) = arguments_of(&plan, &mine, Rows::Several);
    let text = |rows: Rows, arguments: &PersistentArguments| {
        let general = source(&mine.kernel(rows).file()).unwrap();
        fixed::fixed_source(general, arguments, &phases, mine.n_blocks(), None).unwrap()
    };
    let (of_one, of_several) = (text(Rows::One, &one), text(Rows::Several, &several));
    assert!(
        of_several.contains("PERSISTENT_ROWS_KERNEL(persistent_decode_rows_64_3, 64, 3, PAGES_F16, false)")
            && !of_several.contains(" n_rows")
    );
    assert!(of_several.contains(&format!("uint n_slots = {};", several.n_slots)));
    // No text depends on the context's length.
    assert!([&of_one, &of_several].iter().all(|text| !text.contains("table_stride =")));
}

#[test]
fn halves_have_this_kernel_alone() {
    let classes = [RowClass::One, RowClass::Two, RowClass::Four, RowClass::Eight];
    let of = |mine: &Persistent| (mine.kernels().collect::<Vec<_>>(), classes.map(|of| mine.rows_of(of)));
    let (both, one) = ([Rows::One, Rows::Several], Rows::Several);
    let quantised = found(&plan_of(SMALL)).unwrap();
    assert_eq!(of(&quantised), (both.to_vec(), [Rows::One, one, one, one]));
    for decoder in half_decoders() {
        let mine = found(&plan_of(decoder)).unwrap();
        assert_eq!(of(&mine), (vec![one], [one; 4]), "{decoder:?}");
        assert!(decoder.has_halves());
    }
    // A program of one sequence, and a profile without steps of several, still have it.
    let shape = Decoder { head: BlockType::F16, ..SMALL };
    let plan = plan_of(shape);
    let usual = Profile::hopper();
    let units = lower(&plan, usual.passes);
    let several = |limits: Limits, profile: &Profile| {
        Persistent::new(&plan, &units, &limits, profile).map(|mine| mine.several)
    };
    let limits = f16(&plan.kv);
    assert_eq!(several(limits.clone(), &usual), Ok(Ok(8)));
    assert_eq!(several(Limits { max_rows: 1, ..limits.clone() }, &usual), Ok(Ok(1)));
    assert_eq!(several(limits.clone(), &Profile { persistent_rows: 0, ..usual.clone() }), Ok(Ok(1)));
    // A decoder beyond the limits of this kernel has no kernel.
    assert!(refusal(Decoder { ffn: 32_776, ..shape }).contains("columns of the network: 32776"));
}

#[test]
fn slots_hold_a_step_of_halves() {
    use BlockType::{BF16, F16, Q8_0};
    let slots = |shape: Decoder| {
        let plan = plan_of(shape);
        let (arguments, shared) = arguments_of(&plan, &found(&plan).unwrap(), Rows::Several);
        assert!(arguments.in_flight < arguments.n_slots && shared <= Profile::hopper().shared_bytes);
        [arguments.slot_bytes, arguments.n_slots, arguments.in_flight]
    };
    let all = Decoder { block: BF16, head: BF16, ..SMALL };
    assert_eq!(slots(all)[0], 8 * 2048);
    // A slot holds two steps of `q8` too.
    let mixed = Decoder { block: Q8_0, head: F16, ..SMALL };
    assert_eq!((slots(mixed)[0], 8 * PackedCodec::of(Q8_0).unwrap().unit), (18_432, 8704));
    // As wide and deep as models are.
    let of = |head_dim: usize, n_heads: usize, n_layers: usize| {
        let shape = Decoder { residual: 2048, head_dim, n_heads, n_kv_heads: 8, ffn: 1024, n_layers, ..all };
        [slots(shape)[1], slots(Decoder { block: Q8_0, ..shape })[1]]
    };
    assert_eq!([of(64, 32, 16), of(128, 16, 28), of(128, 24, 28)], [[6, 5], [6, 5], [5, 5]]);
    // Halves take twice the bytes of 8-bit integers without their scales.
    let read = |block| {
        let columns = Decoder { residual: 1024, n_heads: 16, n_kv_heads: 8, ffn: 1024, ..SMALL };
        found(&plan_of(Decoder { block, head: block, ..columns })).unwrap().weight_bytes()
    };
    assert_eq!(read(BF16) * 1088, read(Q8_0) * 2048);
}

#[test]
fn an_exchange_is_there_only_where_a_plan_has_the_kernel() {
    // Bytes of the exchanges.
    let bytes = |shape: Decoder, persistent_rows: usize| {
        let plan = plan_of(shape);
        let profile = Profile { persistent_rows, ..Profile::hopper() };
        let units = lower(&plan, profile.passes);
        let parts = std::iter::once((&plan, &units[..]));
        let (found, all) = persistent_of(parts, &f16(&plan.kv), &profile, 0);
        let weights = found[0].as_ref().unwrap().products.iter().map(|product| product.bytes().0);
        all.total() - weights.map(|bytes| bytes.next_multiple_of(256)).sum::<usize>()
    };
    assert_eq!(bytes(SMALL, 1), EXCHANGE_BYTES);
    let of_several = Rows::Several.exchange_bytes();
    assert_eq!(bytes(SMALL, 8), EXCHANGE_BYTES + of_several);
    assert_eq!(bytes(Decoder { head: BlockType::F16, ..SMALL }, 8), of_several);
    // Both exchanges, the turn, and for each block three rotations of seven rows of 256 columns.
    assert_eq!(of_several, 2 * ROWS_EXCHANGE + 256 + MAX_BLOCKS * 7 * 3 * 128 * 8);
    assert_eq!(Rows::One.exchange_bytes(), EXCHANGE_BYTES);
}
