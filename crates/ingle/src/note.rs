//! Notes: facts that a user should know, although nothing failed.

use std::fmt;
use std::path::PathBuf;

/// A fact that a user should know, although nothing failed. `Display` is a sentence without a full
/// stop.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The machine has a GPU that is not used.
    GpuNotUsed {
        /// The device and the reason against it.
        reason: String,
    },
    /// The model is split between the GPU and the CPU, because it does not fit in the GPU's memory.
    /// [`LoadOptions::gpu_layers`](crate::LoadOptions::gpu_layers) and
    /// [`LoadOptions::cpu_moe_layers`](crate::LoadOptions::cpu_moe_layers) override the split.
    Split {
        /// The part that the CPU runs.
        on_cpu: String,
        /// The device that runs the rest.
        device: String,
        /// Bytes that the whole model needs.
        needed: u64,
        /// Bytes that are free in the GPU's memory.
        free: u64,
    },
    /// A file in the model's folder looks like its image encoder and is none, so the model runs
    /// without images.
    WithoutImages {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::GpuNotUsed { reason } => write!(f, "the GPU is not used: {reason}"),
            Note::Split { on_cpu, device, needed, free } => write!(
                f,
                "the CPU runs {on_cpu}, and {device} the rest: the model needs {}, and {} are free",
                size_text(*needed),
                size_text(*free),
            ),
            Note::WithoutImages { file, reason } => {
                write!(f, "without images: {}: {reason}", file.display())
            }
        }
    }
}

/// A number of bytes in the largest binary unit that keeps a digit before the point: `93.8 MiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sentences() {
        let note = Note::Split {
            on_cpu: "the experts of 2 of 8 layers".to_owned(),
            device: "cuda".to_owned(),
            needed: 98_362_432,
            free: 12,
        };
        assert_eq!(
            note.to_string(),
            "the CPU runs the experts of 2 of 8 layers, and cuda the rest: the model needs 93.8 MiB, and 12 B \
             are free"
        );
    }
}
