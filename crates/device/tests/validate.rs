//! Refused steps and limits, with the reasons.

use device_reference::Reference;
use device_testing::PlanBuilder;
use device_testing::{limits, mini_transformer};
use ingle_device::*;

use weights::BlockType;

fn layout() -> KvLayout {
    let layer =
        KvLayer { n_kv_heads: 1, head_dim: 8, window: None, encoder_states: None, values_are_keys: false };
    KvLayout::new(vec![layer, KvLayer { window: Some(16), ..layer }])
}

/// Slot 0 at positions 40..43, slot 1 at 0..2; slot 0's window has released page 0.
fn good() -> OwnedStep {
    const NONE: u32 = PAGE_NONE;
    OwnedStep {
        plan: 0,
        input: vec![],
        tokens: vec![1; 5],
        spans: vec![
            Span { slot: 0, first_row: 0, n_rows: 3, first_position: 40 },
            Span { slot: 1, first_row: 3, n_rows: 2, first_position: 0 },
        ],
        page_tables: vec![0, 1, 2, NONE, 3, 4, 5, NONE, NONE, 2, NONE, NONE],
        pages_per_table: 3,
        outputs: vec![2, 4],
        wants: vec![Want::BEST; 2],
        ..OwnedStep::default()
    }
}

/// Needs of a plan that uses all layers of a layout.
fn needs(kv: &KvLayout) -> Needs {
    let groups = kv.groups.iter().map(|g| GroupUse::Sequence { window: g.window }).collect();
    Needs {
        n_nodes: 1,
        n_vocab: 10,
        n_logits: 40,
        n_positions: 512,
        input: None,
        groups,
        has_states: false,
        n_adapters: 0,
    }
}

fn rejects(edit: impl FnOnce(&mut OwnedStep), part: &str) {
    let mut step = good();
    edit(&mut step);
    let kv = layout();
    let limits = Limits { n_pages: vec![6, 6], ..limits(&kv) };
    let needs = [needs(&kv)];
    good().borrow().check(&needs, &limits, &whole(&limits)).unwrap();
    let error = step.borrow().check(&needs, &limits, &whole(&limits)).unwrap_err();
    assert!(error.contains(part), "{error}\nshould say: {part}");
}

#[test]
fn steps_that_cannot_run() {
    rejects(|s| s.tokens.resize(1000, 0), "1000 rows, expected at most");
    rejects(|s| s.plan = 1, "plan 1 of a program of 1");
    rejects(|s| s.input = vec![1.0], "an input of 1 numbers, expected 0");
    rejects(|s| s.tokens[2] = 10, "token 10, expected one below 10");
    rejects(|s| s.outputs = vec![3, 3], "ascending");
    rejects(|s| s.outputs = vec![2, 5], "output row 5");
    rejects(|s| s.spans[1].first_row = 2, "start at row 3");
    rejects(|s| s.spans[1].n_rows = 1, "spans of 4 rows in a step of 5");
    rejects(|s| s.spans[1].slot = 0, "two spans");
    rejects(|s| s.spans[0].first_position = 46, "entries of a page table");
    rejects(|s| s.spans[0].first_position = u32::MAX, "positions");
    rejects(|s| s.spans[1].slot = 2, "page table entries");
    rejects(|s| s.page_tables[1] = PAGE_NONE, "no page at position 16 of KV group 0");
    rejects(|s| s.page_tables[4] = PAGE_NONE, "no page at position 16 of KV group 1");
    rejects(|s| s.page_tables[6] = 6, "page 6 at position 0");
    rejects(|s| s.page_tables[6] = 0, "uses too");
    rejects(|s| (s.spans[1].n_rows, s.spans[0].first_row) = (2, 1), "start at row 0");
}

/// All pages committed.
fn whole(limits: &Limits) -> CommittedPages {
    let mut committed = CommittedPages::new(limits, |_| 4);
    for (group, n_pages) in limits.n_pages.iter().enumerate() {
        committed.set(group, 0..*n_pages as u32, true);
    }
    committed
}

#[test]
fn pages_that_are_not_committed() {
    let kv = layout();
    let limits = Limits { n_pages: vec![6, 6], ..limits(&kv) };
    let mut committed = whole(&limits);
    let check = |committed: &CommittedPages| good().borrow().check(&[needs(&kv)], &limits, committed);
    check(&committed).unwrap();
    let page = good().page_tables[0];
    committed.set(0, page..page + 1, false);
    let error = check(&committed).unwrap_err();
    assert!(
        error.contains(&format!("page {page}, which is not committed, at position 0 of KV group 0")),
        "{error}"
    );
}

/// A link to an output of the first step.
fn link(row: u32) -> Link {
    Link { row, from: OutputRef { ticket: Ticket(0), output: 0 } }
}

#[test]
fn links_of_missing_rows_are_refused() {
    rejects(|s| s.links = vec![link(1), link(1)], "a link of row 1 after one of row 1");
    rejects(|s| s.links = vec![link(3), link(2)], "a link of row 2 after one of row 3");
    rejects(|s| s.links = vec![link(0), link(5)], "a link of row 5 of a step of 5 rows");
    rejects(|s| (s.links, s.tokens[2]) = (vec![link(1)], 10), "token 10");
    // The token of a linked row is ignored.
    let kv = layout();
    let limits = Limits { n_pages: vec![6, 6], ..limits(&kv) };
    let linked = OwnedStep { tokens: vec![1, 1, u32::MAX, 1, 1], links: vec![link(2)], ..good() };
    linked.borrow().check(&[needs(&kv)], &limits, &whole(&limits)).unwrap();
}

#[test]
fn invalid_wants_are_refused() {
    let slice = |start, len| Slice { start, len };
    rejects(|s| s.wants.truncate(1), "1 wants of 2 outputs");
    rejects(|s| s.wants[1].n_best = 129, "129 best tokens of an output, expected at most 128");
    let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0.5 };
    rejects(|s| s.wants[0].choose = Choose::Sample(sampling), "temperature of 0");
    let penalties = Penalties { repeat: -1.0, presence: 0.0, frequency: 0.0 };
    rejects(|s| s.wants[0].penalties = Some(penalties), "penalties -1");
    rejects(|s| s.wants[0].recent = slice(0, 1), "of 0 recent tokens");
    rejects(|s| s.wants[0].pending = slice(1, 1), "of 0 pending tokens");
    rejects(|s| s.wants[0].biases = slice(u32::MAX, 1), "of 0 biases");
    rejects(|s| s.wants[1].mask = Some(slice(0, 2)), "of 0 words of masks");
    // 40 logits are two words.
    let mask = |len| move |s: &mut OwnedStep| (s.masks, s.wants[1].mask) = (vec![0; 3], Some(slice(0, len)));
    rejects(mask(1), "a mask of 1 words for 40 tokens");
    rejects(mask(3), "a mask of 3 words for 40 tokens");
    rejects(|s| (s.recent, s.wants[1].recent) = (vec![40], slice(0, 1)), "token 40 of penalties or biases");
    rejects(|s| (s.biases, s.wants[1].biases) = (vec![(40, 1.0)], slice(0, 1)), "token 40 of penalties");
    let kv = layout();
    let limits = Limits { n_pages: vec![6, 6], ..limits(&kv) };
    let mut step = OwnedStep { masks: vec![0; 2], recent: vec![39], biases: vec![(39, -1.0)], ..good() };
    let want = Want { mask: Some(slice(0, 2)), recent: slice(0, 1), biases: slice(0, 1), ..Want::BEST };
    step.wants[0] = want;
    step.borrow().check(&[needs(&kv)], &limits, &whole(&limits)).unwrap();
}

#[test]
fn invalid_limits_are_refused() {
    let plan = mini_transformer(1, BlockType::F32);
    let good = limits(&plan.kv);
    let device = Reference::default();
    good.check(&device, std::slice::from_ref(&plan)).unwrap();
    let rejects = |edit: fn(&mut Limits), part: &str| {
        let mut limits = good.clone();
        edit(&mut limits);
        let error = limits.check(&device, std::slice::from_ref(&plan)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    };
    rejects(|l| l.max_rows = 0, "0 rows of a step");
    rejects(|l| l.page_len = 24, "a page of 24 positions");
    rejects(|l| l.n_pages.push(3), "page counts");
    rejects(|l| l.n_pages[0] = 0, "0 pages");
    rejects(|l| l.n_pages[0] = 1 << 62, "pages");
    rejects(|l| l.kv_type = KvType::Q8_0, "heads of 16");
}

/// A plan with an input of two rows for each token, which fills 20 encoder states.
fn writer() -> Plan {
    let mut b = PlanBuilder::new(1, 10);
    let layer = b.kv_layer(KvLayer {
        n_kv_heads: 1,
        head_dim: 8,
        window: None,
        encoder_states: Some(20),
        values_are_keys: false,
    });
    let x = b.value(RowCount::PerToken(2), 4, DType::F32);
    b.push(Op::Input { out: x });
    let x = b.unfold(x, 2, 2);
    b.kv_write(x, x, layer);
    b.finish(x)
}

#[test]
fn encoder_states_are_written_whole_into_pages_of_their_own() {
    let plan = writer();
    let limits = Limits { n_ctx: 5, n_pages: vec![8], ..limits(&plan.kv) };
    limits.check(&Reference::default(), std::slice::from_ref(&plan)).unwrap();
    let needs = [Needs::new(&plan, &limits)];
    let good = OwnedStep {
        plan: 0,
        tokens: vec![u32::MAX; 40],
        input: vec![0.0; 40 * 2 * 4],
        spans: (0..2)
            .map(|slot| Span { slot, first_row: slot * 20, n_rows: 20, first_position: 0 })
            .collect(),
        page_tables: vec![0, 1, 2, 3],
        pages_per_table: 2,
        ..OwnedStep::default()
    };
    good.borrow().check(&needs, &limits, &whole(&limits)).unwrap();
    let rejects = |edit: fn(&mut OwnedStep), part: &str| {
        let mut step = good.clone();
        edit(&mut step);
        let error = step.borrow().check(&needs, &limits, &whole(&limits)).unwrap_err();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    };
    rejects(|s| s.page_tables[2] = 1, "uses too");
    rejects(|s| s.page_tables[1] = 0, "twice");
    rejects(|s| s.page_tables[3] = PAGE_NONE, "no page at position 16");
    rejects(|s| s.spans[0].first_position = 1, "positions 0 to 20 of encoder states");
    rejects(|s| (s.spans[0].n_rows, s.spans[1].first_row) = (19, 19), "of encoder states");
    rejects(|s| s.input.truncate(40 * 4), "expected 320");
    rejects(|s| s.pages_per_table = 1, "entries of a page table");
}

#[test]
fn plans_that_do_not_fit_each_other() {
    let (writer, device) = (writer(), Reference::default());
    let reader = || {
        let mut b = PlanBuilder::new(1, 10);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: 1,
            head_dim: 8,
            window: None,
            encoder_states: Some(20),
            values_are_keys: false,
        });
        let q = b.embed(16);
        let y = b.cross_attention(q, layer, 2);
        b.finish(y)
    };
    let limits = limits(&writer.kv);
    limits.check(&device, &[writer.clone(), reader()]).unwrap();
    let refused = |plans: &[Plan], part: &str| {
        let error = limits.check(&device, plans).unwrap_err().to_string();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    };
    refused(&[], "no plan");
    refused(&[reader()], "which no plan writes");
    refused(&[writer, mini_transformer(1, BlockType::F32)], "that of plan 0");
}
