//! The activations of a plan: one buffer for each value, which no other value shares.

use device::{DType, Limits, Plan, Value, ValueId};

/// Numbers of each value of a plan in the current step, `(rows, cols)`; empty until written.
pub struct Activations {
    /// Float values; empty for ids.
    floats: Vec<Vec<f32>>,
    /// Id values; empty for floats.
    ids: Vec<Vec<u32>>,
    is_written: Vec<bool>,
}

/// Length of a value in the largest step.
fn max_len(value: &Value, limits: &Limits) -> usize {
    value.rows.count(limits.max_rows, limits.max_outputs) * value.cols
}

/// Bytes of all buffers of a plan.
pub fn bytes(plan: &Plan, limits: &Limits) -> u64 {
    plan.values.iter().map(|value| 4 * max_len(value, limits) as u64).sum()
}

impl Activations {
    /// Reserves memory for the largest step.
    ///
    /// # Errors
    /// The number of refused bytes.
    pub fn new(plan: &Plan, limits: &Limits) -> Result<Activations, u64> {
        let room = |dtype: DType| {
            let len = move |value: &Value| if value.dtype == dtype { max_len(value, limits) } else { 0 };
            plan.values.iter().map(len)
        };
        Ok(Activations {
            floats: room(DType::F32).map(reserve).collect::<Result<_, u64>>()?,
            ids: room(DType::U32).map(reserve).collect::<Result<_, u64>>()?,
            is_written: vec![false; plan.values.len()],
        })
    }

    /// Marks every value as not written, at the start of a step.
    pub fn clear(&mut self) {
        self.floats.iter_mut().for_each(Vec::clear);
        self.ids.iter_mut().for_each(Vec::clear);
        self.is_written.fill(false);
    }

    /// A value, `(rows, cols)`.
    pub fn floats(&self, id: ValueId) -> &[f32] {
        &self.floats[id.0 as usize]
    }

    /// A value of ids, `(rows, cols)`.
    pub fn ids(&self, id: ValueId) -> &[u32] {
        &self.ids[id.0 as usize]
    }

    /// Writes `len` numbers of a value. `f` receives all other values, and the buffer: no Op reads
    /// what it writes.
    pub fn write(&mut self, id: ValueId, len: usize, f: impl FnOnce(&Activations, &mut [f32])) {
        let mut out = std::mem::take(&mut self.floats[id.0 as usize]);
        out.resize(len, 0.0);
        f(self, &mut out);
        self.floats[id.0 as usize] = out;
        self.is_written[id.0 as usize] = true;
    }

    /// Like [`Self::write`], for a value of ids.
    pub fn write_ids(&mut self, id: ValueId, len: usize, f: impl FnOnce(&Activations, &mut [u32])) {
        let mut out = std::mem::take(&mut self.ids[id.0 as usize]);
        out.resize(len, 0);
        f(self, &mut out);
        self.ids[id.0 as usize] = out;
        self.is_written[id.0 as usize] = true;
    }

    /// A value as floats; `None` if it was not written in this step, or does not exist.
    pub fn read(&self, id: ValueId) -> Option<Vec<f32>> {
        let index = id.0 as usize;
        if !*self.is_written.get(index)? {
            return None;
        }
        let ids = self.ids[index].iter().map(|id| *id as f32);
        Some(self.floats[index].iter().copied().chain(ids).collect())
    }
}

/// An empty buffer with capacity for `len` numbers of 4 bytes.
fn reserve<T>(len: usize) -> Result<Vec<T>, u64> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| 4 * len as u64)?;
    Ok(buffer)
}
