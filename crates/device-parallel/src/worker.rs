//! A thread that drives a rank's program: it is given one command, and gives one answer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Error, OwnedStep, Program, Result, Step, Ticket, ValueId};

use crate::NAME;

/// How long a thread looks for what it waits for before it sleeps: a step of a small model comes within it.
const SPIN: Duration = Duration::from_micros(200);

/// What a rank shall do.
#[derive(Clone, Debug)]
pub enum Command {
    /// Submit a step.
    Submit(Arc<OwnedStep>),
    /// Submit a step and wait for it.
    Run(Arc<OwnedStep>),
    /// Run a step up to a node of the rank's plan.
    RunUntil(Arc<OwnedStep>, usize),
    /// Wait for the oldest step.
    Wait(Ticket),
    /// Read a value.
    Read(ValueId),
    /// Take memory for pages of a group, from the first to before the last.
    Commit(usize, u32, u32),
    /// Give it back.
    Decommit(usize, u32, u32),
    /// Copy a page of a group.
    CopyPage(usize, u32, u32),
}

/// What came of it.
#[derive(Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// The step that was submitted.
    Ticket(Ticket),
    /// The value, if it can be read.
    Value(Option<Vec<f32>>),
}

/// Do what a command says.
///
/// # Errors
/// Those of the program.
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

/// Whose turn it is.
const IDLE: u32 = 0;
const GIVEN: u32 = 1;
const ANSWERED: u32 = 2;
const ENDED: u32 = 3;

struct Shared {
    turn: AtomicU32,
    /// The command, then the answer.
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

    /// Wait until it is one of these turns, which one.
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

/// A rank's thread.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Start it with its program.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(mut program: Box<dyn Program>, rank: usize) -> Result<Worker> {
        let shared = Arc::new(Shared {
            turn: AtomicU32::new(IDLE),
            slot: Mutex::new((None, None)),
            changed: Condvar::new(),
        });
        let mine = shared.clone();
        let run = move || {
            // Whatever ends this thread, nobody waits for its answer.
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

    /// Give it a command; [`Self::answer`] comes next.
    pub fn give(&self, command: Command) {
        self.shared.pass(GIVEN, |slot| slot.0 = Some(command));
    }

    /// Wait for what came of the command.
    ///
    /// # Errors
    /// Those of the program; or its thread has ended.
    pub fn answer(&self) -> Result<Answer> {
        self.shared.wait([ANSWERED, ENDED]);
        let answer = self.shared.slot.lock().unwrap_or_else(PoisonError::into_inner).1.take();
        answer.unwrap_or_else(|| Err(failed("the thread of a rank has ended".to_owned())))
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
            // A panic of it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A copy of a step for all ranks. Nobody stops it: they would stop at different places, and wait for each other.
pub fn copy(step: &Step, room: &mut Arc<OwnedStep>) -> Arc<OwnedStep> {
    match Arc::get_mut(room) {
        Some(owned) => owned.assign(step),
        None => *room = Arc::new(OwnedStep::from(step)),
    }
    room.clone()
}
