//! Sharing of prompts: a prompt takes over rows that others have computed, and waits for rows that
//! another one is computing.

use super::{Flight, Scheduler};
use crate::kv::common_len;

/// Least number of tokens for which a prompt waits for another one, or copies a part of a page from
/// a running sequence.
const LEAST_SHARED: usize = 16;

impl Scheduler {
    /// Take over the rows of a prompt that are computed already, from the prefix cache or from a
    /// running sequence with the same tokens.
    pub(super) fn take_over(&mut self, slot: usize) {
        let Some(sequence) = &self.slots[slot] else { return };
        if !sequence.reuse
            || !sequence.rows_to_score().is_empty()
            || sequence.n_submitted != sequence.n_computed
        {
            return;
        }
        // The last token is always computed, since its logits are needed.
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        // A prefix that ends within an image that must be whole ends before it.
        let whole = |n: usize| sequence.images.as_ref().map_or(n, |images| images.whole(n));
        // Both calls to the cache use the same number of tokens: with fewer it may find another
        // branch, which has less.
        let mut n_asked = known.len();
        let mut n_found = self.kv.n_cached(sequence.salt, known);
        while whole(n_found) < n_found {
            n_asked = whole(n_found);
            n_found = self.kv.n_cached(sequence.salt, &known[..n_asked]);
        }
        let n_cached = n_found.max(sequence.n_computed);
        let others = self.slots.iter().enumerate();
        let shared = others.filter_map(|(other, o)| {
            let o = o.as_ref().filter(|o| o.reuse && o.salt == sequence.salt)?;
            let n = whole(common_len(known, &o.tokens[..o.n_computed]));
            // Half a page requires copying a page.
            let is_worth_it =
                n >= n_cached + LEAST_SHARED || n > n_cached && n.is_multiple_of(self.limits.page_len);
            (is_worth_it && self.kv.can_fork(other, n)).then_some((n, other))
        });
        let best = shared.max();
        let n_before = sequence.n_computed;
        let n_computed = match best {
            Some((n, other)) => {
                self.kv.end(slot);
                self.kv.fork(other, slot, n);
                n
            }
            None if n_cached > n_before => {
                self.kv.end(slot);
                self.kv.begin(slot, sequence.salt, &known[..n_asked])
            }
            None => return,
        };
        let Some(sequence) = &mut self.slots[slot] else { return };
        (sequence.n_computed, sequence.n_submitted) = (n_computed, n_computed);
        self.totals.n_cached += (n_computed - n_before) as u64;
        if sequence.n_restarts == 0 {
            let n_gained = n_computed - n_before;
            sequence.n_reused += n_gained;
            // Cached tokens are free for a tenant.
            self.queue.charge(sequence.tenant, -(n_gained as i64));
        }
    }

    /// Returns true if another prompt with rows in this step, or in the background, computes the
    /// rows that this one needs next. This one then waits, and takes them over. That is decided
    /// anew for each step, so a waiting prompt goes on when the other one ends. The first prompt of
    /// a step never waits.
    pub(super) fn is_computed_by_another(&self, slot: usize, flight: &Flight) -> bool {
        let sequence = self.slots[slot].as_ref().filter(|s| s.reuse && s.rows_to_score().is_empty());
        let Some(sequence) = sequence else { return false };
        let known = &sequence.tokens[..sequence.tokens.len() - 1];
        let rows =
            flight.spans.iter().map(|span| (span.slot, span.n_rows)).chain(self.pacing.background.rows());
        rows.into_iter().any(|(slot, n_rows)| {
            let Some(other) = &self.slots[slot] else { return false };
            other.in_prompt && other.reuse && other.salt == sequence.salt && {
                let n_shared = common_len(known, &other.tokens);
                // The other prompt will be ahead after this step, and did not have all shared rows
                // before.
                n_shared >= sequence.n_computed + LEAST_SHARED
                    && other.n_computed < n_shared
                    && other.n_computed + n_rows > sequence.n_computed
            }
        })
    }
}
