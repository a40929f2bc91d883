use super::header::{
    ADD, ADD_EXPERTS, CONTINUED, CONTINUES, EXCHANGE_INPUT, EXCHANGE_MIDDLE, EXPERTS, GATE, HEAD, LEAST_SLOT,
    MAX_EXPERTS, MAX_WIDE, OF_THREE, QKV, REVERSED, ROUTE,
};
use super::products::PackedCodec;
use super::*;
use crate::arguments::{PersistentArguments, PersistentPhase};
use crate::kernels::source;
use crate::layout::StepLayout;
use crate::selftest::{Decoder, Experts, Mix, decoders, half_decoders};
use ::weights::BlockType;
use device::{KvLayout, ValueId, WeightId};
use device_lower::fusion::fuse;
use device_lower::passes::lower;
use device_lower::table::RowClass;
use device_testing::limits;

mod interpreter;
mod kernel;
mod phases;
mod rows;

const SMALL: Decoder =
    Decoder { n_heads: 6, ffn: 640, n_vocab: 300, head_norms: true, windows: true, ..Decoder::SMALL };

fn plan_of(shape: Decoder) -> Plan {
    shape.blank_plan()
}

fn f16(kv: &KvLayout) -> Limits {
    Limits { kv_type: KvType::F16, ..limits(kv) }
}

/// The persistent form of a plan, fused as the device fuses it.
fn found(plan: &Plan) -> Result<Persistent, String> {
    let profile = Profile::hopper();
    let plan = fuse(plan, profile.rules);
    Persistent::new(&plan, &lower(&plan, profile.passes), &f16(&plan.kv), &profile)
}

fn refusal(shape: Decoder) -> String {
    found(&plan_of(shape)).map(|_| ()).unwrap_err()
}

#[test]
fn decoders_are_found_whatever_is_fused_and_the_embedding_stays_outside() {
    for post_norms in [false, true] {
        let plan = plan_of(Decoder { post_norms, ..SMALL });
        let mine = found(&plan).unwrap();
        assert_eq!((mine.decoder.layers.len(), mine.decoder.rotations.len()), (3, 1));
        assert_eq!(mine.decoder.first, ValueId(0));
        assert_eq!(mine.decoder.layers[1].window, Some(40));
        assert_eq!(mine.decoder.layers[2].post_ffn.is_some(), post_norms);
        assert!(mine.chooses);
        // Before it the embedding, after it the choice.
        let [before, after] = &mine.outside;
        assert_eq!((before.len(), after.len()), (1, 1));
        let unfused = decoder(&plan).unwrap();
        assert_eq!(unfused.layers, mine.decoder.layers);
    }
}

#[test]
fn what_the_kernel_cannot_run_is_refused_with_a_reason() {
    assert!(
        refusal(Decoder { head_dim: 32, n_heads: 10, ..SMALL }).contains("5 query heads a KV head of 32")
    );
    assert!(refusal(Decoder { block: BlockType::F32, ..SMALL }).contains("in F32"));
    let plan = plan_of(SMALL);
    let (profile, limits) = (Profile::hopper(), f16(&plan.kv));
    let units = lower(&plan, profile.passes);
    let of = |limits: &Limits, profile: &Profile| Persistent::new(&plan, &units, limits, profile).map(|_| ());
    assert_eq!(of(&limits, &profile), Ok(()));
    let deterministic = Limits { numerics: Numerics::Deterministic, ..limits.clone() };
    assert!(of(&deterministic, &profile).unwrap_err().contains("--deterministic"));
    let f32 = Limits { kv_type: KvType::F32, ..limits.clone() };
    assert!(of(&f32, &profile).unwrap_err().contains("F32"));
    assert!(of(&limits, &Profile { persistent: false, ..profile.clone() }).is_err());
    // A third copy that does not fit is left out.
    let parts = || std::iter::once((&plan, &units[..]));
    let (_, all) = persistent_of(parts(), &limits, &profile, 0);
    let (found, none) = persistent_of(parts(), &limits, &Profile { most_copies: 1000, ..profile }, 0);
    assert!(all.total() > 0 && none.total() == 0 && found[0].as_ref().unwrap_err().contains("third copy"));
}

#[test]
fn an_op_among_the_layers_or_a_reader_outside_is_seen() {
    let mut plan = plan_of(SMALL);
    // Something else reads the residual after the first layer.
    let inner = plan.nodes.iter().filter(|node| matches!(node.op, device::Op::Add { .. })).nth(1).unwrap();
    let x = inner.op.writes()[0];
    let Some(device::Op::Argmax { x: of, .. }) = plan.nodes.last_mut().map(|node| &mut node.op) else {
        panic!("the last Op chooses");
    };
    *of = x;
    assert!(decoder(&plan).unwrap_err().contains("reads"));
}

#[test]
fn phases_follow_the_layers() {
    let plan = plan_of(Decoder { bias: true, post_norms: true, ..SMALL });
    let mine = found(&plan).unwrap();
    let weights: Vec<u64> = (0..13).map(|i| 1000 + i).collect();
    let vector = |id: WeightId| 5000 + u64::from(id.0);
    let pages = |layer: device::KvLayerId| (u64::from(layer.0) * 100, 77, 3);
    let places =
        PhasePlaces { weights: &weights, biases: &[1, 2, 3], vector: &|id| Ok(vector(id)), pages: &pages };
    let phases = mine.phases(&plan, &places).unwrap();
    let of = |f: &dyn Fn(&PersistentPhase) -> u32| phases.iter().map(f).collect::<Vec<_>>();
    let layer = [QKV, ADD, GATE, ADD];
    assert_eq!(of(&|p| p.kind), [&layer[..], &layer, &layer, &[HEAD]].concat());
    let inputs = [EXCHANGE_INPUT, EXCHANGE_ATTENDED, EXCHANGE_MIDDLE, EXCHANGE_GATED];
    assert_eq!(of(&|p| p.input)[..4], inputs);
    // 6 + 2 + 2 heads of 64 columns; 320 rows; twice 640; 320; 300 tokens, all in groups of 8.
    assert_eq!(of(&|p| p.groups)[..4], [80, 40, 160, 40]);
    assert_eq!(phases[12].groups, 38);
    assert_eq!(of(&|p| p.chunks)[..4], [40, 48, 40, 80]);
    assert!(phases[..12].iter().all(|p| p.k_quads == 1 && p.codec == 0));
    assert_eq!((phases[4].window, phases[4].bias, phases[4].pages, phases[4].page_bytes), (40, 2, 100, 77));
    let norm = |layer: usize| vector(mine.decoder.layers[layer].norm);
    assert_eq!((phases[3].norm_or_sinks, phases[11].norm_or_sinks), (norm(1), vector(mine.decoder.norm)));
    assert!(
        phases[1].post_norm != 0
            && phases[3].post_norm != 0
            && phases[0].rotation == 1
            && phases[4].rotation == 0
    );
    assert_eq!(phases.iter().map(|p| p.weights).collect::<Vec<_>>(), weights);
}

#[test]
fn q_k_and_v_of_different_types_are_phases_in_a_row() {
    use BlockType::{Q4_0, Q4_1, Q6_K, Q8_0};
    let of = |mix: Mix| -> Vec<[u32; 6]> {
        let (_, _, phases) = table_of(Decoder { mix: Some(mix), bias: true, ..SMALL });
        let qkv = phases.iter().filter(|phase| phase.kind == QKV);
        let numbers = qkv.map(|p| [p.qkv_part, p.first_row, p.groups, p.codec, p.input, p.bias as u32]);
        numbers.collect()
    };
    // 6, 2 and 2 heads of 64 columns; every second layer has v of another type.
    let v = of(Mix { k: Q4_0, v: Q8_0, down: Q6_K });
    let first = [CONTINUED, 0, 64, 0, EXCHANGE_INPUT, 1];
    let last = |codec: u32| [CONTINUES | REVERSED, 512, 16, codec, EXCHANGE_INPUT, 1 + 4 * 512];
    assert_eq!(v, [first, last(2), first, last(0), first, last(2)]);
    let k = of(Mix { k: Q4_1, v: Q4_1, down: Q4_0 });
    assert_eq!(k[..2], [[CONTINUED, 0, 48, 0, 0, 1], [CONTINUES | REVERSED, 384, 32, 1, 0, 1 + 4 * 384]]);
    let all = of(Mix { k: Q4_1, v: Q8_0, down: Q4_0 });
    let flags: Vec<u32> = all.iter().take(3).map(|part| part[0]).collect();
    assert_eq!(flags, [CONTINUED | OF_THREE, CONTINUES | CONTINUED | REVERSED, CONTINUES | OF_THREE]);
    assert_eq!(all.iter().map(|part| part[1]).take(3).collect::<Vec<_>>(), [0, 384, 512]);
    // A block has one pass of a part.
    let wide = Decoder { residual: 512, head_dim: 128, n_heads: 80, n_kv_heads: 10, ..SMALL };
    let mix = Some(Mix { k: Q4_0, v: Q8_0, down: Q4_0 });
    assert!(refusal(Decoder { mix, n_layers: 1, ..wide }).contains("rows of a part of q, k and v"));
    assert_eq!(found(&plan_of(Decoder { n_layers: 1, ..wide })).map(|_| ()), Ok(()));
}

/// A block has as many rows of two parts as it would have of one.
#[test]
fn two_parts_are_shared_as_equally_as_one() {
    for (first, second, n) in [(320, 64, 128), (512, 128, 128), (640, 128, 128), (24, 16, 10)] {
        let own = |groups: u32, share: u32| (share + 1) * groups / n - share * groups / n;
        let mut both = (0..n).map(|b| own(first, b) + own(second, n - 1 - b));
        assert!(both.all(|of| of * n == first + second), "{first} {second} {n}");
    }
}

/// The arguments of a kernel's launch, and the bytes of its shared memory.
fn arguments_of(plan: &Plan, mine: &Persistent, rows: Rows) -> (PersistentArguments, u32) {
    let limits = f16(&plan.kv);
    let step = StepLayout::new(std::slice::from_ref(plan), &limits, 4);
    mine.arguments(plan, &limits, &step, Profile::hopper().shared_bytes, rows)
}

/// The arguments and the table of a decoder whose addresses are arbitrary.
fn table_of(shape: Decoder) -> (Persistent, PersistentArguments, Vec<PersistentPhase>) {
    let plan = plan_of(shape);
    let mine = found(&plan).unwrap();
    let weights: Vec<u64> = (0..mine.products.len() as u64).map(|i| 4096 * (i + 1)).collect();
    let biases: Vec<u64> = mine.decoder.layers.iter().map(|_| u64::from(shape.bias)).collect();
    let places =
        PhasePlaces { weights: &weights, biases: &biases, vector: &|_| Ok(16), pages: &|_| (64, 77, 3) };
    let phases = mine.phases(&plan, &places).unwrap();
    let (arguments, _) = arguments_of(&plan, &mine, mine.rows_of(RowClass::One));
    (mine, arguments, phases)
}

/// The text that a test compiles with NVRTC by hand, or `None`.
fn fixed_text(shape: Decoder) -> Option<String> {
    let (mine, arguments, phases) = table_of(shape);
    let general = mine.source(mine.rows_of(RowClass::One));
    fixed::fixed_source(&general, &arguments, &phases, mine.n_blocks(), Some("RowsOfBlocks<Q8_0>"))
}

#[test]
fn a_kernel_of_its_own_has_what_never_changes_as_constants() {
    let text = fixed_text(Decoder { windows: true, ..SMALL }).unwrap();
    let of = |name: &str| {
        let rest = text.split_once(&format!("struct {name} : ")).unwrap().1;
        rest.split_once("};").unwrap().0
    };
    let table = of("PersistentTable");
    assert!(table.starts_with("PersistentArguments {"));
    assert!(table.contains("uint hidden = 320;") && table.contains("float softcap = 0.0f;"));
    assert!(!table.contains("n_rows") && !table.contains("stop_phase") && !table.contains(" x "));
    // Every second layer has a window and no rotation; all have norms of heads and no biases; 80
    // groups are not shared equally.
    let qkv = of("PersistentPhase0");
    assert!(qkv.contains("uint groups = 80;") && qkv.contains("float * bias = nullptr;"));
    assert!(
        ["window", "rotation", "q_norm_or_second_bias", "own_groups"]
            .iter()
            .all(|name| !qkv.contains(&format!("{name} =")))
    );
    assert!(qkv.contains("FEWEST = 0;") && qkv.contains("MOST = 1;"));
    assert!(of("PersistentPhase2").contains("gate_refill = 1;"));
    assert!(
        of("PersistentHead").contains("kind = 3;")
            && text.contains("PERSISTENT_KERNEL(persistent_decode_64_3, 64, 3, PAGES_F16, false)")
    );
    assert!(text.contains("ONE(PersistentPhase3)") && !text.contains("PersistentPhase4"));
}

#[test]
fn layers_whose_types_differ_share_a_kernel_that_has_all_their_codecs() {
    let mixed: Vec<Decoder> = decoders().into_iter().filter(|decoder| decoder.mix.is_some()).collect();
    assert_eq!(mixed.len(), 10);
    for decoder in &mixed {
        let text = fixed_text(*decoder).unwrap();
        assert!(text.contains("qkv_part = 5;") || text.contains("qkv_part = 7;"), "{decoder:?}");
    }
    let text = fixed_text(mixed[0]).unwrap();
    let of =
        |name: &str| text.split_once(&format!("struct {name} : ")).unwrap().1.split_once("};").unwrap().0;
    // q and k in q4m; v and down in q4m and q6; the head in q6.
    assert!(of("PersistentPhase0").contains("codec = 1;") && of("PersistentPhase0").contains("CODECS = 2;"));
    for name in ["PersistentPhase1", "PersistentPhase4"] {
        assert!(!of(name).contains(" codec = ") && of(name).contains("CODECS = 10;"), "{name}");
    }
    assert!(of("PersistentHead").contains("codec = 3;"));
}

/// Numbers without a literal in C++, which the general kernel reads as arguments.
#[test]
fn factors_that_are_not_finite_are_left_to_the_general_kernel() {
    let (mine, arguments, phases) = table_of(SMALL);
    let general = source(&mine.kernel(Rows::One).file()).unwrap();
    let text = |softcap: f32| {
        fixed::fixed_source(
            general,
            &PersistentArguments { softcap, ..arguments },
            &phases,
            mine.n_blocks(),
            None,
        )
    };
    assert!(text(1e-7).unwrap().contains("float softcap = 1e-7f;"));
    assert!([f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().all(|factor| text(factor).is_none()));
}

#[test]
fn rows_are_shared_equally_where_few_multiprocessors_stay_out() {
    let even = Decoder {
        residual: 1024,
        head_dim: 128,
        n_heads: 16,
        n_kv_heads: 8,
        ffn: 3072,
        n_layers: 1,
        ..Decoder::SMALL
    };
    let text = fixed_text(even).unwrap();
    assert_eq!(table_of(even).0.n_blocks(), 128);
    assert_eq!(text.matches("own_groups = 1;").count(), 2);
    assert!(text.contains("own_groups = 4;") && text.contains("own_groups = 6;"));
    assert_eq!(table_of(Decoder { ffn: 3104, ..even }).0.n_blocks(), 132);
    // A dense layer before mixtures is of another kind.
    let experts = Experts { n: 4, n_used: 1, ffn: 32, ..Experts::SMALL };
    let of =
        |first_dense: bool| Decoder { experts: Some(Experts { first_dense, ..experts }), ..Decoder::SMALL };
    assert!(fixed_text(of(false)).unwrap().contains("ONE(PersistentPhase4)"));
    assert_eq!(fixed_text(of(true)), None);
}

#[test]
fn parts_of_an_exchange_have_room_for_the_largest_mixture() {
    assert_eq!(MAX_EXPERTS, (EXCHANGE_SQUARES - EXCHANGE_SCORES) / 4);
    assert_eq!(MAX_WIDE, (EXCHANGE_SCORES - EXCHANGE_WIDE) / 4);
}

/// The header's functions compute what its macros do.
#[test]
fn shared_memory_is_that_of_the_header() {
    assert_eq!(header::shared(64, 3), 4752 + 12 * 64 + 36 * 3 * 64 + 64 * 3);
    assert_eq!(header::shared_rows(64, 3), header::shared(64, 3) + 33_024);
}

#[test]
fn prebuilt_kernels_are_among_the_sources_of_hopper_alone() {
    let kernels: Vec<General> = general::prebuilt().collect();
    assert_eq!(kernels.len(), 63);
    for kernel in &kernels {
        assert_eq!(source(&kernel.file()), Some(&kernel.text(None)[..]), "{kernel:?}");
    }
    let n_of = |architecture| {
        let files = crate::kernels::files(architecture);
        files.filter(|file| file.starts_with("persistent/decode_")).count()
    };
    assert_eq!((n_of("sm_90a"), n_of("sm_80")), (63, 0));
}

/// Kernels for shapes of heads that are not prebuilt.
#[test]
fn other_shapes_of_heads_have_kernels_where_there_is_a_compiler() {
    let shape = Decoder { head_dim: 256, n_heads: 2, n_kv_heads: 1, ..SMALL };
    let plan = plan_of(Decoder { kv_type: KvType::Q8_0, ..shape });
    let units = lower(&plan, Profile::hopper().passes);
    let limits = Limits { kv_type: KvType::Q8_0, ..limits(&plan.kv) };
    let mine = |profile: &Profile| Persistent::new(&plan, &units, &limits, profile);
    let over_q8_0 = mine(&Profile::hopper()).unwrap();
    assert!(source(&over_q8_0.kernel(Rows::One).file()).is_none());
    assert_eq!(
        over_q8_0.source(Rows::One),
        "#define PERSISTENT_CODECS 5\n#include \"persistent/decode.cuh\"\nPERSISTENT_KERNEL(persistent_decode_q8_0_256_2, 256, 2, PAGES_Q8_0, false)\n"
    );
    assert!(
        over_q8_0
            .source(Rows::Several)
            .contains("PERSISTENT_ROWS_KERNEL(persistent_decode_rows_q8_0_256_2, 256, 2, PAGES_Q8_0, false)")
    );
    let reason = mine(&Profile { other_shapes: false, ..Profile::hopper() }).unwrap_err();
    assert!(reason.contains("2 query heads a KV head of 256 columns: no kernel is prebuilt"), "{reason}");
    let plan = plan_of(Decoder { sinks: true, ..SMALL });
    let units = lower(&plan, Profile::hopper().passes);
    let profile = Profile { other_shapes: false, ..Profile::hopper() };
    let reason = Persistent::new(&plan, &units, &f16(&plan.kv), &profile).unwrap_err();
    assert!(reason.contains("sinks, biases or a clamped gate: no kernel is prebuilt"), "{reason}");
    // A slot of the ring holds a tile of keys and values.
    let over_f16 = found(&plan_of(shape)).unwrap();
    assert_eq!((over_q8_0.slot(), over_f16.slot()), (LEAST_SLOT, 2 * TILE * 2 * 256));
}

/// A mixture in which a token uses 3 of 16 experts of 64 rows: 4 bundles each, a unit of down.
fn mixture() -> Decoder {
    Decoder { experts: Some(Experts { n: 16, n_used: 3, ffn: 64, bias: true, ..Experts::SMALL }), ..SMALL }
}

#[test]
fn mixtures_are_found_and_their_phases_share_what_a_token_uses() {
    let plan = plan_of(mixture());
    let mine = found(&plan).unwrap();
    let router = mine.decoder.layers[1].router.unwrap();
    assert_eq!((router.mixture.n, router.mixture.n_used, router.mixture.ffn), (16, 3, 64));
    assert!(router.product_bias.is_some() && router.choice_bias.is_none() && router.scales.is_none());
    assert_eq!(mine.kernel(Rows::One).name(), "persistent_decode_experts_64_3");
    let weights: Vec<u64> = (0..16).map(|i| 1000 + i).collect();
    let vector = |id: WeightId| 5000 + u64::from(id.0);
    let pages = |layer: device::KvLayerId| (u64::from(layer.0) * 100, 77, 3);
    let places =
        PhasePlaces { weights: &weights, biases: &[0, 0, 0], vector: &|id| Ok(vector(id)), pages: &pages };
    let phases = mine.phases(&plan, &places).unwrap();
    let of = |f: &dyn Fn(&PersistentPhase) -> u32| phases.iter().map(f).collect::<Vec<_>>();
    let layer = [QKV, ADD, ROUTE, EXPERTS, ADD_EXPERTS];
    assert_eq!(of(&|p| p.kind), [&layer[..], &layer, &layer, &[HEAD]].concat());
    // 16 experts; 4 bundles of each of 3; 320 rows in groups of 8.
    assert_eq!(of(&|p| p.groups)[2..5], [16, 12, 40]);
    assert_eq!(of(&|p| p.k_quads)[2..5], [1, 1, 1]);
    assert_eq!(phases[7].bias, vector(router.product_bias.unwrap()));
    assert_eq!(phases.iter().map(|p| p.weights).collect::<Vec<_>>(), weights);
    // All experts are packed, and a token reads three of 16: 4 bundles of 4 steps and 40 units
    // each.
    let expert = |n: usize| n * (4 * 4 * 4608 + 40 * 576);
    let (packed, read) =
        mine.products[2..5].iter().map(PhaseProduct::bytes).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    assert_eq!((packed, read), (16 * 4096 + expert(16), 16 * 4096 + expert(3)));
}

#[test]
fn mixtures_that_the_kernel_cannot_run_are_refused_with_a_reason() {
    let with = |experts: Experts| refusal(Decoder { experts: Some(experts), ..SMALL });
    assert!(with(Experts { groups: true, sigmoid: true, n: 16, ..Experts::SMALL }).contains("groups"));
    assert!(with(Experts { n: 300, ..Experts::SMALL }).contains("scores"));
    assert!(with(Experts { block: BlockType::BF16, ..Experts::SMALL }).contains("in BF16"));
    let experts = Some(Experts::SMALL);
    assert!(refusal(Decoder { experts, head: BlockType::F16, ..SMALL }).contains("in F16"));
    // Only what a token reads counts against the limit.
    let plan = plan_of(mixture());
    let profile = Profile::hopper();
    let (limits, units) = (f16(&plan.kv), lower(&plan, profile.passes));
    let read = found(&plan).unwrap().weight_bytes();
    let of = |most: u64| {
        let profile = Profile { most_persistent: most, ..profile.clone() };
        let (found, packed) = persistent_of(std::iter::once((&plan, &units[..])), &limits, &profile, 0);
        (found[0].is_ok(), packed.total() as u64)
    };
    let (taken, packed) = of(read);
    assert!(taken && packed > 2 * read);
    assert_eq!(of(read - 1), (false, 0));
    // Decoders with halves have another limit.
    let plan = plan_of(Decoder { head: BlockType::F16, ..SMALL });
    let units = lower(&plan, profile.passes);
    let read = found(&plan).unwrap().weight_bytes();
    for most_halves in [read, read - 1] {
        let profile = Profile { most_halves, most_persistent: 2 * read, ..profile.clone() };
        let (found, _) = persistent_of(std::iter::once((&plan, &units[..])), &limits, &profile, 0);
        assert_eq!(found[0].is_ok(), most_halves == read);
    }
}

/// The kernel reads a step of weights (arguments.h) where the repack puts it (`place`,
/// persistent_repack.cu).
#[test]
fn each_block_reads_its_own_steps_in_order() {
    // The repack, for one group and quad.
    let place = |groups: usize, k_quads: usize, n_blocks: usize, gate: bool, group: usize, quad: usize| {
        let together = if gate { 2 } else { 1 };
        let (n, i) = (groups / together, group / together);
        let owner = ((i + 1) * n_blocks - 1) / n;
        let first = owner * n / n_blocks * together;
        let end = (owner + 1) * n / n_blocks * together;
        let (local, pass) = (group - first, (group - first) / 8);
        (first + pass * 8) * k_quads + quad * (end - first - pass * 8).min(8) + local % 8
    };
    for (groups, k_quads, gate) in
        [(40, 1, false), (160, 2, true), (38, 3, false), (5000, 1, false), (264, 2, true)]
    {
        let n_blocks = 132;
        let together = if gate { 2 } else { 1 };
        let first_group = |b: usize| together * (b * (groups / together) / n_blocks);
        let mut step = 0;
        for block in 0..n_blocks {
            let (first, end) = (first_group(block), first_group(block + 1));
            for pass in (first..end).step_by(8) {
                for quad in 0..k_quads {
                    for group in pass..end.min(pass + 8) {
                        assert_eq!(place(groups, k_quads, n_blocks, gate, group, quad), step);
                        step += 1;
                    }
                }
            }
        }
        assert_eq!(step, groups * k_quads);
    }
}

/// A step has units for the warps that have columns: no more than there must be.
#[test]
fn columns_are_padded_to_units_and_not_to_all_warps() {
    let expected =
        [(128, (1, 1)), (576, (1, 5)), (1024, (1, 8)), (1025, (2, 5)), (1152, (2, 5)), (2304, (3, 6))];
    for (n_cols, of_warp_and_warps) in expected {
        assert_eq!(super::products::units(n_cols), of_warp_and_warps, "{n_cols} columns");
    }
    for n_cols in (32..20_000).step_by(32) {
        let (of_warp, warps) = super::products::units(n_cols);
        let padded = 128 * of_warp * warps;
        assert!(warps <= 8 && n_cols <= padded && padded < n_cols + 128 * (of_warp + 1), "{n_cols} columns");
    }
}

/// The kernels run all decoders of `gpu_test`. The type of keys and values does not matter to
/// [`found`], so one of them is enough.
#[test]
fn every_decoder_of_the_self_test_is_taken() {
    let decoders = crate::selftest::decoders();
    for decoder in decoders.into_iter().filter(|decoder| decoder.kv_type == KvType::F16) {
        let found = found(&decoder.blank_plan());
        assert!(found.is_ok(), "{decoder:?}: {:?}", found.err());
    }
}

/// Whatever a plan is.
#[test]
fn every_plan_is_found_or_refused() {
    for plan in device_testing::check_op_cases().iter().flat_map(|case| &case.plans) {
        let _ = found(plan);
    }
}

#[test]
fn a_launch_computes_several_steps_where_all_blocks_have_rows() {
    let profile = Profile::hopper();
    let steps_of = |shape: Decoder, profile: &Profile| {
        let plan = plan_of(shape);
        found(&plan).unwrap().chained_steps(&fuse(&plan, profile.rules), profile)
    };
    let wide = Decoder { residual: 8 * 132, ..SMALL };
    assert_eq!(steps_of(wide, &profile), profile.chained_steps);
    assert_eq!(steps_of(Decoder { residual: 8 * 100, ..SMALL }, &profile), 1);
    // Ops on logits before the choice rule out several steps, and so do experts, which were slower.
    assert_eq!(steps_of(Decoder { cap: Some(30.0), ..wide }, &profile), 1);
    assert_eq!(steps_of(Decoder { experts: Some(Experts::SMALL), ..wide }, &profile), 1);
    // Steps of large models are long enough.
    let bytes = found(&plan_of(wide)).unwrap().weight_bytes();
    let with = |chained_bytes| steps_of(wide, &Profile { chained_bytes, ..profile.clone() });
    assert_eq!([with(3 * bytes), with(2 * bytes - 1), with(0)], [3, 1, 1]);
}

#[test]
fn steps_of_a_launch_attend_to_the_same_tiles() {
    let all = |windows: &[usize]| (0..80).filter(|at| !Persistent::has_same_tiles(windows, *at)).collect();
    let without: Vec<usize> = all(&[]);
    assert_eq!(without, [15, 31, 47, 63, 79]);
    // A window of 40 begins with another tile when its first position does.
    let with: Vec<usize> = all(&[40]);
    assert_eq!(with, [15, 31, 47, 54, 63, 70, 79]);
}

#[test]
fn a_kernel_of_several_steps_knows_the_type_of_the_embedding() {
    let text = fixed_text(SMALL).unwrap();
    assert!(text.contains("#define PERSISTENT_EMBEDDING RowsOfBlocks<Q8_0>"));
    assert!(text.contains("#include \"linear/rows.cuh\""));
}
