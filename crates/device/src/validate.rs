//! [`Limits::check`] and [`Step::check`]: whether sizes and steps are possible, for devices that do not trust their caller
//! (the reference and the null device) and for the tests of an engine.

use crate::{Device, Error, KvGroup, KvLayout, KvType, Limits, Op, PAGE_NONE, Plan, Result, Span, Step};

impl Limits {
    /// Whether a plan can be compiled for these sizes on a device: every size is at least 1, pages are a power of two of at
    /// least 16 positions, each KV group has its number of pages, and the device and the head sizes allow the KV type.
    ///
    /// # Errors
    /// [`Error::Unsupported`], with what to change.
    pub fn check(&self, device: &dyn Device, plan: &Plan) -> Result<()> {
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
        if let Some(n) = tables.min().filter(|n| *n < self.n_ctx) {
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
    /// Whether a program compiled for these limits can run the step:
    ///
    /// - sizes are within the limits, spans cover the rows in order, a slot has at most one span;
    /// - every position that a span writes or that its windows still need has a page within range;
    /// - no page that one span writes is in reach of another span.
    ///
    /// Allocates nothing. Token ids are not looked at, for their bound is the model's.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, kv: &KvLayout, limits: &Limits) -> std::result::Result<(), String> {
        let n_rows = self.tokens.len();
        within("rows", n_rows, limits.max_rows)?;
        within("output rows", self.outputs.len(), limits.max_outputs)?;
        within("spans", self.spans.len(), limits.max_spans)?;
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
            within("positions", span.end(), limits.n_ctx)?;
            within("entries of a page table", span.end().div_ceil(limits.page_len), self.pages_per_table)?;
            let end =
                (span.slot as usize + 1).saturating_mul(kv.groups.len()).saturating_mul(self.pages_per_table);
            within("page table entries", end, self.page_tables.len())?;
        }
        if next_row != n_rows {
            return Err(format!("spans of {next_row} rows in a step of {n_rows} rows"));
        }
        self.check_pages(kv, limits)
    }

    fn check_pages(&self, kv: &KvLayout, limits: &Limits) -> std::result::Result<(), String> {
        let n_groups = kv.groups.len();
        let entry_of = |position: usize| position / limits.page_len;
        for (group, (KvGroup { window, .. }, n_pages)) in kv.groups.iter().zip(&limits.n_pages).enumerate() {
            let needed = |span: &Span| {
                let first =
                    window.map_or(0, |window| (span.first_position as usize + 1).saturating_sub(window));
                let table = self.page_table(span.slot, group, n_groups);
                (entry_of(first), &table[entry_of(first)..=entry_of(span.end() - 1)])
            };
            for span in self.spans {
                let (first, pages) = needed(span);
                if let Some(at) = pages.iter().position(|page| *page as usize >= *n_pages) {
                    let page = pages[at];
                    let page = if page == PAGE_NONE { "no page".to_owned() } else { format!("page {page}") };
                    let position = (first + at) * limits.page_len;
                    return Err(format!(
                        "slot {} has {page} at position {position} of KV group {group}, expected one of {n_pages}",
                        span.slot
                    ));
                }
                let written = &pages[entry_of(span.first_position as usize) - first..];
                for other in self.spans.iter().filter(|other| other.slot != span.slot) {
                    if let Some(page) = written.iter().find(|page| needed(other).1.contains(page)) {
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

fn within(what: &str, n: usize, limit: usize) -> std::result::Result<(), String> {
    if n <= limit { Ok(()) } else { Err(format!("{n} {what}, expected at most {limit}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpreter::Reference;
    use crate::testing::{limits, mini_transformer};
    use crate::{KvLayer, OwnedStep, Want};
    use formats::BlockType;

    fn layout() -> KvLayout {
        let layer = KvLayer { n_kv_heads: 1, head_dim: 8, window: None };
        KvLayout::new(vec![layer, KvLayer { window: Some(16), ..layer }])
    }

    /// Slot 0 at positions 40..43, slot 1 at 0..2; the window of slot 0 has let page 0 go.
    fn good() -> OwnedStep {
        const NONE: u32 = PAGE_NONE;
        OwnedStep {
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

    fn rejects(edit: impl FnOnce(&mut OwnedStep), part: &str) {
        let mut step = good();
        edit(&mut step);
        let plan = layout();
        let mut limits = limits(&plan);
        limits.n_pages = vec![6, 6];
        good().borrow().check(&plan, &limits).unwrap();
        let error = step.borrow().check(&plan, &limits).unwrap_err();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    }

    #[test]
    fn steps_that_cannot_run() {
        rejects(|s| s.tokens.resize(1000, 0), "1000 rows, expected at most");
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
        good.check(&device, &plan).unwrap();
        let rejects = |edit: fn(&mut Limits), part: &str| {
            let mut limits = good.clone();
            edit(&mut limits);
            let error = limits.check(&device, &plan).unwrap_err().to_string();
            assert!(error.contains(part), "{error}\nshould say: {part}");
        };
        rejects(|l| l.max_rows = 0, "0 rows of a step");
        rejects(|l| l.page_len = 24, "a page of 24 positions");
        rejects(|l| l.n_pages.push(3), "numbers of pages");
        rejects(|l| l.n_pages[0] = 0, "0 pages");
        rejects(|l| l.n_pages[0] = 1 << 62, "pages");
        rejects(|l| l.kv_type = KvType::Q8_0, "heads of 16");
    }
}
