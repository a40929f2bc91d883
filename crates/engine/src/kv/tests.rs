//! Tests of sharing, windows, copies and eviction, without a model: the program only remembers the
//! contents of its pages.
//!
//! Past 600 lines: one fixture, which checks every page that a row attends to, serves all tests.

use std::ops::Range;

use device::{Chosen, CommandInfo, CommittedPages, KvLayer, KvType, Numerics, Step, Ticket, Timing, ValueId};
use device_testing::cases;
use proptest::prelude::*;

use super::*;

const PAGE: usize = 16;

/// A program without a model.
struct Pages {
    /// `pages[group][page][i]`: the token whose keys and values are at position `i` of the page.
    pages: Vec<Vec<[Option<u32>; PAGE]>>,
    committed: CommittedPages,
    /// Maximum number of pages that may be committed at once, over all groups.
    most: usize,
}

impl Program for Pages {
    fn submit(&mut self, _: &Step) -> device::Result<Ticket> {
        Ok(Ticket(0))
    }
    fn wait(&mut self, _: Ticket) -> device::Result<()> {
        Ok(())
    }
    fn chosen(&self) -> &[Chosen] {
        &[]
    }
    fn best(&self, _: usize) -> &[(u32, f32)] {
        &[]
    }
    fn run_until(&mut self, _: &Step, _: usize) -> device::Result<()> {
        Ok(())
    }
    fn read(&self, _: ValueId) -> Option<Vec<f32>> {
        None
    }
    fn logits(&self) -> &[f32] {
        &[]
    }
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> device::Result<()> {
        assert!(self.committed.contains(group, from) && self.committed.contains(group, to));
        self.pages[group][to as usize] = self.pages[group][from as usize];
        Ok(())
    }
    fn committed(&self) -> &CommittedPages {
        &self.committed
    }
    fn commit(&mut self, group: usize, pages: Range<u32>) -> device::Result<()> {
        self.committed.check_range(group, &pages, false).unwrap();
        let n: usize = (0..self.pages.len()).map(|g| self.committed.n_committed(g)).sum();
        if n + pages.len() > self.most {
            return Err(device::Error::Shortage { device: "pages", group, n_pages: pages.len(), bytes: 0 });
        }
        self.committed.set(group, pages, true);
        Ok(())
    }
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> device::Result<()> {
        self.committed.check_range(group, &pages, true).unwrap();
        self.committed.set(group, pages.clone(), false);
        pages.for_each(|page| self.pages[group][page as usize] = [None; PAGE]);
        Ok(())
    }
    fn kept(&self, _: usize) -> &[f32] {
        &[]
    }
    fn commands(&self, _: usize, _: usize) -> Vec<CommandInfo> {
        vec![]
    }
    fn run_timed(&mut self, _: &Step, _: &mut Vec<Timing>) -> device::Result<()> {
        Ok(())
    }
}

struct Fixture {
    kv: KvCache,
    program: Pages,
    n_ctx: usize,
    /// Computed tokens of each slot.
    computed: Vec<Vec<u32>>,
}

impl Fixture {
    fn new(windows: &[Option<usize>], n_ctx: usize, max_rows: usize, n_slots: usize) -> Fixture {
        Fixture::with_granule(1, windows, n_ctx, max_rows, n_slots)
    }

    fn with_granule(
        granule: usize,
        windows: &[Option<usize>],
        n_ctx: usize,
        max_rows: usize,
        n_slots: usize,
    ) -> Fixture {
        let layer = |w: &Option<usize>| KvLayer {
            n_kv_heads: 1,
            head_dim: 32,
            window: *w,
            encoder_states: None,
            values_are_keys: false,
        };
        let layout = KvLayout::new(windows.iter().map(layer).collect());
        Fixture::of(layout, granule, n_ctx, max_rows, n_slots)
    }

    fn of(layout: KvLayout, granule: usize, n_ctx: usize, max_rows: usize, n_slots: usize) -> Fixture {
        let n_pages = pool_sizes(&layout, n_ctx, max_rows, n_slots, PAGE);
        let limits = Limits {
            max_rows,
            max_outputs: n_slots,
            max_spans: n_slots,
            n_ctx,
            page_len: PAGE,
            n_pages,
            n_states: 0,
            background_rows: 0,
            kv_type: KvType::F16,
            numerics: Numerics::Fast,
        };
        let program = Pages {
            pages: limits.n_pages.iter().map(|n| vec![[None; PAGE]; *n]).collect(),
            committed: CommittedPages::new(&limits, |_| granule),
            most: usize::MAX,
        };
        Fixture { kv: KvCache::new(&layout, &limits), program, n_ctx, computed: vec![vec![]; n_slots] }
    }

    fn begin(&mut self, slot: usize, tokens: &[u32]) -> usize {
        let n = self.kv.begin(slot, 0, tokens);
        assert!(n <= self.kv.n_cached(0, tokens));
        self.computed[slot] = tokens[..n].to_vec();
        self.verify(slot);
        n
    }

    /// Compute tokens: write them by the page table, and check everything that a row attends to.
    fn compute(&mut self, slot: usize, tokens: &[u32]) {
        let first = self.computed[slot].len();
        self.kv.reserve(slot, first, tokens.len(), &mut self.program).unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            self.computed[slot].push(token);
            for group in 0..self.kv.n_groups() {
                let page = self.kv.tables.page(slot, group, (first + i) / PAGE);
                assert_eq!(self.kv.pools[group].references(page), 1, "writes to a shared page");
                assert!(self.program.committed.contains(group, page), "writes to a page without memory");
                self.program.pages[group][page as usize][(first + i) % PAGE] = Some(token);
            }
        }
        for n in first..first + tokens.len() {
            self.verify_row(slot, n);
        }
        self.kv.advance(slot, self.computed[slot].len());
        self.verify(slot);
    }

    /// Check that all positions that the row at `position` attends to, without itself, hold the
    /// right tokens.
    fn verify_row(&mut self, slot: usize, position: usize) {
        for group in 0..self.kv.n_groups() {
            for p in self.kv.first_visible(group, position)..position {
                let page = self.kv.tables.page(slot, group, p / PAGE);
                assert_ne!(page, PAGE_NONE, "group {group}: position {p} is gone at {position}");
                assert_eq!(self.program.pages[group][page as usize][p % PAGE], Some(self.computed[slot][p]));
            }
        }
    }

    fn verify(&mut self, slot: usize) {
        self.verify_row(slot, self.computed[slot].len());
        self.kv.check().unwrap();
    }

    fn remember(&mut self, slot: usize, is_final: bool) {
        let tokens = self.computed[slot].clone();
        self.kv.remember(slot, 0, &tokens, is_final);
        self.verify(slot);
    }

    fn end(&mut self, slot: usize) {
        self.remember(slot, true);
        self.kv.end(slot);
        self.computed[slot].clear();
        self.kv.check().unwrap();
    }

    fn run(&mut self, slot: usize, tokens: &[u32]) -> usize {
        let n = self.begin(slot, tokens);
        for chunk in tokens[n..].chunks(13) {
            self.compute(slot, chunk);
        }
        self.end(slot);
        n
    }
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i * 7 % 101).collect()
}

#[test]
fn a_prefix_is_found_to_the_token() {
    let mut f = Fixture::new(&[None], 128, 16, 4);
    let t = tokens(100);
    assert_eq!(f.run(0, &t[..50]), 0);
    assert_eq!(f.begin(0, &t[..80]), 50, "three full pages and two positions of the fourth, copied");
    assert_eq!(f.begin(1, &t[..37]), 37, "both may share");
    f.compute(0, &t[50..80]);
    f.compute(1, &t[..3]);
    f.end(0);
    f.end(1);
    // Texts whose pages would sort after, before and between the existing ones.
    for (at, token, n) in [(40, 1000, 40), (45, 0, 45), (40, 500, 40), (3, 0, 3), (47, 999, 47)] {
        let mut other = t.clone();
        other[at] = token;
        assert_eq!(f.run(0, &other[..50]), n, "{token} at {at}");
    }
    assert_eq!(f.run(1, &[5, 5, 5]), 0);
    assert_eq!(f.run(1, &t[..80]), 80);
}

#[test]
fn a_longer_leaf_replaces_a_shorter_one() {
    let mut f = Fixture::new(&[None], 128, 16, 1);
    let t = tokens(60);
    for n in [5, 9, 16, 20, 33] {
        f.run(0, &t[..n]);
        assert_eq!(f.kv.prefix().n_nodes(), n.div_ceil(PAGE));
        assert_eq!(f.kv.usage(0).0, n.div_ceil(PAGE));
    }
    f.kv.clear_prefixes();
    assert_eq!((f.kv.prefix().n_nodes(), f.kv.usage(0).0), (0, 0));
    f.kv.check().unwrap();
}

#[test]
fn two_that_computed_the_same_end_up_sharing() {
    let mut f = Fixture::new(&[None], 64, 16, 2);
    let t = tokens(40);
    for slot in 0..2 {
        assert_eq!(f.begin(slot, &t), 0);
        t.chunks(16).for_each(|chunk| f.compute(slot, chunk));
    }
    assert_eq!(f.kv.usage(0).0, 6);
    f.remember(0, false);
    f.remember(1, false);
    assert_eq!(f.kv.usage(0).0, 4, "two full pages together, and a partial one each");
}

#[test]
fn a_window_keeps_its_window_and_the_full_group_everything() {
    let mut f = Fixture::new(&[None, Some(20)], 256, 16, 1);
    let t = tokens(200);
    f.begin(0, &t);
    for chunk in t.chunks(16) {
        f.compute(0, chunk);
        let most = pages_of_sequence(Some(20), 256, 16, PAGE);
        assert!(f.kv.usage(1).0 <= most, "{} pages, planned {most}", f.kv.usage(1).0);
    }
    assert_eq!(f.kv.usage(0).0, 13);
    assert_eq!(f.kv.usage(1).0, 2, "positions 181 to 199 lie in pages 11 and 12");
    f.end(0);
    // The end is usable; the middle is not, since its window is gone.
    assert_eq!(f.begin(0, &t), 200);
    f.end(0);
    assert_eq!(f.begin(0, &t[..150]), 0);
    f.end(0);
}

#[test]
fn a_window_remembered_at_the_end_of_a_prompt_stays_usable() {
    let mut f = Fixture::new(&[None, Some(20)], 256, 32, 1);
    let t = tokens(200);
    f.begin(0, &t);
    t[..96].chunks(32).for_each(|chunk| f.compute(0, chunk));
    f.remember(0, false); // a prompt of 100 tokens: its last full page is computed
    t[96..170].chunks(1).for_each(|chunk| f.compute(0, chunk));
    f.end(0);
    let mut other = t.clone();
    other[100] = 1000;
    assert_eq!(f.begin(0, &other), 96, "the full pages of the prompt, with the window before them");
}

#[test]
fn cold_leaves_go_first_and_running_sequences_never() {
    let mut f = Fixture::new(&[None], 64, 16, 1);
    let (a, b) = (tokens(32), [vec![900; 16], tokens(16)].concat());
    f.run(0, &a);
    f.run(0, &b);
    assert_eq!(f.begin(0, &a), 32, "a is warm again, b is cold");
    f.compute(0, &[1; 32]); // 4 pages are a's, 1 is left over, b had 2
    f.end(0);
    assert_eq!(f.begin(0, &b), 16, "the leaf of b went, its first page did not");
    f.end(0);
    assert_eq!(f.begin(0, &a), 32);
}

#[test]
fn what_a_running_sequence_shares_stays_cached() {
    let mut f = Fixture::new(&[None], 64, 16, 2);
    let (a, b, c) = (tokens(48), vec![900; 48], [vec![901; 32], vec![902; 32]].concat());
    f.run(0, &a);
    f.run(0, &b);
    assert_eq!(f.begin(0, &a), 48);
    f.run(1, &b); // b is warmer than a now, and nobody holds it
    f.run(1, &[903; 64]); // 3, 3 and 4 pages: all 10 are in use
    f.begin(1, &c);
    c.chunks(16).for_each(|chunk| f.compute(1, chunk));
    f.end(1);
    assert_eq!(f.begin(1, &a), 48, "of the same use to others as before");
    f.end(1);
    assert!(f.begin(1, &b) < 48, "b made room");
}

#[test]
fn running_out_is_an_error_and_nothing_leaks() {
    let mut f = Fixture::new(&[None], 64, 16, 1);
    f.begin(0, &[]);
    let error = f.kv.reserve(0, 0, 64, &mut f.program).and_then(|()| f.kv.take(0, false, &mut f.program));
    assert!(error.is_ok(), "one page more than a sequence needs");
    let error = f.kv.take(0, false, &mut f.program).unwrap_err();
    assert!(matches!(error, Error::PagesExhausted { group: 0, n_pages: 5 }), "{error}");
}

/// Number of committed pages of a group, and of those that are held.
fn committed(f: &Fixture, group: usize) -> (usize, usize) {
    (f.program.committed.n_committed(group), f.kv.usage(group).0)
}

#[test]
fn granules_come_as_pages_are_taken_and_go_from_the_end() {
    let mut f = Fixture::with_granule(4, &[None], 256, 16, 2); // 34 pages
    let (a, b) = (tokens(100), vec![900; 40]);
    f.begin(0, &a);
    a[..80].chunks(16).for_each(|chunk| f.compute(0, chunk));
    assert_eq!(committed(&f, 0), (8, 5));
    f.begin(1, &b);
    b.chunks(16).for_each(|chunk| f.compute(1, chunk));
    f.compute(0, &a[80..]);
    assert_eq!(committed(&f, 0), (12, 10));
    // Nothing is free at the end of the pool.
    assert!(!f.kv.give_back(&mut f.program).unwrap());
    f.kv.end(0);
    f.computed[0].clear();
    // The pages of slot 1 move down into those of slot 0.
    assert_eq!(committed(&f, 0), (12, 3));
    assert!(f.kv.give_back(&mut f.program).unwrap());
    assert_eq!(committed(&f, 0), (4, 3));
    f.verify(1);
    f.end(1);
    // The prefix cache keeps the tokens of slot 1.
    assert_eq!((committed(&f, 0), f.begin(1, &b)), ((4, 3), 40));
    f.end(1);
    f.kv.clear_prefixes();
    assert!(f.kv.give_back(&mut f.program).unwrap());
    assert_eq!(committed(&f, 0), (0, 0));
    f.run(0, &a);
}

#[test]
fn a_shared_page_moves_for_all_who_hold_it() {
    let mut f = Fixture::with_granule(2, &[None, Some(20)], 256, 16, 3);
    let (a, b) = (tokens(90), [vec![900; 60], tokens(20)].concat());
    for (slot, text) in [(0, &a), (1, &b)] {
        f.begin(slot, text);
        text.chunks(16).for_each(|chunk| f.compute(slot, chunk));
    }
    f.remember(1, false);
    assert_eq!(f.begin(2, &b), 80);
    f.kv.end(0);
    f.computed[0].clear();
    let before = f.kv.tables().to_vec();
    assert!(f.kv.give_back(&mut f.program).unwrap());
    assert_ne!(f.kv.tables(), before, "something moved");
    f.verify(1);
    f.verify(2);
    f.compute(2, &[5; 5]);
    f.compute(1, &[7; 30]);
    f.end(1);
    f.end(2);
    assert_eq!(f.begin(0, &b), 80);
    f.end(0);
}

#[test]
fn what_the_device_refuses_is_a_shortage() {
    let mut f = Fixture::with_granule(2, &[None, Some(20)], 128, 16, 2);
    f.program.most = 8;
    let text = tokens(60);
    f.run(0, &text); // 4 pages of the first group, and 2 or 3 of the second
    // Cached prefixes are evicted, as on an exhausted budget.
    let other = vec![900; 60];
    f.begin(0, &other);
    other.chunks(16).for_each(|chunk| f.compute(0, chunk));
    assert_eq!(f.begin(1, &text), 0);
    let error = f.kv.reserve(1, 0, 60, &mut f.program).unwrap_err();
    assert!(matches!(error, Error::PagesExhausted { .. }), "{error}");
    f.kv.check().unwrap();
    f.verify(0);
    // With memory again, the sequence goes on.
    f.program.most = 100;
    f.compute(1, &text[..16]);
    f.end(0);
    f.end(1);
}

#[test]
fn a_group_gets_the_memory_that_another_does_not_need() {
    let mut f = Fixture::with_granule(2, &[None, Some(20)], 256, 64, 2);
    // Chunks of 64 rows need more of the window group than decoding does.
    let text = tokens(160);
    f.begin(0, &text);
    text[..128].chunks(64).for_each(|chunk| f.compute(0, chunk));
    let (first, second) = (committed(&f, 0).0, committed(&f, 1));
    assert!(second.0 > second.1 + 2, "{second:?}");
    f.program.most = first + second.0;
    text[128..].chunks(1).for_each(|token| f.compute(0, token));
    assert_eq!(committed(&f, 0), (10, 10));
    assert!(committed(&f, 1).0 < second.0);
    f.end(0);
}

#[test]
fn salts_share_nothing() {
    let mut f = Fixture::new(&[None, Some(20)], 128, 32, 2);
    let t = tokens(100);
    f.run(0, &t);
    for salt in [1, u64::MAX, 1 << 32] {
        assert_eq!((f.kv.n_cached(salt, &t), f.kv.begin(1, salt, &t)), (0, 0));
        f.kv.reserve(1, 0, 20, &mut f.program).unwrap();
        f.kv.remember(1, salt, &t[..20], true);
        f.kv.end(1);
        assert_eq!(f.kv.n_cached(salt, &t), 20);
        f.kv.check().unwrap();
    }
    assert_eq!(f.kv.n_cached(0, &t), 100);
    f.kv.clear_prefixes();
    f.kv.check().unwrap();
    assert_eq!(f.kv.held_bytes(), 0);
}

#[test]
fn a_fork_shares_pages_until_one_of_the_two_writes() {
    for windows in [vec![None], vec![Some(20)], vec![None, Some(33)]] {
        let mut f = Fixture::new(&windows, 128, 16, 3);
        let t = tokens(60);
        f.begin(0, &[]);
        t[..40].chunks(16).for_each(|chunk| f.compute(0, chunk));
        let n_held = f.kv.held_bytes();
        for (slot, n) in [(1, 40), (2, 40)] {
            assert!(f.kv.can_fork(0, n));
            f.kv.fork(0, slot, n);
            f.computed[slot] = t[..n].to_vec();
            f.verify(slot);
        }
        assert_eq!(f.kv.held_bytes(), n_held);
        f.compute(1, &[7; 20]);
        f.compute(0, &t[40..60]);
        f.compute(2, &[9; 3]);
        (0..3).for_each(|slot| f.verify(slot));
        (0..3).for_each(|slot| f.kv.end(slot));
        assert_eq!(f.kv.held_bytes(), 0);
    }
    let mut f = Fixture::new(&[None, Some(20)], 128, 16, 2);
    f.begin(0, &[]);
    tokens(60).chunks(12).for_each(|chunk| f.compute(0, chunk));
    assert!(!f.kv.can_fork(0, 20), "what position 20 looks at is out of the window of position 60");
}

/// Beams of a search: one text position each, and pages that an encoder writes.
fn beams() -> Fixture {
    let layer =
        KvLayer { n_kv_heads: 1, head_dim: 8, window: None, encoder_states: None, values_are_keys: false };
    let layout = KvLayout::new(vec![layer, KvLayer { encoder_states: Some(50), ..layer }]);
    Fixture::of(layout, 1, 40, 50, 3)
}

#[test]
fn beams_share_until_one_writes() {
    let mut f = beams();
    assert_eq!(f.kv.usage(0), (0, 12));
    let none = PAGE_NONE;
    f.kv.reserve(0, 0, 20, &mut f.program).unwrap();
    f.kv.rearrange(&[0, 0, 0]);
    assert_eq!(f.kv.usage(0).0, 2);
    assert_eq!(f.kv.tables()[..8], [0, 1, none, none, 0, 1, 2, 3]);
    assert_eq!(f.kv.tables()[8..16], f.kv.tables()[..8]);
    (0..3).for_each(|slot| f.kv.reserve(slot, 20, 1, &mut f.program).unwrap());
    let own = |f: &Fixture| [0, 1, 2].map(|slot: usize| f.kv.tables()[slot * 8 + 1]);
    assert_eq!((own(&f), f.kv.usage(0).0), ([2, 3, 1], 4), "the last that holds a page keeps it");
    f.kv.reserve(1, 21, 1, &mut f.program).unwrap();
    assert_eq!(own(&f), [2, 3, 1], "it is its own now");
    // Beam 2 dies, beam 1 becomes two.
    f.kv.rearrange(&[1, 0, 1]);
    assert_eq!((own(&f), f.kv.usage(0).0), ([3, 2, 3], 3));
    f.kv.check().unwrap();
    f.kv.rearrange(&[]);
    assert_eq!(f.kv.usage(0).0, 0);
    assert_eq!(f.kv.tables()[4..8], [0, 1, 2, 3], "what the encoder wrote stays");
    f.kv.check().unwrap();
}

#[test]
fn the_pools_are_enough_for_any_search() {
    let mut f = beams();
    let mut state = 7u32;
    for _ in 0..20 {
        f.kv.rearrange(&[]);
        f.kv.reserve(0, 0, 3, &mut f.program).unwrap();
        for position in 3..40 {
            let parents: Vec<usize> = (0..3)
                .map(|slot| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if position == 3 { 0 } else { (state >> 16) as usize % 3 * usize::from(slot > 0) }
                })
                .collect();
            f.kv.rearrange(&parents);
            (0..3).for_each(|slot| f.kv.reserve(slot, position, 1, &mut f.program).unwrap());
            f.kv.check().unwrap();
        }
    }
    f.kv.rearrange(&[]);
    assert_eq!(f.kv.usage(0).0, 0);
}

#[derive(Clone, Debug)]
enum Action {
    /// Begin the first `len` tokens of text `text`, if the slot is empty.
    Begin {
        slot: usize,
        text: u32,
        len: usize,
    },
    /// Compute up to `n` more tokens.
    Compute {
        slot: usize,
        n: usize,
    },
    Remember {
        slot: usize,
    },
    /// Share the first `len` positions of a slot, if present, with an empty slot.
    Fork {
        from: usize,
        to: usize,
        len: usize,
    },
    End {
        slot: usize,
    },
    Clear,
    GiveBack,
}

fn action() -> impl Strategy<Value = Action> {
    let slot = 0..3usize;
    prop_oneof![
        3 => (slot.clone(), 0..4u32, 1..120usize).prop_map(|(slot, text, len)| Action::Begin { slot, text, len }),
        8 => (slot.clone(), 1..24usize).prop_map(|(slot, n)| Action::Compute { slot, n }),
        1 => slot.clone().prop_map(|slot| Action::Remember { slot }),
        2 => (slot.clone(), slot.clone(), 1..120usize).prop_map(|(from, to, len)| Action::Fork { from, to, len }),
        2 => slot.prop_map(|slot| Action::End { slot }),
        1 => Just(Action::Clear),
        2 => Just(Action::GiveBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]

    /// Texts share starts of different lengths. In any order of actions, pools of the planned sizes
    /// never run out and no shared page is written. Every visible position holds its own token, and
    /// page counts are consistent.
    #[test]
    fn random_use_keeps_integrity(
        actions in prop::collection::vec(action(), 1..120),
        windows in prop_oneof![
            Just(vec![None]), Just(vec![Some(24)]), Just(vec![None, Some(1)]), Just(vec![None, Some(33), Some(16)]),
        ],
        granule in 1usize..6,
    ) {
        let mut f = Fixture::with_granule(granule, &windows, 128, 24, 3);
        let text = |text: u32| -> Vec<u32> {
            let shared = [128, 20, 48, 31][text as usize];
            (0..128u32).map(|i| if i < shared { i } else { i + 1000 * text }).collect()
        };
        let mut targets: Vec<Option<Vec<u32>>> = vec![None; 3];
        for action in actions {
            match action {
                Action::Begin { slot, text: which, len } if targets[slot].is_none() => {
                    let tokens = text(which)[..len].to_vec();
                    f.begin(slot, &tokens);
                    targets[slot] = Some(text(which));
                }
                Action::Compute { slot, n } => {
                    let Some(target) = &targets[slot] else { continue };
                    let at = f.computed[slot].len();
                    let end = (at + n).min(f.n_ctx);
                    if at < end {
                        f.compute(slot, &target[at..end]);
                    }
                }
                Action::Fork { from, to, len } if targets[from].is_some() && targets[to].is_none() => {
                    let len = len.min(f.computed[from].len());
                    if f.kv.can_fork(from, len) {
                        f.kv.fork(from, to, len);
                        f.computed[to] = f.computed[from][..len].to_vec();
                        f.verify(to);
                        // The text continues as the next one from there on.
                        let next = (targets.iter().flatten().count() as u32) % 4;
                        targets[to] = Some([&f.computed[to][..], &text(next)[len..]].concat());
                    }
                }
                Action::Remember { slot } if targets[slot].is_some() => f.remember(slot, false),
                Action::End { slot } if targets[slot].take().is_some() => f.end(slot),
                Action::Clear => f.kv.clear_prefixes(),
                Action::GiveBack => {
                    f.kv.give_back(&mut f.program).unwrap();
                    for group in 0..windows.len() {
                        let (n_committed, n_held) = committed(&f, group);
                        prop_assert!(n_committed < n_held + granule, "{} of {}", n_held, n_committed);
                    }
                    (0..3).for_each(|slot| f.verify(slot));
                }
                _ => {}
            }
            f.kv.check().unwrap();
        }
    }
}
