//! A thread that drives a rank's program: it receives a command, and returns an answer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Error, OwnedStep, Program, Result, Step, Ticket, ValueId};

use crate::NAME;

/// Time that a thread spins before it sleeps; a step of a small model is shorter.
const SPIN: Duration = Duration::from_micros(200);

/// Command to a rank.
#[derive(Clone, Debug)]
pub enum Command {
    /// Submit a step.
    Submit(Arc<OwnedStep>),
    /// Submit a step and wait for it.
    Run(Arc<OwnedStep>),
    /// Run a step up to and including a node of the rank's plan.
    RunUntil(Arc<OwnedStep>, usize),
    /// Wait for the oldest step.
    Wait(Ticket),
    /// Read a value.
    Read(ValueId),
    /// Commit pages of a group, from the first to before the last.
    Commit(usize, u32, u32),
    /// Decommit pages of a group, from the first to before the last.
    Decommit(usize, u32, u32),
    /// Copy a page of a group.
    CopyPage(usize, u32, u32),
}

/// Answer to a command.
#[derive(Debug)]
pub enum Answer {
    /// The command is done.
    Done,
    /// Ticket of the submitted step.
    Ticket(Ticket),
    /// The value, if it can be read.
    Value(Option<Vec<f32>>),
}

/// Runs a command.
///
/// # Errors
/// As the program.
pub fn obey(program: &mut dyn Program, command: &Command) -> Result<Answer> {
    Ok(match command {
        Command::Submit(step) => Answer::Ticket(program.submit(&step.borrow())?),
        Command::Run(step) => {
            program.run(&step.borrow())?;
            Answer::Done
        }
        Command::RunUntil(step, last) => {
            program.run_until(&step.borrow(), *last)?;
            Answer::Done
        }
        Command::Wait(ticket) => {
            program.wait(*ticket)?;
            Answer::Done
        }
        Command::Read(value) => Answer::Value(program.read(*value)),
        Command::Commit(group, start, end) => {
            program.commit(*group, *start..*end)?;
            Answer::Done
        }
        Command::Decommit(group, start, end) => {
            program.decommit(*group, *start..*end)?;
            Answer::Done
        }
        Command::CopyPage(group, from, to) => {
            program.copy_page(*group, *from, *to)?;
            Answer::Done
        }
    })
}

/// States of a channel: nobody's turn, the worker's, or the caller's.
const IDLE: u32 = 0;
const GIVEN: u32 = 1;
const ANSWERED: u32 = 2;
const ENDED: u32 = 3;

struct Shared {
    turn: AtomicU32,
    /// The command, later the answer.
    slot: Mutex<(Option<Command>, Option<Result<Answer>>)>,
    changed: Condvar,
}

impl Shared {
    fn pass(&self, turn: u32, fill: impl FnOnce(&mut (Option<Command>, Option<Result<Answer>>))) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        fill(&mut slot);
        self.turn.store(turn, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until the state is one of `turns`, and returns it.
    fn wait(&self, turns: [u32; 2]) -> u32 {
        let begun = Instant::now();
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if turns.contains(&turn) {
                return turn;
            }
            if begun.elapsed() > SPIN {
                break;
            }
            std::hint::spin_loop();
        }
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |_: &mut _| !turns.contains(&self.turn.load(Ordering::Acquire));
        drop(self.changed.wait_while(slot, waiting).unwrap_or_else(PoisonError::into_inner));
        self.turn.load(Ordering::Acquire)
    }
}

/// Thread of a rank.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread with its program.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(mut program: Box<dyn Program>, rank: usize) -> Result<Worker> {
        let shared = Arc::new(Shared {
            turn: AtomicU32::new(IDLE),
            slot: Mutex::new((None, None)),
            changed: Condvar::new(),
        });
        let mine = shared.clone();
        let run = move || {
            // Whatever ends this thread, its caller does not wait forever.
            let _ended = EndsTurns(mine.clone());
            while mine.wait([GIVEN, ENDED]) == GIVEN {
                let command = mine.slot.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let answer = command.map(|command| obey(program.as_mut(), &command));
                mine.pass(ANSWERED, |slot| slot.1 = answer);
            }
        };
        let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn(run);
        let thread = thread.map_err(|error| failed(format!("a thread for rank {rank}: {error}")))?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    /// Sends a command; [`Self::answer`] must follow.
    pub fn give(&self, command: Command) {
        self.shared.pass(GIVEN, |slot| slot.0 = Some(command));
    }

    /// Waits for the answer to the command.
    ///
    /// # Errors
    /// As the program; or its thread has ended.
    pub fn answer(&self) -> Result<Answer> {
        self.shared.wait([ANSWERED, ENDED]);
        let answer = self.shared.slot.lock().unwrap_or_else(PoisonError::into_inner).1.take();
        answer.unwrap_or_else(|| Err(failed("the thread of another rank has ended".to_owned())))
    }
}

fn failed(reason: String) -> Error {
    Error::Failed { device: NAME, reason }
}

struct EndsTurns(Arc<Shared>);

impl Drop for EndsTurns {
    fn drop(&mut self) {
        self.0.pass(ENDED, |_| ());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.pass(ENDED, |_| ());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A copy of a step for all ranks, without its stop flag: ranks would stop at different commands,
/// and wait for each other.
pub fn copy(step: &Step, room: &mut Arc<OwnedStep>) -> Arc<OwnedStep> {
    match Arc::get_mut(room) {
        Some(owned) => owned.assign(step),
        None => *room = Arc::new(OwnedStep::from(step)),
    }
    room.clone()
}
