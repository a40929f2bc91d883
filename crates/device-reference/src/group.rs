//! Collective: ranks of one process, each on its own thread, which wait for each other.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use device::CollectiveKind;

/// Time that a rank waits for the others before it reports that they are gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Exchanged values of one collective.
#[derive(Debug, Default)]
struct Round {
    /// `(n, cols)` of each rank, once it has arrived.
    parts: Vec<Option<Vec<f32>>>,
    /// Number of ranks that have read all parts.
    n_done: usize,
}

#[derive(Debug)]
struct Group {
    round: Mutex<Round>,
    changed: Condvar,
}

/// Rank of an interpreter in a group.
#[derive(Clone, Debug)]
pub struct Rank {
    index: usize,
    n: usize,
    group: Arc<Group>,
}

impl Rank {
    /// The ranks of a new group.
    pub fn all(n: usize) -> Vec<Rank> {
        let round = Round { parts: vec![None; n], n_done: 0 };
        let group = Arc::new(Group { round: Mutex::new(round), changed: Condvar::new() });
        (0..n).map(|index| Rank { index, n, group: group.clone() }).collect()
    }

    /// Number of ranks of the group.
    pub fn n_ranks(&self) -> usize {
        self.n
    }

    /// Combines `x (n, cols)` of all ranks to `out`, which is `(n, cols)` or `(n, n_ranks * cols)`.
    ///
    /// # Errors
    /// Another rank did not arrive in time.
    pub fn collective(
        &self,
        kind: CollectiveKind,
        x: &[f32],
        cols: usize,
        out: &mut [f32],
    ) -> Result<(), String> {
        let Group { round, changed } = &*self.group;
        let lock = round.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = |lock, until: &dyn Fn(&Round) -> bool| {
            let waited = changed.wait_timeout_while(lock, PATIENCE, |round: &mut Round| !until(round));
            let (lock, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            match waited.timed_out() {
                true => Err(format!("rank {} of {} waited too long for the other ranks", self.index, self.n)),
                false => Ok(lock),
            }
        };
        // This rank's part of the round before remains until the last rank has read it.
        let mut lock = wait(lock, &|round| round.parts[self.index].is_none())?;
        lock.parts[self.index] = Some(x.to_vec());
        changed.notify_all();
        let mut lock = wait(lock, &|round| round.parts.iter().all(Option::is_some))?;
        let parts = lock.parts.iter().flatten();
        match kind {
            CollectiveKind::AllReduce => {
                out.fill(0.0);
                for part in parts {
                    out.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
                }
            }
            CollectiveKind::AllGather => {
                for (rank, part) in parts.enumerate() {
                    let rows = out.chunks_exact_mut(self.n * cols).zip(part.chunks_exact(cols));
                    rows.for_each(|(out, x)| out[rank * cols..][..cols].copy_from_slice(x));
                }
            }
        }
        lock.n_done += 1;
        if lock.n_done == self.n {
            *lock = Round { parts: vec![None; self.n], n_done: 0 };
            changed.notify_all();
        }
        Ok(())
    }
}
