//! The checks of Metal's validation on a dispatch, and a check for unbound parameters.

use crate::dispatch::Dispatch;
use crate::error::{Fault, FaultKind};
use crate::library::ParameterKind;
use crate::{MAX_BINDINGS, MAX_BYTES, MAX_RESOURCES, MAX_THREADGROUP_MEMORY, MAX_THREADS_PER_THREADGROUP};

/// Alignment of offsets of buffers in the constant address space. In device memory, the type that a
/// kernel accesses decides.
const CONSTANT_ALIGNMENT: usize = 4;

impl Dispatch<'_> {
    /// Checks that Metal accepts the dispatch.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.check_grid()?;
        self.check_buffers()?;
        self.check_threadgroup_memory()?;
        self.check_parameters()
    }

    fn refuse(&self, text: String) -> Result<(), Fault> {
        Err(self.fault(FaultKind::Dispatch(text)))
    }

    fn check_grid(&self) -> Result<(), Fault> {
        let threads = self.threads_per_threadgroup.iter().try_fold(1u32, |n, d| n.checked_mul(*d));
        let declared = self.pipeline.function.max_threads.unwrap_or(MAX_THREADS_PER_THREADGROUP);
        let most = declared.min(MAX_THREADS_PER_THREADGROUP);
        if threads.is_none_or(|n| n == 0 || n > most) {
            return self.refuse(format!(
                "{:?} threads per threadgroup; expected 1 to {most}",
                self.threads_per_threadgroup
            ));
        }
        let groups = self.threadgroups.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
        let fits =
            (0..3).all(|d| self.threadgroups[d].checked_mul(self.threads_per_threadgroup[d]).is_some());
        if groups.is_none() || !fits {
            return self.refuse(format!("a grid of {:?} threadgroups is too large", self.threadgroups));
        }
        Ok(())
    }

    /// Indices at which something is bound.
    fn indices(&self) -> impl Iterator<Item = u32> {
        self.buffers.iter().map(|b| b.index).chain(self.bytes.iter().map(|b| b.0))
    }

    fn check_buffers(&self) -> Result<(), Fault> {
        for (n, index) in self.indices().enumerate() {
            if index >= MAX_BINDINGS {
                return self.refuse(format!("buffer index {index}, past {}", MAX_BINDINGS - 1));
            }
            if self.indices().take(n).any(|other| other == index) {
                return self.refuse(format!("buffer index {index} is bound twice"));
            }
        }
        for b in self.buffers {
            let end = b.offset.checked_add(b.length.unwrap_or(0));
            if b.offset > b.buffer.len() || end.is_none_or(|e| e > b.buffer.len()) {
                let length = b.length.map_or(String::new(), |n| format!(" and {n} bytes from there"));
                return self.refuse(format!(
                    "buffer {} of {} bytes is bound at offset {}{length}",
                    b.index,
                    b.buffer.len(),
                    b.offset
                ));
            }
        }
        for p in self.pipeline.function.parameters.iter().filter(|p| p.is_constant()) {
            let bound = self.buffers.iter().find(|b| p.kind == ParameterKind::Buffer(b.index));
            if let Some(b) = bound.filter(|b| b.offset % CONSTANT_ALIGNMENT != 0) {
                return self.refuse(format!(
                    "buffer {} of constant memory is bound at offset {}, not a multiple of {CONSTANT_ALIGNMENT}: parameter '{}'",
                    b.index, b.offset, p.name
                ));
            }
        }
        if self.resources.len() > MAX_RESOURCES {
            let n = self.resources.len();
            return self.refuse(format!("{n} resources; at most {MAX_RESOURCES} are allowed"));
        }
        for (index, bytes) in self.bytes {
            if bytes.len() > MAX_BYTES {
                return self.refuse(format!(
                    "{} bytes passed by value at index {index}; at most {MAX_BYTES} are allowed",
                    bytes.len()
                ));
            }
        }
        Ok(())
    }

    fn check_threadgroup_memory(&self) -> Result<(), Fault> {
        let mut total = 0u64;
        for (n, (index, length)) in self.threadgroup_memory.iter().enumerate() {
            if *index >= MAX_BINDINGS || self.threadgroup_memory[..n].iter().any(|o| o.0 == *index) {
                return self.refuse(format!(
                    "index {index} of threadgroup memory is past {} or given twice",
                    MAX_BINDINGS - 1
                ));
            }
            if length % 16 != 0 {
                return self
                    .refuse(format!("{length} bytes of threadgroup memory {index}: not a multiple of 16"));
            }
            total += u64::from(*length);
        }
        if total > u64::from(MAX_THREADGROUP_MEMORY) {
            let name = "[[threadgroup]] arguments".to_owned();
            return Err(self.fault(FaultKind::TooMuchThreadgroupMemory { bytes: total, name }));
        }
        Ok(())
    }

    fn check_parameters(&self) -> Result<(), Fault> {
        for (i, p) in self.pipeline.function.parameters.iter().enumerate() {
            let (bound, place) = match p.kind {
                ParameterKind::Buffer(n) => (self.indices().any(|o| o == n), ("buffer", n)),
                ParameterKind::Threadgroup(n) => {
                    (self.threadgroup_memory.iter().any(|o| o.0 == n), ("threadgroup memory", n))
                }
                ParameterKind::Position(_) => continue,
            };
            if !bound && self.pipeline.present(i) {
                let place = format!("{} {}", place.0, place.1);
                return Err(self.fault(FaultKind::Unbound { name: p.name.clone(), place }));
            }
        }
        Ok(())
    }
}
