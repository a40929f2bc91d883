//! [`Call`]: a dispatch as it is put together, before its kernel is compiled and it becomes a
//! command.

use crate::gpu::{Constant, Fewer};
use crate::kernels::Kernel;
use device::{RowCount, ValueId};
use device_gpu::gpu::MAX_ARGUMENT_BYTES;
use device_lower::table::{Extent, Location, Operand, Region, When};

/// Bytes that a kernel's parameter points to.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Bound {
    pub(super) location: Location,
    pub(super) bytes: usize,
    /// The value that is there, if it is one.
    pub(super) value: Option<ValueId>,
}

impl From<(Location, usize)> for Bound {
    fn from((location, bytes): (Location, usize)) -> Bound {
        Bound { location, bytes, value: None }
    }
}

/// A dispatch as it is made.
pub(super) struct Call {
    pub(super) kernel: Kernel,
    pub(super) constants: Vec<(u16, Constant)>,
    pub(super) parameters: Vec<u8>,
    pub(super) operands: Vec<Operand>,
    pub(super) reads: Vec<Region>,
    pub(super) writes: Vec<Region>,
    pub(super) values: Vec<ValueId>,
    pub(super) threadgroup_bytes: u32,
    pub(super) grid: [Extent; 3],
    pub(super) threads: u32,
    /// The way in which the kernel runs with fewer threads.
    pub(super) fewer: Fewer,
    pub(super) weight_bytes: u64,
    pub(super) when: When,
    pub(super) name: Option<String>,
}

impl Call {
    /// A kernel with its arguments.
    pub(super) fn new<A: bytemuck::Pod>(kernel: Kernel, arguments: &A) -> Call {
        let bytes = bytemuck::bytes_of(arguments).to_vec();
        debug_assert!(bytes.len() <= MAX_ARGUMENT_BYTES && bytes.len().is_multiple_of(16));
        Call {
            kernel,
            constants: vec![],
            parameters: bytes,
            operands: vec![],
            reads: vec![],
            writes: vec![],
            values: vec![],
            threadgroup_bytes: 0,
            grid: [Extent::Fixed(1); 3],
            threads: 32,
            fewer: Fewer::Never,
            weight_bytes: 0,
            when: When::Always,
            name: None,
        }
    }

    pub(super) fn constant(mut self, index: u16, value: Constant) -> Call {
        self.constants.push((index, value));
        self
    }

    pub(super) fn bool(self, index: u16, value: bool) -> Call {
        self.constant(index, Constant::Bool(value))
    }

    pub(super) fn uint(self, index: u16, value: u32) -> Call {
        self.constant(index, Constant::UInt(value))
    }

    /// Bind what kernels never write: weights, and the step.
    pub(super) fn bind(mut self, index: u8, location: Location) -> Call {
        self.operands.push(Operand { index, location, len: 0 });
        self
    }

    pub(super) fn read(mut self, index: u8, bound: impl Into<Bound>) -> Call {
        let Bound { location, bytes, .. } = bound.into();
        self.reads.push(Region::of(location, bytes));
        self.operands.push(Operand { index, location, len: bytes as u64 });
        self
    }

    /// Read a value, or bind anything where there is none.
    pub(super) fn read_or_any(self, index: u8, value: Option<Bound>, anything: Location) -> Call {
        match value {
            Some(value) => self.read(index, value),
            None => self.bind(index, anything),
        }
    }

    pub(super) fn write(mut self, index: u8, bound: impl Into<Bound>) -> Call {
        let Bound { location, bytes, value } = bound.into();
        self.values.extend(value);
        self.writes.push(Region::of(location, bytes));
        self.operands.push(Operand { index, location, len: bytes as u64 });
        self
    }

    /// Write a value, or bind anything where there is none.
    pub(super) fn write_or_any(self, index: u8, value: Option<Bound>, anything: Location) -> Call {
        match value {
            Some(value) => self.write(index, value),
            None => self.bind(index, anything),
        }
    }

    /// Bind anything to the parameters among these that are not bound: the kernel leaves them
    /// unused.
    pub(super) fn fill(mut self, indices: std::ops::Range<u8>, anything: Location) -> Call {
        for index in indices {
            if self.operands.iter().all(|operand| operand.index != index) {
                self = self.bind(index, anything);
            }
        }
        self
    }

    pub(super) fn grid(mut self, grid: [Extent; 3], threads: u32) -> Call {
        (self.grid, self.threads) = (grid, threads);
        self
    }

    /// A grid whose threadgroups may have fewer threads.
    pub(super) fn flexible(self, grid: [Extent; 3], threads: u32) -> Call {
        self.grid(grid, threads).fewer(Fewer::SameGroups)
    }

    /// Says how the kernel runs with fewer threads.
    pub(super) fn fewer(mut self, fewer: Fewer) -> Call {
        self.fewer = fewer;
        self
    }

    /// A thread for each of `per_row` numbers of a row.
    pub(super) fn elements(self, rows: RowCount, per_row: usize) -> Call {
        let extent = Extent::PerRow { rows, multiple: per_row as u32, divisor: ELEMENT_THREADS };
        self.grid([extent, Extent::Fixed(1), Extent::Fixed(1)], ELEMENT_THREADS)
    }
}

/// Threads of the threadgroups of element-wise kernels.
pub(super) const ELEMENT_THREADS: u32 = 256;

/// Rows for each token as kernels want them; 0: for each output.
pub(super) fn per_token(rows: RowCount) -> u32 {
    rows.per_token().unwrap_or(0) as u32
}

/// One of a dimension.
pub(super) const ONE: Extent = Extent::Fixed(1);

/// A threadgroup for each row.
pub(super) fn each(rows: RowCount) -> Extent {
    Extent::PerRow { rows, multiple: 1, divisor: 1 }
}
