//! Recurrent layers, which read and write the states of their sequences.
//!
//! The contracts are the headers `kernels/short_conv.metal` and `kernels/scan.h`.

use super::call::Call;
use super::draft::Draft;
use crate::arguments::{ScanArguments, ShortConvArguments};
use crate::gpu::{Fewer, MetalGpu};
use crate::kernels::{Kernel, constant};
use device::{Result, StateId, ValueId, WeightId};
use device_gpu::replayer::STATES;
use device_lower::table::{Extent, Location, Region};

/// Rows of a head's state that there are kernels for, ascending.
const STATE_ROWS: [usize; 3] = [64, 128, 256];

/// SIMD-groups of a threadgroup that scans.
const SCAN_SIMDGROUPS: usize = 4;

/// SIMD-groups, at most, of a threadgroup that scans in chunks (`scan_chunks.h`). It computes once
/// what its columns share.
const CHUNK_SIMDGROUPS: usize = 8;

/// Columns of a head's state that a SIMD-group has (`scan.h`).
const SCAN_COLUMNS: usize = 8;

/// Operands that both scans have, by their names in `scan.h`.
pub(super) struct Scan {
    pub(super) name: &'static str,
    pub(super) x: ValueId,
    pub(super) keys: ValueId,
    pub(super) queries: ValueId,
    pub(super) step: ValueId,
    pub(super) rate: WeightId,
    pub(super) n_shared: usize,
    pub(super) n_heads: usize,
    pub(super) scale: f32,
    pub(super) state: StateId,
    pub(super) out: ValueId,
    /// True if each row of the state has a step of its own.
    pub(super) per_row: bool,
}

impl<G: MetalGpu> Draft<'_, G> {
    /// Bind the states from a layer's part of the first on. All states count as one region.
    fn bind_states(&self, mut call: Call, index: u8, state: StateId) -> Call {
        let c = self.compiler;
        let range = c.plan.kv.state_range(state);
        let location = Location { buffer: STATES, offset: 4 * range.start as u64 };
        let region = Region::of(location, 4 * range.len());
        call.reads.push(region);
        call.writes.push(region);
        call.bind(index, location)
    }

    fn state_stride(&self) -> u32 {
        self.compiler.plan.kv.state_len() as u32
    }

    /// ShortConv.
    pub(super) fn short_conv(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        state: StateId,
        out: ValueId,
    ) -> Result<()> {
        let c = self.compiler;
        let cols = c.cols(x);
        let args = ShortConvArguments {
            cols: cols as u32,
            size: c.plan.weight(weight).n_cols() as u32,
            state_stride: self.state_stride(),
            reserved: 0,
        };
        let call = self
            .step_call("short_conv.metal", &args)
            .bool(constant::HAS_BIAS, bias.is_some())
            .read(2, self.value(x))
            .write(3, self.value(out))
            .bind(4, c.step_place(c.step.row_spans))
            .bind(5, c.step_place(c.step.spans))
            .bind(6, c.weight(weight)?)
            .bind(7, c.weight_or_any(bias)?)
            .elements(c.rows(x), cols);
        self.push(self.bind_states(call, 8, state))
    }

    /// GatedDelta.
    pub(super) fn gated_delta(&mut self, scan: &Scan, beta: ValueId, tiled: bool) -> Result<()> {
        let call = self
            .scan("gated_delta.metal", scan)?
            .bool(constant::STEP_PER_ROW, scan.per_row)
            .bool(constant::TILED, tiled)
            .read(10, self.value(beta));
        self.push(call)
    }

    /// SelectiveScan.
    pub(super) fn selective_scan(&mut self, scan: &Scan, skip: Option<WeightId>) -> Result<()> {
        let call = self
            .scan("selective_scan.metal", scan)?
            .bool(constant::HAS_WEIGHT, skip.is_some())
            .bind(10, self.compiler.weight_or_any(skip)?);
        self.push(call)
    }

    /// Returns true if a scan may compute spans in chunks. The sums of chunks have another order
    /// than those of single rows.
    fn is_chunked(&self, scan: &Scan) -> bool {
        let c = self.compiler;
        let most = self.class(scan.x).most().unwrap_or(c.limits.max_rows);
        most >= c.profile.scan_rows && !scan.per_row && !c.is_deterministic()
    }

    /// The operands that both scans have.
    fn scan(&self, file: &'static str, scan: &Scan) -> Result<Call> {
        let c = self.compiler;
        let (rows, cols) = (c.cols(scan.keys) / scan.n_shared, c.cols(scan.x) / scan.n_heads);
        let Some(most) = STATE_ROWS.into_iter().find(|most| rows <= *most) else {
            let what = format!("a state of {rows} rows");
            return Err(c.unsupported(what, "this device runs states of at most 256; use --device cpu"));
        };
        let args = ScanArguments {
            n_heads: scan.n_heads as u32,
            n_shared: scan.n_shared as u32,
            rows: rows as u32,
            cols: cols as u32,
            state_stride: self.state_stride(),
            scale: scan.scale,
            least_chunk: c.profile.scan_rows.min(u32::MAX as usize) as u32,
            ..Default::default()
        };
        let (schedule, simdgroups) = match self.is_chunked(scan) {
            true => ("_chunks", CHUNK_SIMDGROUPS),
            false => ("", SCAN_SIMDGROUPS),
        };
        let kernel = Kernel { file, function: format!("{}{schedule}_{most}", scan.name) };
        let simdgroups = cols.div_ceil(SCAN_COLUMNS).min(simdgroups);
        let groups = Extent::Fixed(cols.div_ceil(SCAN_COLUMNS * simdgroups) as u32);
        let call = Call::new(kernel, &args)
            .bind(1, c.step_place(0))
            .bind(2, c.step_place(c.step.spans))
            .read(3, self.value(scan.x))
            .read(4, self.value(scan.keys))
            .read(5, self.value(scan.queries))
            .read(6, self.value(scan.step))
            .bind(7, c.weight(scan.rate)?)
            .write(9, self.value(scan.out))
            .grid([groups, Extent::Fixed(scan.n_heads as u32), Extent::Spans], 32 * simdgroups as u32)
            .fewer(Fewer::MoreGroups(32));
        Ok(self.bind_states(call, 8, scan.state))
    }
}
