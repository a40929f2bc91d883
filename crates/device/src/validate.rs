//! [`Limits::check`] and [`Step::check`]: whether sizes and steps are possible, for devices that do not trust their caller
//! (the reference and the null device) and for the tests of an engine.

use std::ops::Range;

use crate::{
    Device, Error, GroupUse, KvType, Limits, Needs, Op, PAGE_NONE, Plan, Result, Span, Step, check_plans,
};

impl Limits {
    /// Whether plans can be compiled for these sizes on a device: they fit each other ([`check_plans`]), every size is at
    /// least 1, pages are a power of two of at least 16 positions, each KV group has its number of pages, and the device and
    /// the head sizes allow the KV type.
    ///
    /// # Errors
    /// [`Error::Plan`]; [`Error::Unsupported`], with what to change.
    pub fn check(&self, device: &dyn Device, plans: &[Plan]) -> Result<()> {
        check_plans(plans)?;
        plans.iter().try_for_each(|plan| self.check_plan(device, plan))
    }

    fn check_plan(&self, device: &dyn Device, plan: &Plan) -> Result<()> {
        let refuse = |what: String, hint: &str| {
            Err(Error::Unsupported { device: device.name(), what, hint: hint.to_owned() })
        };
        for (what, size) in [
            ("rows of a step", self.max_rows),
            ("output rows of a step", self.max_outputs),
            ("spans of a step", self.max_spans),
            ("positions of a sequence", self.n_ctx),
        ] {
            if size == 0 || u32::try_from(size).is_err() {
                return refuse(format!("a limit of {size} {what}"), "use 1 to 2^32 - 1");
            }
        }
        if !self.page_len.is_power_of_two() || self.page_len < 16 {
            return refuse(
                format!("a page of {} positions", self.page_len),
                "use a power of two, at least 16",
            );
        }
        if self.n_pages.len() != plan.kv.groups.len() {
            let what =
                format!("{} numbers of pages for {} KV groups", self.n_pages.len(), plan.kv.groups.len());
            return refuse(what, "give each group its number");
        }
        if let Some(n) = self.n_pages.iter().find(|n| **n == 0 || **n >= PAGE_NONE as usize) {
            return refuse(format!("a KV group of {n} pages"), "use 1 to 2^32 - 2");
        }
        if !device.kv_types().contains(&self.kv_type) {
            return refuse(
                format!("a KV cache of {:?}", self.kv_type),
                &format!("use one of {:?}", device.kv_types()),
            );
        }
        let tables = plan.primitives().filter_map(|op| match op {
            Op::EmbedPositions { table, .. } => Some(plan.weight(*table).n_rows()),
            _ => None,
        });
        // Without tokens a plan is bounded by its tables, not by the context.
        let of_tokens = plan.primitives().any(|op| matches!(op, Op::Embed { .. }));
        if let Some(n) = tables.min().filter(|n| of_tokens && *n < self.n_ctx) {
            return refuse(
                format!("a context of {} positions for a model that learned {n}", self.n_ctx),
                &format!("use at most {n}"),
            );
        }
        let odd = plan.kv.layers.iter().find(|layer| !layer.head_dim.is_multiple_of(32));
        if let (KvType::Q8_0, Some(layer)) = (self.kv_type, odd) {
            return refuse(format!("a KV cache of Q8_0 with heads of {}", layer.head_dim), "use F16 or F32");
        }
        for (group, n_pages) in self.n_pages.iter().enumerate() {
            let bytes = plan.kv.page_bytes(group, self.kv_type, self.page_len).checked_mul(*n_pages);
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
                return refuse(format!("{n_pages} KV pages of group {group}"), "use fewer");
            }
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Whether a program compiled for these limits, whose plans need this, can run the step:
    ///
    /// - the plan exists, the input has its length, sizes are within the limits;
    /// - spans cover the rows in order, a slot has at most one span;
    /// - every position that a span writes or that its windows still need has a page within range, and so has every position
    ///   of a memory; a span that writes memories has a row for each of their positions;
    /// - no page that one span writes is in reach of another span.
    ///
    /// Allocates nothing.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, plans: &[Needs], limits: &Limits) -> std::result::Result<(), String> {
        let Some(needs) = plans.get(self.plan) else {
            return Err(format!("plan {} of a program of {}", self.plan, plans.len()));
        };
        let n_rows = self.tokens.len();
        within("rows", n_rows, limits.max_rows)?;
        within("output rows", self.outputs.len(), limits.max_outputs)?;
        within("spans", self.spans.len(), limits.max_spans)?;
        let n_input = needs.input_len(n_rows, self.outputs.len());
        if self.input.len() != n_input {
            return Err(format!("an input of {} numbers, expected {n_input}", self.input.len()));
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= needs.n_vocab) {
            return Err(format!("token {token}, expected one below {}", needs.n_vocab));
        }
        if let Some(pair) = self.outputs.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("output row {} after row {}, expected ascending rows", pair[1], pair[0]));
        }
        if let Some(row) = self.outputs.last().filter(|row| **row as usize >= n_rows) {
            return Err(format!("output row {row} of a step of {n_rows} rows"));
        }
        let mut next_row = 0;
        for (index, span) in self.spans.iter().enumerate() {
            if span.first_row as usize != next_row || span.n_rows == 0 {
                return Err(format!("{span:?}, expected it to start at row {next_row} and have rows"));
            }
            next_row += span.n_rows as usize;
            if self.spans[..index].iter().any(|other| other.slot == span.slot) {
                return Err(format!("slot {} has two spans", span.slot));
            }
            within("positions", span.end(), needs.n_positions)?;
            for group in &needs.groups {
                let end = match group {
                    GroupUse::Unused => continue,
                    GroupUse::Sequence { .. } => span.end(),
                    GroupUse::Memory { n, written } => {
                        if *written && (span.first_position != 0 || span.n_rows as usize != *n) {
                            return Err(format!("{span:?}, expected positions 0 to {n} of a memory"));
                        }
                        *n
                    }
                };
                within("entries of a page table", end.div_ceil(limits.page_len), self.pages_per_table)?;
            }
            let tables = (span.slot as usize + 1).saturating_mul(needs.groups.len());
            within(
                "page table entries",
                tables.saturating_mul(self.pages_per_table),
                self.page_tables.len(),
            )?;
        }
        if next_row != n_rows {
            return Err(format!("spans of {next_row} rows in a step of {n_rows} rows"));
        }
        self.check_pages(needs, limits)
    }

    fn check_pages(&self, needs: &Needs, limits: &Limits) -> std::result::Result<(), String> {
        let n_groups = needs.groups.len();
        for (group, (usage, n_pages)) in needs.groups.iter().zip(&limits.n_pages).enumerate() {
            for span in self.spans {
                let (entries, n_written) = entries_of(usage, span, limits.page_len);
                let first = entries.start;
                let pages = &self.page_table(span.slot, group, n_groups)[entries];
                if let Some(at) = pages.iter().position(|page| *page as usize >= *n_pages) {
                    let page = pages[at];
                    let page = if page == PAGE_NONE { "no page".to_owned() } else { format!("page {page}") };
                    let position = (first + at) * limits.page_len;
                    return Err(format!(
                        "slot {} has {page} at position {position} of KV group {group}, expected one of {n_pages}",
                        span.slot
                    ));
                }
                let written = &pages[pages.len() - n_written..];
                for other in self.spans.iter().filter(|other| other.slot != span.slot) {
                    let (entries, _) = entries_of(usage, other, limits.page_len);
                    let others = &self.page_table(other.slot, group, n_groups)[entries];
                    if let Some(page) = written.iter().find(|page| others.contains(page)) {
                        return Err(format!(
                            "slot {} writes page {page} of KV group {group}, which slot {} uses too",
                            span.slot, other.slot
                        ));
                    }
                }
                if let Some(page) =
                    written.iter().enumerate().find(|(at, page)| written[..*at].contains(page))
                {
                    return Err(format!("slot {} has page {} of KV group {group} twice", span.slot, page.1));
                }
            }
        }
        Ok(())
    }
}

/// Entries of a group's page table that a span needs, and how many of them, at the end, it writes.
fn entries_of(usage: &GroupUse, span: &Span, page_len: usize) -> (Range<usize>, usize) {
    match usage {
        GroupUse::Unused => (0..0, 0),
        GroupUse::Sequence { window } => {
            let first = window.map_or(0, |window| (span.first_position as usize + 1).saturating_sub(window));
            let end = span.end().div_ceil(page_len);
            (first / page_len..end, end - span.first_position as usize / page_len)
        }
        GroupUse::Memory { n, written } => {
            let end = n.div_ceil(page_len);
            (0..end, if *written { end } else { 0 })
        }
    }
}

fn within(what: &str, n: usize, limit: usize) -> std::result::Result<(), String> {
    if n <= limit { Ok(()) } else { Err(format!("{n} {what}, expected at most {limit}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpreter::Reference;
    use crate::testing::PlanBuilder;
    use crate::testing::{limits, mini_transformer};
    use crate::{DType, KvLayer, KvLayout, OwnedStep, Rows, Want};
    use formats::BlockType;

    fn layout() -> KvLayout {
        let layer = KvLayer { n_kv_heads: 1, head_dim: 8, window: None, memory: None };
        KvLayout::new(vec![layer, KvLayer { window: Some(16), ..layer }])
    }

    /// Slot 0 at positions 40..43, slot 1 at 0..2; the window of slot 0 has let page 0 go.
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
            want: Want::Logits,
        }
    }

    /// Of a plan that uses all layers of a layout.
    fn needs(kv: &KvLayout) -> Needs {
        let groups = kv.groups.iter().map(|g| GroupUse::Sequence { window: g.window }).collect();
        Needs { n_vocab: 10, n_positions: 512, input: None, groups }
    }

    fn rejects(edit: impl FnOnce(&mut OwnedStep), part: &str) {
        let mut step = good();
        edit(&mut step);
        let kv = layout();
        let limits = Limits { n_pages: vec![6, 6], ..limits(&kv) };
        let needs = [needs(&kv)];
        good().borrow().check(&needs, &limits).unwrap();
        let error = step.borrow().check(&needs, &limits).unwrap_err();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    }

    #[test]
    fn steps_that_cannot_run() {
        rejects(|s| s.tokens.resize(1000, 0), "1000 rows, expected at most");
        rejects(|s| s.plan = 1, "plan 1 of a program of 1");
        rejects(|s| s.input = vec![1.0], "an input of 1 numbers, expected 0");
        rejects(|s| s.tokens[2] = 10, "token 10, expected one below 10");
        rejects(|s| s.outputs = vec![3, 3], "ascending");
        rejects(|s| s.outputs = vec![5], "output row 5");
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

    #[test]
    fn limits_that_cannot_be() {
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
        rejects(|l| l.n_pages.push(3), "numbers of pages");
        rejects(|l| l.n_pages[0] = 0, "0 pages");
        rejects(|l| l.n_pages[0] = 1 << 62, "pages");
        rejects(|l| l.kv_type = KvType::Q8_0, "heads of 16");
    }

    /// A plan of an input of two rows a token, which fills a memory of 20 positions.
    fn writer() -> Plan {
        let mut b = PlanBuilder::new(1, 10);
        let layer = b.kv_layer(KvLayer { n_kv_heads: 1, head_dim: 8, window: None, memory: Some(20) });
        let x = b.value(Rows::PerToken(2), 4, DType::F32);
        b.push(Op::Input { out: x });
        let x = b.unfold(x, 2, 2);
        b.kv_write(x, x, layer);
        b.finish(x)
    }

    #[test]
    fn memories_are_written_whole_into_pages_of_their_own() {
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
            outputs: vec![],
            want: Want::Logits,
        };
        good.borrow().check(&needs, &limits).unwrap();
        let rejects = |edit: fn(&mut OwnedStep), part: &str| {
            let mut step = good.clone();
            edit(&mut step);
            let error = step.borrow().check(&needs, &limits).unwrap_err();
            assert!(error.contains(part), "{error}\nshould say: {part}");
        };
        rejects(|s| s.page_tables[2] = 1, "uses too");
        rejects(|s| s.page_tables[1] = 0, "twice");
        rejects(|s| s.page_tables[3] = PAGE_NONE, "no page at position 16");
        rejects(|s| s.spans[0].first_position = 1, "positions 0 to 20 of a memory");
        rejects(|s| (s.spans[0].n_rows, s.spans[1].first_row) = (19, 19), "of a memory");
        rejects(|s| s.input.truncate(40 * 4), "expected 320");
        rejects(|s| s.pages_per_table = 1, "entries of a page table");
    }

    #[test]
    fn plans_that_do_not_fit_each_other() {
        let (writer, device) = (writer(), Reference::default());
        let reader = || {
            let mut b = PlanBuilder::new(1, 10);
            let layer = b.kv_layer(KvLayer { n_kv_heads: 1, head_dim: 8, window: None, memory: Some(20) });
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
}
