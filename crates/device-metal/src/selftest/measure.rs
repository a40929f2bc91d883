//! Times of work: repetitions fill a command buffer, and the median of a few counts. Work that heat
//! slowed down is measured again.

use super::models::{self, Shape};
use crate::gpu::MetalGpu;
use device::Result;
use device_check::RecurrentShape;
use device_gpu::replayer::Times;
use std::time::Duration;

/// Maximum number of repetitions of a command buffer. Their encoding takes some milliseconds.
const MOST: f64 = 2000.0;

/// Number of times that a measurement is repeated, and seconds before each, at most.
const MOST_REPEATS: usize = 2;
const MOST_PAUSES: usize = 30;

/// Measures, and again if heat slowed the GPU down: after a pause in which it cools. Returns true
/// beside the result if heat slowed the last measurement down too.
///
/// # Errors
/// As `measure`.
pub fn unslowed<G: MetalGpu, T>(gpu: &G, measure: &mut dyn FnMut() -> Result<T>) -> Result<(T, bool)> {
    repeated(measure, &mut || gpu.is_slowed(), &mut || std::thread::sleep(Duration::from_secs(1)))
}

fn repeated<T>(
    measure: &mut dyn FnMut() -> Result<T>,
    is_slowed: &mut dyn FnMut() -> bool,
    pause: &mut dyn FnMut(),
) -> Result<(T, bool)> {
    let mut measured = measure()?;
    for _ in 0..MOST_REPEATS {
        if !is_slowed() {
            return Ok((measured, false));
        }
        (0..MOST_PAUSES).take_while(|_| is_slowed()).for_each(|_| pause());
        measured = measure()?;
    }
    Ok((measured, is_slowed()))
}

/// The amount of work that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seconds that the repetitions of a command buffer fill. macOS ends command buffers of
    /// several seconds.
    pub seconds: f64,
    /// Command buffers of which the median counts.
    pub n_runs: usize,
    /// Bytes of matrices, at least; more than caches hold.
    pub matrix_bytes: usize,
    /// The model of a run of tokens.
    pub model: Shape,
    /// Models whose commands are timed: with heads of 64 and 128 columns, and with experts.
    pub listed: [Shape; 3],
    /// Models over which a profile is searched.
    pub searched: &'static [Shape],
    /// Seconds of all runs of a candidate of the search and of its incumbent.
    pub candidate_seconds: f64,
    /// Number of pairs of runs of a candidate and its incumbent.
    pub n_pairs: usize,
    /// Tokens of a run, at most.
    pub n_tokens: usize,
    /// Rows of a step of a small batch, and of a chunk.
    pub rows: [usize; 2],
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Positions of decode.
    pub positions: [usize; 3],
    /// Heads of a recurrent layer.
    pub scan: RecurrentShape,
}

impl Effort {
    /// Work for a GPU, or for the emulator, where the times do not matter.
    pub fn of(is_emulated: bool) -> Effort {
        match is_emulated {
            false => Effort {
                seconds: 0.2,
                n_runs: 5,
                matrix_bytes: 256 << 20,
                model: models::DENSE_0_6B,
                listed: [models::DENSE_1B, models::SEARCHED[0], models::SEARCHED[2]],
                searched: &models::SEARCHED,
                candidate_seconds: 1.0,
                n_pairs: 4,
                n_tokens: 64,
                rows: [8, 512],
                prompt: 2048,
                positions: [128, 1000, 4000],
                // Shape of the linear layers of a hybrid model with four billion weights.
                scan: RecurrentShape { n_shared: 16, n_heads: 32, rows: 128, cols: 128 },
            },
            true => Effort {
                seconds: 0.0,
                n_runs: 1,
                matrix_bytes: 1 << 16,
                model: models::EMULATED[0],
                listed: [models::EMULATED_64, models::EMULATED[0], models::EMULATED[2]],
                searched: &models::EMULATED[1..2],
                candidate_seconds: 0.0,
                n_pairs: 1,
                n_tokens: 2,
                rows: [6, 40],
                prompt: 80,
                positions: [16, 32, 48],
                scan: RecurrentShape { n_shared: 1, n_heads: 1, rows: 16, cols: 16 },
            },
        }
    }

    /// The median of a few command buffers. `run` is called with the repetitions of each, and
    /// returns the times of one. A first run finds cold caches and pages. The second is timed, and
    /// later ones repeat it until they fill [`Self::seconds`].
    ///
    /// # Errors
    /// As `run`.
    pub fn median(&self, run: &mut dyn FnMut(usize) -> Result<Times>) -> Result<Times> {
        run(1)?;
        let n = (self.seconds / run(1)?.gpu.max(1e-9)).clamp(1.0, MOST) as usize;
        let mut times = (0..self.n_runs.max(1)).map(|_| run(n)).collect::<Result<Vec<Times>>>()?;
        times.sort_by(|a, b| a.gpu.total_cmp(&b.gpu));
        Ok(times[times.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A hot GPU cools for some pauses, then it measures again; one that stays hot is left after
    /// three measurements.
    #[test]
    fn slow_measurements_are_repeated() {
        // Pauses until it is cool, measurements, pauses, true if it is slowed down at the end.
        for (until_cool, n_measured, n_pauses, slowed) in
            [(0, 1, 0, false), (3, 2, 3, false), (45, 3, 45, false), (1000, 3, 60, true)]
        {
            let (pauses, measured) = (Cell::new(0), Cell::new(0));
            let mut measure = || {
                measured.set(measured.get() + 1);
                Ok(measured.get())
            };
            let found = repeated(&mut measure, &mut || pauses.get() < until_cool, &mut || {
                pauses.set(pauses.get() + 1);
            });
            assert_eq!((found.unwrap(), pauses.get()), ((n_measured, slowed), n_pauses), "{until_cool}");
        }
    }

    /// A command buffer takes about 0.2 s and at least one repetition, however long that is. The
    /// median of the five that follow the first two counts.
    #[test]
    fn repetitions_fill_a_command_buffer() {
        for (one, expected) in [(1e-6, 2000), (1e-3, 200), (0.15, 1), (3.0, 1)] {
            let mut asked = vec![];
            let noise = [9.0, 1.0, 3.0, 0.5, 1.2, 7.0, 1.1];
            let found = Effort::of(false).median(&mut |n| {
                asked.push(n);
                Ok(Times { gpu: one * noise[asked.len() - 1], ..Times::default() })
            });
            assert_eq!(found.unwrap().gpu, one * 1.2);
            assert_eq!(asked, [1, 1, expected, expected, expected, expected, expected], "{one}");
        }
    }
}
