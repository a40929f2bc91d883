//! Arguments of kernels: the structs of the headers `arguments.h`, under the same names. `build.rs`
//! translates them, so that host and kernels have one definition; their docs are the headers'
//! comments.

use bytemuck::{Pod, Zeroable};
pub use device_gpu::arguments::{Choice, Span};

include!(concat!(env!("OUT_DIR"), "/arguments.rs"));

/// A struct's name and size in bytes, and its fields with their offsets.
#[cfg(test)]
pub(crate) type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

/// The layouts of all argument structs.
#[cfg(test)]
pub(crate) fn all_layouts() -> Vec<Layout> {
    layouts()
}

#[cfg(test)]
mod tests {
    /// Every argument struct must begin with `n_rows`, which the launcher writes.
    #[test]
    fn rows_come_first() {
        let with_rows = super::all_layouts().into_iter().filter(|(name, ..)| {
            name.ends_with("Arguments")
                && ![
                    "PagesArguments",
                    "WeightArguments",
                    "MatrixArguments",
                    "StepLoadArguments",
                    "RepackArguments",
                ]
                .contains(name)
        });
        let mut n = 0;
        for (name, _, fields) in with_rows {
            assert_eq!(fields[0], ("n_rows", 0), "{name}");
            n += 1;
        }
        assert_eq!(n, 21);
    }
}
