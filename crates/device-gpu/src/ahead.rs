//! Steps in flight: their tickets, the tokens that they chose, the tokens to which later steps may
//! link, and the outputs whose tokens kernels choose.

use device::{Choose, Chosen, OutputRef, Sampling, Want};
use device_lower::table::StepSizes;
use std::collections::VecDeque;

/// This bit marks a token that an earlier output chose; the others are its index among the chosen
/// tokens.
pub const LINKED: u32 = 1 << 31;

/// The word for no token in the buffer of chosen tokens.
pub const NO_TOKEN: u32 = u32::MAX;

/// Maximum number of tokens of an output whose penalties kernels apply.
pub const MOST_PENALISED: usize = 4096;

/// Maximum number of biases of an output that kernels apply.
pub const MOST_BIASES: usize = 1024;

/// A step that was submitted and not waited for.
#[derive(Debug)]
pub struct InFlight<T> {
    /// Its ticket.
    pub ticket: u64,
    /// Index of its plan.
    pub plan: usize,
    /// Sizes by which its table was chosen.
    pub sizes: StepSizes,
    /// The launched work; `None`: it has no rows, or was waited for already.
    pub work: Option<T>,
}

/// The last step that was waited for, or the last [`device::Program::run_until`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// The step's ticket; `None`: the step chose nothing.
    pub ticket: Option<u64>,
    /// Index of its plan.
    pub plan: usize,
    /// Sizes by which its table was chosen.
    pub sizes: StepSizes,
    /// True if no later step was submitted, which writes the same memory.
    pub is_fresh: bool,
    /// Number of commands that ran; `None`: all.
    pub until: Option<usize>,
}

/// The tokens that a step chose.
#[derive(Debug)]
pub struct Outputs {
    /// Number of outputs.
    pub n: usize,
    /// Logits of each output.
    pub n_logits: usize,
    /// True once the host has chosen.
    pub is_chosen: bool,
    /// True if an output's logits are wanted.
    pub wants_logits: bool,
    /// Choices, filled when the step is waited for, or when the host chooses. Capacity:
    /// `max_outputs`.
    pub chosen: Vec<Chosen>,
    /// Best tokens of all outputs, one output after the other; grows only if a step ranks tokens.
    pub best: Vec<(u32, f32)>,
    /// `(n)` end of each output's best tokens in `best`; empty unless the host has chosen.
    pub best_ends: Vec<usize>,
}

impl Outputs {
    fn new(max_outputs: usize) -> Outputs {
        Outputs {
            n: 0,
            n_logits: 0,
            is_chosen: false,
            wants_logits: false,
            chosen: Vec::with_capacity(max_outputs),
            best: Vec::new(),
            best_ends: Vec::with_capacity(max_outputs),
        }
    }

    /// Empties it for another step.
    pub fn begin(&mut self, n: usize, n_logits: usize) {
        (self.n, self.n_logits, self.is_chosen) = (n, n_logits, false);
        self.chosen.clear();
        self.best.clear();
        self.best_ends.clear();
    }

    /// The best tokens of an output.
    pub fn best(&self, output: usize) -> &[(u32, f32)] {
        let Some(end) = self.best_ends.get(output) else { return &[] };
        let start = if output == 0 { 0 } else { self.best_ends[output - 1] };
        &self.best[start..*end]
    }
}

/// The steps of one program.
#[derive(Debug)]
pub struct Ahead<T> {
    /// The next step's ticket.
    pub next: u64,
    /// Steps that were submitted and not waited for, the oldest first.
    pub in_flight: VecDeque<InFlight<T>>,
    /// Steps below this ticket are invalid: one of them failed while they were in flight.
    pub failed_below: u64,
    /// The step that was waited for last.
    pub done: Done,
    /// Outputs of the last steps, each at its ticket modulo their number.
    outputs: Vec<Outputs>,
}

impl<T> Ahead<T> {
    /// No steps so far. The outputs of `n_kept` steps are kept, twice the most steps in flight.
    /// Until a step is waited for, it may link to the step that had been waited for last at its
    /// submission.
    pub fn new(n_kept: usize, max_outputs: usize) -> Ahead<T> {
        Ahead {
            next: 0,
            in_flight: VecDeque::with_capacity(n_kept),
            failed_below: 0,
            done: Done::default(),
            outputs: (0..n_kept).map(|_| Outputs::new(max_outputs)).collect(),
        }
    }

    fn place(&self, ticket: u64) -> usize {
        (ticket % self.outputs.len() as u64) as usize
    }

    /// Outputs of a step that is in flight or was the last to be waited for.
    pub fn outputs_of(&self, ticket: u64) -> &Outputs {
        &self.outputs[self.place(ticket)]
    }

    /// Like [`Self::outputs_of`], to fill.
    pub fn outputs_of_mut(&mut self, ticket: u64) -> &mut Outputs {
        let place = self.place(ticket);
        &mut self.outputs[place]
    }

    /// The oldest step whose choices are kept: the last that was waited for.
    pub fn oldest_kept(&self) -> u64 {
        (self.next - self.in_flight.len() as u64).saturating_sub(1)
    }

    /// Checks that the tokens of an output are kept, and are below `n_tokens`.
    ///
    /// # Errors
    /// The reason why a step may not link to the output.
    pub fn check_link(&self, from: OutputRef, n_tokens: usize) -> Result<(), String> {
        let ticket = from.ticket.0;
        if ticket >= self.next || ticket < self.oldest_kept().max(self.failed_below) {
            return Err(format!(
                "a link to step {ticket}, which is neither in flight nor the last that was waited for"
            ));
        }
        let outputs = self.outputs_of(ticket);
        if from.output as usize >= outputs.n {
            let n = outputs.n;
            return Err(format!("a link to output {} of step {ticket}, which has {n}", from.output));
        }
        if outputs.n_logits > n_tokens {
            let n = outputs.n_logits;
            return Err(format!("a link to a choice among {n} tokens, expected at most {n_tokens}"));
        }
        Ok(())
    }

    /// Removes the oldest step in flight, which is waited for.
    ///
    /// # Errors
    /// `ticket` is not the oldest, or a step before it failed.
    pub fn take(&mut self, ticket: u64) -> Result<InFlight<T>, String> {
        match self.in_flight.front().map(|step| step.ticket) {
            Some(first) if first == ticket => {}
            Some(first) => return Err(format!("step {ticket} is waited for before step {first}")),
            None => return Err(format!("step {ticket} is waited for, and none is in flight")),
        }
        self.done = Done::default();
        match self.in_flight.pop_front() {
            Some(_) if ticket < self.failed_below => {
                Err(format!("step {ticket} was submitted after a step that failed"))
            }
            Some(step) => Ok(step),
            None => Err(format!("step {ticket} is not in flight")),
        }
    }

    /// Checks that no step is in flight.
    ///
    /// # Errors
    /// Some are.
    pub fn refuse_company(&self) -> Result<(), String> {
        match self.in_flight.len() {
            0 => Ok(()),
            n => Err(format!("{n} steps are in flight, expected none")),
        }
    }
}

/// Number of tokens of an output that have penalties.
pub fn n_penalised(want: &Want) -> usize {
    if want.penalties.is_some() { want.recent.len as usize + want.pending.len as usize } else { 0 }
}

/// Returns true if kernels compute everything that `want` requests of an output besides its logits.
/// They choose the best token, or sample by temperature, top-k, top-p and min-p, after a mask,
/// biases and penalties.
pub fn has_kernels(want: &Want) -> bool {
    let n_penalised = n_penalised(want);
    matches!(want.choose, Choose::Best | Choose::Sample(_))
        && !want.logprob
        && want.n_best == 0
        && n_penalised <= MOST_PENALISED
        && want.biases.len as usize <= MOST_BIASES
        // Kernels change logits in place, so the caller cannot have the original logits as well.
        && !(want.logits && (n_penalised > 0 || want.biases.len > 0 || want.mask.is_some()))
}

/// The parameters of a sampler as kernels read them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingWords {
    /// Top-k; 0: all tokens.
    pub top_k: u32,
    /// Top-p in units of 2^-32, at least 1; 0: all tokens.
    pub nucleus: u32,
    /// The random number in units of 2^-64.
    pub random: u64,
    /// Temperature, above 0.
    pub temperature: f32,
    /// Logarithm of min-p.
    pub floor: f32,
}

impl From<Sampling> for SamplingWords {
    fn from(sampling: Sampling) -> SamplingWords {
        let Sampling { temperature, top_k, top_p, min_p, random } = sampling;
        let nucleus = (f64::from(top_p) * 2f64.powi(32)) as u32;
        SamplingWords {
            top_k: u32::try_from(top_k).unwrap_or(0),
            nucleus: if top_p < 1.0 { nucleus.max(1) } else { 0 },
            // Exact: the random number has 53 bits.
            random: (random * 2f64.powi(64)) as u64,
            temperature,
            floor: min_p.ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Ticket;

    #[test]
    fn steps_are_taken_in_order_and_links_reach_the_last() {
        let mut ahead: Ahead<()> = Ahead::new(4, 2);
        for ticket in 0..2 {
            ahead.outputs_of_mut(ticket).begin(1, 50);
            ahead.next += 1;
            ahead.in_flight.push_back(InFlight { ticket, plan: 0, sizes: StepSizes::default(), work: None });
        }
        let link = |ticket, output| OutputRef { ticket: Ticket(ticket), output };
        assert!(ahead.take(1).unwrap_err().contains("before step 0"));
        assert!(ahead.refuse_company().is_err());
        assert_eq!(ahead.take(0).unwrap().ticket, 0);
        assert_eq!(ahead.check_link(link(0, 0), 50), Ok(()));
        assert!(ahead.check_link(link(0, 1), 50).unwrap_err().contains("which has 1"));
        assert!(ahead.check_link(link(0, 0), 49).unwrap_err().contains("at most 49"));
        assert!(ahead.check_link(link(2, 0), 50).is_err());
        ahead.failed_below = 2;
        assert!(ahead.take(1).unwrap_err().contains("failed"));
        assert!(ahead.check_link(link(0, 0), 50).is_err());
    }
}
