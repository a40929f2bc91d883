//! The program: each step runs on all ranks at once. The first rank runs on the caller's thread,
//! the others on their own.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use device::{
    Chosen, CommandInfo, CommittedPages, Error, OwnedStep, Plan, Program, Result, Step, Ticket, Timing,
    ValueId, Want,
};

use crate::NAME;
use crate::shard::Ranked;
use crate::spread::{Spread, joined};
use crate::worker::{Answer, Command, Worker, copy, obey};

/// Placement of a plan on the ranks.
pub struct PlanOfRanks {
    /// Placement, columns, and id on each rank, for each value of the plan.
    values: Vec<(Spread, usize, Vec<ValueId>)>,
    /// For each node of the plan and each rank, the rank's node that completes it; `None` if no
    /// node of the rank precedes its end.
    ends: Vec<Vec<Option<usize>>>,
    /// For each node of the first rank's plan, the node of the plan.
    starts: Vec<usize>,
}

impl PlanOfRanks {
    /// The placement of `plan`. `ranked` divide it without its fused nodes; `fused` are their plans
    /// as the devices compile them.
    pub fn new<'a>(plan: &Plan, ranked: Vec<Ranked>, fused: impl Iterator<Item = &'a Plan>) -> PlanOfRanks {
        // Node of each primitive, by rank.
        let nodes: Vec<Vec<usize>> = fused
            .map(|plan| {
                let of = |(index, node): (usize, &device::Node)| vec![index; node.op.primitives().len()];
                plan.nodes.iter().enumerate().flat_map(of).collect()
            })
            .collect();
        let mut n_primitives = 0;
        let mut ends: Vec<Vec<Option<usize>>> = Vec::with_capacity(plan.nodes.len());
        for node in &plan.nodes {
            n_primitives += node.op.primitives().len();
            let end = |(ranked, nodes): (&Ranked, &Vec<usize>)| {
                ranked.ends[n_primitives - 1].checked_sub(1).and_then(|last| nodes.get(last).copied())
            };
            ends.push(ranked.iter().zip(&nodes).map(end).collect());
        }
        let n_nodes = nodes.first().and_then(|nodes| nodes.last()).map_or(0, |last| last + 1);
        let start = |node: usize| {
            let found = ends.iter().position(|ends| ends.first().copied().flatten() >= Some(node));
            found.unwrap_or(plan.nodes.len().saturating_sub(1))
        };
        let value = |(index, value): (usize, &device::Value)| {
            let spread = ranked.first().map_or(Spread::Whole, |first| first.spread[index]);
            (spread, value.cols, ranked.iter().map(|ranked| ranked.local[index]).collect())
        };
        PlanOfRanks {
            starts: (0..n_nodes).map(start).collect(),
            values: plan.values.iter().enumerate().map(value).collect(),
            ends,
        }
    }
}

/// Programs of all ranks.
pub struct ParallelProgram {
    first: Box<dyn Program>,
    others: Vec<Worker>,
    plans: Vec<PlanOfRanks>,
    /// Held while the ranks receive a step; see [`crate::ParallelDevice`].
    order: Arc<Mutex<()>>,
    /// Memory for a copy of a step.
    step: Arc<OwnedStep>,
    /// Plan of the last step.
    plan: usize,
}

impl ParallelProgram {
    /// A program of the ranks' programs, in their order.
    ///
    /// # Errors
    /// The system cannot create threads.
    pub fn new(
        programs: Vec<Box<dyn Program>>,
        plans: Vec<PlanOfRanks>,
        order: Arc<Mutex<()>>,
    ) -> Result<ParallelProgram> {
        let mut programs = programs.into_iter().enumerate();
        let Some((_, first)) = programs.next() else { return failed("no ranks".to_owned()) };
        let others = programs.map(|(rank, program)| Worker::start(program, rank)).collect::<Result<_>>()?;
        Ok(ParallelProgram { first, others, plans, order, step: Arc::default(), plan: 0 })
    }

    /// Runs all ranks at once: the first runs `first` on this thread, each other rank its
    /// `command`. Returns when all have answered.
    fn together<T>(
        &mut self,
        command: impl Fn(usize) -> Command,
        first: impl FnOnce(&mut dyn Program) -> Result<T>,
    ) -> (Result<T>, Vec<Result<Answer>>) {
        for (index, worker) in self.others.iter().enumerate() {
            worker.give(command(index + 1));
        }
        let first = first(self.first.as_mut());
        (first, self.others.iter().map(Worker::answer).collect())
    }

    /// Sends a command to all ranks at once. Returns the first rank's answer once all have
    /// answered.
    fn all(&mut self, command: &Command) -> Result<Answer> {
        agreed(self.together(|_| command.clone(), |program| obey(program, command)))
    }

    fn refuse_stopped(step: &Step) -> Result<()> {
        if step.is_stopped() { Err(Error::Stopped { device: NAME }) } else { Ok(()) }
    }
}

impl Program for ParallelProgram {
    fn max_in_flight(&self) -> usize {
        self.first.max_in_flight()
    }

    fn steps_ahead(&self, n_sequences: usize) -> usize {
        self.first.steps_ahead(n_sequences)
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        self.first.chooses_in_flight(want)
    }

    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        Self::refuse_stopped(step)?;
        let command = Command::Submit(copy(step, &mut self.step));
        self.plan = step.plan;
        let order = self.order.clone();
        let _held = order.lock().unwrap_or_else(PoisonError::into_inner);
        match self.all(&command)? {
            Answer::Ticket(ticket) => Ok(ticket),
            Answer::Done | Answer::Value(_) => failed("a step without a ticket".to_owned()),
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.all(&Command::Wait(ticket)).map(drop)
    }

    fn chosen(&self) -> &[Chosen] {
        self.first.chosen()
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.first.best(output)
    }

    fn logits(&self) -> &[f32] {
        self.first.logits()
    }

    fn kept(&self, index: usize) -> &[f32] {
        self.first.kept(index)
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        Self::refuse_stopped(step)?;
        let ends = self.plans.get(step.plan).and_then(|plan| plan.ends.get(last)).cloned();
        let Some(ends) = ends else { return failed(format!("node {last} of plan {}", step.plan)) };
        let step_of_all = copy(step, &mut self.step);
        self.plan = step.plan;
        let order = self.order.clone();
        let _held = order.lock().unwrap_or_else(PoisonError::into_inner);
        // A rank without a finished node runs its first node, whose value is whole on all ranks.
        let command = |end: &Option<usize>| Command::RunUntil(step_of_all.clone(), end.unwrap_or(0));
        let answers = self.together(|rank| command(&ends[rank]), |program| obey(program, &command(&ends[0])));
        agreed(answers).map(drop)
    }

    /// Reads a value from all ranks, and concatenates or adds the parts.
    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let (spread, cols, ids) = self.plans.get(self.plan)?.values.get(value.0 as usize)?;
        if *spread == Spread::Whole {
            return self.first.read(*ids.first()?);
        }
        for (worker, id) in self.others.iter().zip(&ids[1..]) {
            worker.give(Command::Read(*id));
        }
        let first = self.first.read(*ids.first()?);
        let others: Vec<Result<Answer>> = self.others.iter().map(Worker::answer).collect();
        let mut parts = vec![first?];
        for answer in others {
            match answer {
                Ok(Answer::Value(Some(part))) => parts.push(part),
                Ok(_) | Err(_) => return None,
            }
        }
        Some(joined(*spread, *cols, parts))
    }

    fn committed(&self) -> &CommittedPages {
        self.first.committed()
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let commit = Command::Commit(group, pages.start, pages.end);
        let (first, others) = self.together(|_| commit.clone(), |program| obey(program, &commit));
        if first.is_ok() && others.iter().all(Result::is_ok) {
            return Ok(());
        }
        // All ranks commit the pages, or none does.
        let decommit = Command::Decommit(group, pages.start, pages.end);
        for (worker, answer) in self.others.iter().zip(&others) {
            if answer.is_ok() {
                worker.give(decommit.clone());
                worker.answer()?;
            }
        }
        if first.is_ok() {
            obey(self.first.as_mut(), &decommit)?;
        }
        agreed((first, others)).map(drop)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.all(&Command::Decommit(group, pages.start, pages.end)).map(drop)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.all(&Command::CopyPage(group, from, to)).map(drop)
    }

    /// Commands of the first rank.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        let Some(of) = self.plans.get(plan) else { return Vec::new() };
        let commands = self.first.commands(plan, n_rows).into_iter();
        let node = |node: usize| of.starts.get(node).copied().unwrap_or(0);
        commands.map(|info| CommandInfo { node: node(info.node), ..info }).collect()
    }

    /// Times of the first rank's commands. Collectives include the wait for other ranks.
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        Self::refuse_stopped(step)?;
        let mine = copy(step, &mut self.step);
        self.plan = step.plan;
        let order = self.order.clone();
        let _held = order.lock().unwrap_or_else(PoisonError::into_inner);
        let timed = |program: &mut dyn Program| program.run_timed(&mine.borrow(), timings);
        agreed(self.together(|_| Command::Run(mine.clone()), timed))
    }
}

/// The first rank's result, if no rank failed. An error of the first rank takes precedence, since
/// usually all ranks have the same error.
fn agreed<T>((first, others): (Result<T>, Vec<Result<Answer>>)) -> Result<T> {
    let first = first?;
    others.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(first)
}

fn failed<T>(reason: String) -> Result<T> {
    Err(Error::Failed { device: NAME, reason })
}
