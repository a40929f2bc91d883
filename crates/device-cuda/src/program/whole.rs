//! Steps that run in one launch of a persistent kernel, or in one launch per row: their tables, and
//! the conditions that a step must meet.

use crate::arguments::PersistentPhase;
use crate::compile::{Commands, Compiler, KernelList, PersistentAddresses};
use crate::driver::Address;
use crate::kernels::Kernels;
use crate::persistent::{FIXED, Persistent, PersistentWeights, Rows, fixed_file};
use device::{Result, Step};
use device_lower::table::RowClass;

/// Tables of a plan's steps that run in persistent kernels. The default has no such steps.
#[derive(Default)]
pub(super) struct Whole {
    /// Tables by class of rows.
    tables: Vec<Commands>,
    /// Maximum number of rows of a step.
    most_rows: usize,
    /// Maximum number of positions by which the longest sequence may exceed the mean of a step's
    /// rows.
    most_uneven: usize,
    /// File of the one-row kernel, and the most steps of a launch. `None`: a launch computes one
    /// step.
    chaining: Option<(String, usize)>,
    /// The windows of the plan's layers.
    windows: Vec<usize>,
}

impl Whole {
    /// Compiles the tables of a plan. `phases` are the phases of its kernels, and their address on
    /// the GPU.
    ///
    /// # Errors
    /// Something has no kernel.
    pub(super) fn new(
        compiler: &Compiler<'_>,
        persistent: &Persistent,
        phases: (&[PersistentPhase], Address),
        weights: &PersistentWeights,
        kernels: &Kernels,
        list: &mut KernelList,
    ) -> Result<Whole> {
        let most_rows = *persistent.several.as_ref().unwrap_or(&persistent.in_turn);
        let mut chaining = None;
        let mut tables = Vec::new();
        for rows in persistent.kernels() {
            let reader = match rows {
                Rows::One => compiler.embedding(persistent).map(|(reader, _)| reader),
                Rows::Several => None,
            };
            let file = match compiler.profile.fixed_tables {
                true => {
                    let (arguments, _) = compiler.persistent_arguments(persistent, rows);
                    fixed_file(persistent, rows, &arguments, phases.0, reader.as_deref(), kernels)
                }
                false => persistent.general_file(rows, kernels),
            };
            if reader.is_some() && file.starts_with(FIXED) {
                let n = persistent.chained_steps(compiler.plan, compiler.profile);
                chaining = Some((file.clone(), n));
            }
            let addresses = PersistentAddresses { phases: phases.1, exchange: weights.exchange(rows) };
            let classes = RowClass::ALL.into_iter().filter(|class| *class <= RowClass::of(most_rows));
            for class in classes.filter(|class| persistent.rows_of(*class) == rows) {
                tables.push(compiler.persistent_table(persistent, class, &file, &addresses, list)?);
            }
        }
        // With a launch for each row, rows do not share blocks, so that any lengths are allowed.
        let most_uneven = if persistent.several.is_ok() { compiler.profile.most_uneven } else { usize::MAX };
        Ok(Whole { tables, most_rows, most_uneven, chaining, windows: persistent.windows() })
    }

    /// Disables chaining if the compiler refused the kernel's file, which then has the code of the
    /// general kernel.
    pub(super) fn refuse(&mut self, refused: &[String]) {
        self.chaining.take_if(|(file, _)| refused.iter().any(|refused| refused.starts_with(file.as_str())));
    }

    /// Maximum number of one-row steps of a launch.
    pub(super) fn chained_steps(&self) -> usize {
        self.chaining.as_ref().map_or(1, |(_, n)| *n)
    }

    /// Returns true if a step at this position of a sequence may share a launch with the step at
    /// the next position.
    pub(super) fn chains_at(&self, position: u32) -> bool {
        Persistent::has_same_tiles(&self.windows, position as usize)
    }

    /// The table of steps of `n_rows` rows; `None`: no such step runs in persistent kernels.
    pub(super) fn table(&self, n_rows: usize) -> Option<&Commands> {
        let has_rows = (1..=self.most_rows).contains(&n_rows);
        self.tables.get(RowClass::of(n_rows) as usize).filter(|_| has_rows)
    }

    /// Returns true if a step runs in persistent kernels: it has few rows, each of them an output,
    /// and no sequence is much longer than the mean.
    pub(super) fn takes(&self, step: &Step) -> bool {
        let n_rows = step.tokens.len();
        let longest = step.spans.iter().map(device::Span::end).max().unwrap_or(0);
        let all: usize = step.spans.iter().map(|span| span.n_rows as usize * span.end()).sum();
        (1..=self.most_rows).contains(&n_rows)
            && (longest * n_rows).saturating_sub(all) <= self.most_uneven.saturating_mul(n_rows)
            && step.outputs.iter().copied().eq(0..n_rows as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{CommandInfo, KvLayer, KvLayout, OwnedStep};
    use device_lower::table::{Extent, NewCommand, When};
    use device_testing::{BEST_AND_LOGITS, Sequences, limits};

    #[test]
    fn steps_of_a_few_rows_of_sequences_alike_are_taken() {
        let layer = KvLayer {
            n_kv_heads: 1,
            head_dim: 64,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        };
        let kv = KvLayout::new(vec![layer]);
        let mut sequences = Sequences::new(1, &kv, &limits(&kv), 10);
        sequences.step(&[(0, 30), (1, 20), (2, 5)]);
        let takes = |whole: &Whole, step: &OwnedStep| whole.takes(&step.borrow());
        let with = |most_uneven| Whole { most_rows: 4, most_uneven, ..Whole::default() };
        let (one, pair) = (sequences.step(&[(0, 1)]), sequences.step(&[(0, 1), (2, 1)]));
        let ends: Vec<usize> = pair.spans.iter().map(device::Span::end).collect();
        assert_eq!(ends, [32, 6]);
        assert!(takes(&with(13), &pair) && !takes(&with(12), &pair));
        // A single row equals the mean, and so do the rows of one sequence.
        assert!(takes(&with(0), &one) && takes(&with(0), &sequences.step(&[(1, 3)])));
        // Two rows of the longer sequence, one of the shorter.
        let three = sequences.step(&[(0, 2), (2, 1)]);
        assert_eq!(three.spans.iter().map(device::Span::end).collect::<Vec<_>>(), [34, 7]);
        assert!(takes(&with(9), &three) && !takes(&with(8), &three));
        assert!(takes(&with(usize::MAX), &three));
        let whole = with(100);
        let pair = sequences.step(&[(1, 1), (2, 1)]);
        assert!(takes(&whole, &sequences.step(&[(3, 1), (4, 1), (5, 1), (6, 1)])));
        assert!(!takes(&whole, &sequences.step(&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)])));
        // Several rows of a sequence.
        assert!(takes(&whole, &sequences.step(&[(0, 2)])));
        assert!(takes(&whole, &sequences.step(&[(0, 2), (1, 1)])));
        assert!(!takes(&whole, &sequences.step(&[(0, 3), (1, 2)])));
        // Steps are refused if a row is no output, if outputs are in another order, or without
        // outputs.
        let with = |outputs: Vec<u32>| pair.clone().with_outputs(outputs, BEST_AND_LOGITS);
        assert!(takes(&whole, &with(vec![0, 1])));
        for outputs in [vec![], vec![0], vec![1], vec![1, 0]] {
            assert!(!takes(&whole, &with(outputs.clone())), "{outputs:?}");
        }
        assert!(!takes(&whole, &OwnedStep::default()));
        // Steps are refused if the profile, the plan or its limits exclude them.
        assert!(!takes(&Whole { most_rows: 1, ..whole }, &pair));
        assert!(!takes(&Whole::default(), &one));
    }

    #[test]
    fn tables_go_by_the_class_of_rows() {
        let of_kernel = |n: u32| {
            let mut commands = Commands::default();
            commands.table.push(
                NewCommand {
                    kernel: n,
                    operands: &[],
                    parameters: &[],
                    reads: &[],
                    writes: &[],
                    values: &[],
                    grid: [Extent::Fixed(1); 3],
                    threads: 1,
                    threadgroup_bytes: 0,
                    when: When::Always,
                },
                CommandInfo { kernel: String::new(), node: 0, layer: None, weight_bytes: 0 },
            );
            commands
        };
        let whole = Whole { tables: (0..4).map(of_kernel).collect(), most_rows: 6, ..Whole::default() };
        let of = |n_rows: usize| whole.table(n_rows).map(|table| table.table.commands()[0].kernel);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(of),
            [None, Some(0), Some(1), Some(2), Some(2), Some(3), Some(3), None]
        );
        assert!((0..10).all(|n_rows| Whole::default().table(n_rows).is_none()));
    }
}
