//! The adapters (LoRA) of a model, which can be added and removed while its engine runs.
//!
//! A plan holds the stacks of all adapters, so a change is a new plan in the same program: pages,
//! states and cached prefixes stay. The plan may be made on another thread while steps go on
//! ([`AdapterPlanner`]), so that only compiling it happens between two steps. An adapter stays
//! until the last sequence that uses it has ended.

use std::sync::Arc;

use device::{Device, Limits, Plan};
use model::Adapter;
use xxhash_rust::xxh64::xxh64;

use crate::{Engine, Error, LoadOptions, Model, Result, memory};

/// Adapters that requests choose by their names. In a step, number `i + 1` is the adapter at `i`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adapters {
    list: Vec<Adapter>,
    /// Salts of the adapters in the prefix cache: rows computed with different weights are kept
    /// apart.
    salts: Vec<u64>,
    /// True for each adapter that is removed as soon as no sequence uses it; new requests do not
    /// find it.
    leaving: Vec<bool>,
    /// Number of changes so far.
    n_changes: u64,
}

impl Adapters {
    /// Adapters with distinct names.
    ///
    /// # Errors
    /// Two have one name.
    pub(crate) fn new(list: Vec<Adapter>) -> Result<Adapters> {
        let mut adapters = Adapters::default();
        list.into_iter().try_for_each(|adapter| adapters.push(adapter))?;
        Ok(adapters)
    }

    fn push(&mut self, adapter: Adapter) -> Result<()> {
        if self.names().any(|name| name == adapter.name) {
            let expected = "a name for each adapter".to_owned();
            return Err(Error::Option { name: "adapter", value: adapter.name, expected });
        }
        self.salts.push(salt_of(&adapter));
        self.leaving.push(false);
        self.list.push(adapter);
        Ok(())
    }

    /// All adapters in the order of their numbers, including those that are leaving.
    pub(crate) fn as_slice(&self) -> &[Adapter] {
        &self.list
    }

    /// Names that requests may use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.list.iter().zip(&self.leaving).filter(|(_, leaving)| !**leaving);
        known.map(|(adapter, _)| adapter.name.as_str())
    }

    /// Index of the adapter with this name.
    ///
    /// # Errors
    /// There is none of this name.
    fn position(&self, name: &str) -> Result<usize> {
        let mut known = self.list.iter().zip(&self.leaving);
        known.position(|(adapter, leaving)| !leaving && adapter.name == name).ok_or_else(|| Error::Option {
            name: "adapter",
            value: name.to_owned(),
            expected: match self.names().collect::<Vec<_>>().join(", ") {
                names if names.is_empty() => "none: the model was loaded without adapters".to_owned(),
                names => format!("one of {names}"),
            },
        })
    }

    /// The number of an adapter in a step, and its salt.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn find(&self, name: &str) -> Result<(u32, u64)> {
        let at = self.position(name)?;
        Ok((at as u32 + 1, self.salts[at]))
    }

    /// Drop the adapters that are leaving and unused. Returns the others, and the new number of
    /// each old one.
    fn without_unused(self, is_used: impl Fn(u32) -> bool) -> (Adapters, Vec<u32>) {
        let (mut kept, mut numbers) =
            (Adapters { n_changes: self.n_changes, ..Adapters::default() }, vec![0]);
        for (index, (adapter, salt)) in self.list.into_iter().zip(self.salts).enumerate() {
            let leaving = self.leaving[index];
            if leaving && !is_used(index as u32 + 1) {
                numbers.push(0);
                continue;
            }
            kept.list.push(adapter);
            kept.salts.push(salt);
            kept.leaving.push(leaving);
            numbers.push(kept.list.len() as u32);
        }
        (kept, numbers)
    }
}

impl Engine {
    /// Names of the adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.names()
    }

    /// Add an adapter that requests may choose from now on. Call it between two steps; sequences go
    /// on, and cached prefixes stay. (With deterministic numerics, a model computes its answers in
    /// another order once it has its first adapter.) With `replaces`, an adapter of the same name
    /// is removed.
    ///
    /// # Errors
    /// The name is in use, the adapter does not fit the model, the memory is short, or the device
    /// does not support adapters. Nothing has changed then.
    pub fn add_adapter(&mut self, adapter: Adapter, replaces: bool) -> Result<()> {
        let planned = self.adapter_planner().add(adapter, replaces)?;
        self.set_adapters(planned).map(drop)
    }

    /// Remove an adapter for new requests. Sequences that use it go on.
    ///
    /// # Errors
    /// There is none of this name, or the device failed. Nothing has changed then.
    pub fn remove_adapter(&mut self, name: &str) -> Result<()> {
        let planned = self.adapter_planner().remove(name)?;
        self.set_adapters(planned).map(drop)
    }

    /// A planner of changes of adapters, which may run on any thread while the engine goes on.
    pub fn adapter_planner(&self) -> AdapterPlanner {
        let numbers = 1..=self.adapters.list.len() as u32;
        AdapterPlanner {
            model: self.model.clone(),
            device: self.device.clone(),
            limits: self.limits.clone(),
            options: self.options.clone(),
            used: numbers.map(|number| self.is_used(number)).collect(),
            adapters: self.adapters.clone(),
        }
    }

    /// Install planned adapters, between two steps. Returns false, with nothing changed, if the
    /// engine's adapters have changed since the planner was made, or a sequence uses an adapter
    /// that the plan lacks. The caller then plans again.
    ///
    /// # Errors
    /// The memory is short, or the device failed. Nothing has changed then.
    pub fn set_adapters(&mut self, planned: PlannedAdapters) -> Result<bool> {
        let turns = self.turns.clone();
        let _turn = turns.as_ref().map(|turns| turns.take());
        self.set_adapters_in_turn(planned)
    }

    /// Like [`Self::set_adapters`], for a caller that has the turn of the processors.
    fn set_adapters_in_turn(&mut self, planned: PlannedAdapters) -> Result<bool> {
        let PlannedAdapters { mut kept, numbers, plans } = planned;
        let mut dropped = (1..).zip(numbers.iter().skip(1)).filter(|(_, now)| **now == 0);
        if kept.n_changes != self.adapters.n_changes || dropped.any(|(number, _)| self.is_used(number)) {
            return Ok(false);
        }
        kept.n_changes += 1;
        let Some((plans, fixed)) = plans else {
            self.adapters = kept;
            return Ok(true);
        };
        let free = memory::free_bytes(self.device.as_ref(), &self.options);
        let more = fixed.saturating_sub(self.fixed);
        if self.options.check_memory && free.is_some_and(|free| more > free) {
            return Err(Error::Option {
                name: "adapter",
                value: format!("{more} bytes more"),
                expected: format!("at most {}, which are free", free.unwrap_or(0)),
            });
        }
        // Rows in flight are submitted again.
        self.scheduler.forget_in_flight(self.program.as_mut());
        self.program.replace_plans(&plans)?;
        let is_adapted = !kept.list.is_empty();
        self.scheduler.set_adapted(is_adapted, self.limits.numerics);
        self.scheduler.sequences_mut().for_each(|s| s.adapter = numbers[s.adapter as usize]);
        self.scored_adapter = numbers[self.scored_adapter as usize];
        self.scheduler.kv.set_fixed_bytes(fixed);
        (self.adapters, self.fixed) = (kept, fixed);
        Ok(true)
    }

    /// Remove adapters that are leaving and that no sequence uses any more. The caller has the turn
    /// of the processors.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn release_adapters(&mut self) -> Result<()> {
        let mut leaving = (1..).zip(&self.adapters.leaving).filter(|(_, leaving)| **leaving);
        if leaving.any(|(number, _)| !self.is_used(number)) {
            let planned = self.adapter_planner().plan(self.adapters.clone())?;
            self.set_adapters_in_turn(planned)?;
        }
        Ok(())
    }

    /// Returns true if sequences use the adapter, or scoring does.
    fn is_used(&self, number: u32) -> bool {
        self.scored_adapter == number || self.scheduler.sequences().any(|s| s.adapter == number)
    }
}

/// Planner of changes of an engine's adapters; see [`Engine::adapter_planner`].
pub struct AdapterPlanner {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    limits: Limits,
    options: LoadOptions,
    /// The engine's adapters.
    adapters: Adapters,
    /// True for each adapter that was used when the planner was made.
    used: Vec<bool>,
}

/// Adapters with their plans, for [`Engine::set_adapters`].
#[derive(Debug)]
pub struct PlannedAdapters {
    /// The new adapters. Its `n_changes` is the engine's at the time of planning.
    kept: Adapters,
    /// New number of each of the engine's adapters, the first entry being "no adapter"; 0 for those
    /// that are removed.
    numbers: Vec<u32>,
    /// The new plans and the bytes that they need at load; `None`: the present plans stay.
    plans: Option<(Vec<Plan>, u64)>,
}

impl AdapterPlanner {
    /// Plan [`Engine::add_adapter`].
    ///
    /// # Errors
    /// The name is in use, the adapter does not fit the model, or the device does not support
    /// adapters.
    pub fn add(&self, adapter: Adapter, replaces: bool) -> Result<PlannedAdapters> {
        let mut wanted = self.adapters.clone();
        if replaces && let Ok(at) = wanted.position(&adapter.name) {
            wanted.leaving[at] = true;
        }
        wanted.push(adapter)?;
        self.plan(wanted)
    }

    /// Plan [`Engine::remove_adapter`].
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&self, name: &str) -> Result<PlannedAdapters> {
        let mut wanted = self.adapters.clone();
        let at = wanted.position(name)?;
        wanted.leaving[at] = true;
        self.plan(wanted)
    }

    /// Plan for the adapters `wanted`, without those that are leaving and unused.
    fn plan(&self, wanted: Adapters) -> Result<PlannedAdapters> {
        let n_wanted = wanted.list.len();
        // Adapters that are new to the planner count as used.
        let is_used = |number: u32| self.used.get(number as usize - 1).is_none_or(|used| *used);
        let (kept, numbers) = wanted.without_unused(is_used);
        let plans = if kept.list.len() == n_wanted && n_wanted == self.adapters.list.len() {
            None
        } else {
            let (plans, _) =
                memory::fused_plans(&self.model, kept.as_slice(), self.device.as_ref(), &self.limits)?;
            let fixed = memory::fixed_bytes(&self.model, &plans, self.device.as_ref(), &self.options)?;
            Some((plans, fixed))
        };
        Ok(PlannedAdapters { kept, numbers, plans })
    }
}

/// Salt for rows computed with an adapter: the same for the same files and factor.
fn salt_of(adapter: &Adapter) -> u64 {
    let mut salt = u64::from(adapter.factor.to_bits()) | 1;
    for (key, value) in adapter.checkpoint.metadata.iter() {
        salt = xxh64(format!("{key}={value:?}").as_bytes(), salt);
    }
    for tensor in &adapter.checkpoint.tensors {
        salt = xxh64(&tensor.data, xxh64(tensor.name.as_bytes(), salt));
    }
    salt
}
