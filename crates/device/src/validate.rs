//! [`Limits::check`] and [`Step::check`]: validation of sizes and steps. Every device calls them,
//! and trusts sizes and steps that passed.

use std::ops::Range;

use crate::{
    Choose, CollectiveKind, CommittedPages, Device, Error, GroupUse, KvType, Limits, Needs, Op, PAGE_NONE,
    Plan, Result, STATE_NONE, Slice, Span, Step, check_plans,
};

impl Limits {
    /// Checks that plans can be compiled for these sizes on a device:
    ///
    /// - the plans fit each other ([`check_plans`]), and every size is at least 1;
    /// - a page has a power of two of positions, at least 16, and each KV group has its number of
    ///   pages;
    /// - the device and the head sizes allow the KV type;
    /// - plans with collectives go to a device of a group with as many ranks.
    ///
    /// # Errors
    /// [`Error::Plan`]; [`Error::Unsupported`], with advice.
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
        if self.background_rows > self.max_rows {
            return refuse(
                format!("a limit of {} rows of a background step", self.background_rows),
                &format!("use at most {}, the limit of rows of a step", self.max_rows),
            );
        }
        if !self.page_len.is_power_of_two() || self.page_len < 16 {
            return refuse(
                format!("a page of {} positions", self.page_len),
                "use a power of two, at least 16",
            );
        }
        if self.n_pages.len() != plan.kv.groups.len() {
            let what = format!(
                "page counts of {} KV groups for a plan with {}",
                self.n_pages.len(),
                plan.kv.groups.len()
            );
            return refuse(what, "use one page count for each group");
        }
        if let Some(n) = self.n_pages.iter().find(|n| **n == 0 || **n >= PAGE_NONE as usize) {
            return refuse(format!("a KV group of {n} pages"), "use 1 to 2^32 - 2");
        }
        if (self.n_states == 0) != plan.kv.states.is_empty() || self.n_states >= STATE_NONE as usize {
            let what = format!("{} states for {} recurrent layers", self.n_states, plan.kv.states.len());
            return refuse(what, "use 1 to 2^32 - 2 for a plan with recurrent layers, otherwise 0");
        }
        if !device.kv_types().contains(&self.kv_type) {
            return refuse(
                format!("a KV cache of {:?}", self.kv_type),
                &format!("use one of {:?}", device.kv_types()),
            );
        }
        for op in plan.primitives() {
            let Op::Collective { kind, x, out } = op else { continue };
            let n = device.n_ranks();
            let parts = plan.value(*out).cols / plan.value(*x).cols.max(1);
            if n == 1 || (*kind == CollectiveKind::AllGather && parts != n) {
                let what = format!("{kind} of {parts} parts on a device in a group of {n} ranks");
                return refuse(what, "compile the plans of each rank by a device of their group");
            }
        }
        let tables = plan.primitives().filter_map(|op| {
            let Op::EmbedPositions { table, .. } = op else { return None };
            Some(plan.weight(*table).n_rows())
        });
        // A plan without tokens is bounded by its tables, not by the context.
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
    /// Checks that a program compiled for these limits, whose plans have these needs, can run the
    /// step:
    ///
    /// - the plan exists, the input has its length, and sizes are within the limits;
    /// - spans cover the rows in order, and a slot has at most one span;
    /// - every position that a span writes, that its windows need, or of encoder states has a
    ///   committed page within range; a span that writes encoder states has a row for each;
    /// - every span of a plan with recurrent layers has states within range, and writes one that
    ///   nothing else in the step uses;
    /// - every span of a plan with adapters has one, within range;
    /// - every output has a want, links are of rows, and all slices are within the step's lists;
    /// - no page that one span writes is read or written by another span (checked with debug
    ///   assertions only).
    ///
    /// Allocates nothing.
    ///
    /// # Errors
    /// The rule that the step breaks.
    pub fn check(
        &self,
        plans: &[Needs],
        limits: &Limits,
        committed: &CommittedPages,
    ) -> std::result::Result<(), String> {
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
        let is_linked = |row: usize| self.links.binary_search_by_key(&(row as u32), |link| link.row).is_ok();
        let mut tokens = self.tokens.iter().enumerate();
        if let Some((_, token)) = tokens.find(|(row, t)| **t as usize >= needs.n_vocab && !is_linked(*row)) {
            return Err(format!("token {token}, expected one below {}", needs.n_vocab));
        }
        if let Some(pair) = self.outputs.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("output row {} after row {}, expected ascending rows", pair[1], pair[0]));
        }
        if let Some(row) = self.outputs.last().filter(|row| **row as usize >= n_rows) {
            return Err(format!("output row {row} of a step of {n_rows} rows"));
        }
        self.check_links()?;
        self.check_wants(needs)?;
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
                    GroupUse::EncoderStates { n, written } => {
                        if *written && (span.first_position != 0 || span.n_rows as usize != *n) {
                            return Err(format!("{span:?}, expected positions 0 to {n} of encoder states"));
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
        if let Some(last) = self.table_changes.and_then(|changes| changes.iter().max()) {
            within("page table entries", *last as usize + 1, self.page_tables.len())?;
        }
        if next_row != n_rows {
            return Err(format!("spans of {next_row} rows in a step of {n_rows} rows"));
        }
        self.check_states(needs, limits)?;
        self.check_adapters(needs)?;
        self.check_pages(needs, limits, committed)
    }

    /// Checks that the step can be computed in the background
    /// ([`crate::Program::begin_background`]): it passes [`Self::check`], and has one span, few
    /// rows, and neither outputs nor links.
    ///
    /// # Errors
    /// The rule that the step breaks.
    pub fn check_background(
        &self,
        plans: &[Needs],
        limits: &Limits,
        committed: &CommittedPages,
    ) -> std::result::Result<(), String> {
        within("rows of a step in the background", self.tokens.len(), limits.background_rows)?;
        within("spans of a step in the background", self.spans.len(), 1)?;
        within("outputs of a step in the background", self.outputs.len(), 0)?;
        within("links of a step in the background", self.links.len(), 0)?;
        self.check(plans, limits, committed)
    }

    /// Pages that the spans of a checked step use: KV group, page, and true if the page is written.
    pub fn pages<'a>(
        &'a self,
        needs: &'a Needs,
        page_len: usize,
    ) -> impl Iterator<Item = (usize, u32, bool)> + 'a {
        let n_groups = needs.groups.len();
        let of_span = move |(group, usage): (usize, &'a GroupUse), span: &'a Span| {
            let (entries, n_written) = entries_of(usage, span, page_len);
            let n_read = entries.len() - n_written;
            let pages = self.page_table(span.slot, group, n_groups)[entries].iter().enumerate();
            pages.map(move |(at, page)| (group, *page, at >= n_read))
        };
        let groups = needs.groups.iter().enumerate();
        groups.flat_map(move |group| self.spans.iter().flat_map(move |span| of_span(group, span)))
    }

    fn check_adapters(&self, needs: &Needs) -> std::result::Result<(), String> {
        let n_expected = if needs.n_adapters > 0 { self.spans.len() } else { 0 };
        if self.adapters.len() != n_expected {
            return Err(format!("adapters of {} spans, expected {n_expected}", self.adapters.len()));
        }
        match self.adapters.iter().find(|adapter| **adapter as usize >= needs.n_adapters) {
            Some(adapter) => Err(format!("adapter {adapter}, expected one below {}", needs.n_adapters)),
            None => Ok(()),
        }
    }

    fn check_states(&self, needs: &Needs, limits: &Limits) -> std::result::Result<(), String> {
        let n_expected = if needs.has_states { self.spans.len() } else { 0 };
        if self.states.len() != n_expected {
            return Err(format!("{} states, expected {n_expected}", self.states.len()));
        }
        for (index, (state, span)) in self.states.iter().zip(self.spans).enumerate() {
            if (state.from == STATE_NONE) != (span.first_position == 0) {
                return Err(format!("{state:?} of {span:?}, expected a state before it unless it begins"));
            }
            let from = if state.from == STATE_NONE { 0 } else { state.from };
            within("states", from.max(state.to) as usize + 1, limits.n_states)?;
            let mut others = self.states.iter().enumerate();
            if others.any(|(i, other)| other.from == state.to || i != index && other.to == state.to) {
                return Err(format!(
                    "state {} is written by span {index} and used by another or by itself",
                    state.to
                ));
            }
        }
        Ok(())
    }

    /// Checks that the step's plan has a node `last`, for [`crate::Program::run_until`].
    ///
    /// # Errors
    /// The plan or node that does not exist.
    pub fn check_node(&self, plans: &[Needs], last: usize) -> std::result::Result<(), String> {
        match plans.get(self.plan).map(|needs| needs.n_nodes) {
            Some(n_nodes) if last < n_nodes => Ok(()),
            Some(n_nodes) => Err(format!("node {last} of plan {}, which has {n_nodes} nodes", self.plan)),
            None => Err(format!("plan {} of a program of {}", self.plan, plans.len())),
        }
    }

    fn check_links(&self) -> std::result::Result<(), String> {
        let n_rows = self.tokens.len();
        if let Some(pair) = self.links.windows(2).find(|pair| pair[0].row >= pair[1].row) {
            return Err(format!("a link of row {} after one of row {}", pair[1].row, pair[0].row));
        }
        match self.links.last().filter(|link| link.row as usize >= n_rows) {
            Some(link) => Err(format!("a link of row {} of a step of {n_rows} rows", link.row)),
            None => Ok(()),
        }
    }

    /// Checks that each output has a want, and that its slices and their tokens are in range.
    fn check_wants(&self, needs: &Needs) -> std::result::Result<(), String> {
        if self.wants.len() != self.outputs.len() {
            return Err(format!("{} wants of {} outputs", self.wants.len(), self.outputs.len()));
        }
        let n_vocab = needs.n_logits;
        let fits = |slice: Slice, len: usize| slice.start as usize + slice.len as usize <= len;
        for want in self.wants {
            match &want.choose {
                Choose::Nothing | Choose::Best => {}
                Choose::Sample(sampling) => sampling.check()?,
                Choose::Chain(chain) => {
                    if !fits(chain.stages, self.stages.len()) {
                        return Err(format!("{:?} of {} stages", chain.stages, self.stages.len()));
                    }
                    chain.stages.of(self.stages).iter().try_for_each(crate::Stage::check)?;
                    if !(0.0..1.0).contains(&chain.random) {
                        return Err(format!(
                            "the random number {}, expected one from 0 to below 1",
                            chain.random
                        ));
                    }
                }
            }
            if let Some(penalties) = &want.penalties {
                penalties.check()?;
            }
            within("best tokens of an output", want.n_best as usize, crate::MAX_BEST)?;
            for (what, slice, len) in [
                ("recent tokens", want.recent, self.recent.len()),
                ("pending tokens", want.pending, self.pending.len()),
                ("biases", want.biases, self.biases.len()),
                ("words of masks", want.mask.unwrap_or_default(), self.masks.len()),
            ] {
                if !fits(slice, len) {
                    return Err(format!("{slice:?} of {len} {what}"));
                }
            }
            if let Some(mask) = want.mask.filter(|mask| mask.len as usize != n_vocab.div_ceil(32)) {
                return Err(format!("a mask of {} words for {n_vocab} tokens", mask.len));
            }
            let biased = want.biases.of(self.biases).iter().map(|(token, _)| token);
            if let Some(token) =
                want.recent.of(self.recent).iter().chain(biased).find(|t| **t as usize >= n_vocab)
            {
                return Err(format!("token {token} of penalties or biases, expected one below {n_vocab}"));
            }
        }
        Ok(())
    }

    fn check_pages(
        &self,
        needs: &Needs,
        limits: &Limits,
        committed: &CommittedPages,
    ) -> std::result::Result<(), String> {
        let n_groups = needs.groups.len();
        for (group, (usage, n_pages)) in needs.groups.iter().zip(&limits.n_pages).enumerate() {
            for span in self.spans {
                let (entries, n_written) = entries_of(usage, span, limits.page_len);
                let first = entries.start;
                let pages = &self.page_table(span.slot, group, n_groups)[entries];
                if let Some(at) = pages.iter().position(|page| !committed.contains(group, *page)) {
                    let page = pages[at];
                    let page = match page {
                        PAGE_NONE => "no page".to_owned(),
                        page if (page as usize) < *n_pages => format!("page {page}, which is not committed,"),
                        page => format!("page {page}"),
                    };
                    let position = (first + at) * limits.page_len;
                    return Err(format!(
                        "slot {} has {page} at position {position} of KV group {group}, expected one of {n_pages}",
                        span.slot
                    ));
                }
                let written = &pages[pages.len() - n_written..];
                // A scheduler that breaks this rule has a defect, which costs `spans * spans *
                // pages` comparisons to find.
                if !cfg!(debug_assertions) {
                    continue;
                }
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

/// Entries of a group's page table that a span needs, and the number of written entries at their
/// end.
fn entries_of(usage: &GroupUse, span: &Span, page_len: usize) -> (Range<usize>, usize) {
    match usage {
        GroupUse::Unused => (0..0, 0),
        GroupUse::Sequence { window } => {
            let first = window.map_or(0, |window| (span.first_position as usize + 1).saturating_sub(window));
            let end = span.end().div_ceil(page_len);
            (first / page_len..end, end - span.first_position as usize / page_len)
        }
        GroupUse::EncoderStates { n, written } => {
            let end = n.div_ceil(page_len);
            (0..end, if *written { end } else { 0 })
        }
    }
}

fn within(what: &str, n: usize, limit: usize) -> std::result::Result<(), String> {
    if n <= limit { Ok(()) } else { Err(format!("{n} {what}, expected at most {limit}")) }
}
