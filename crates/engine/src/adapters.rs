//! The adapters (LoRA) of a model, and how they come and go while its engine runs.
//!
//! A plan holds the stacks of all adapters, so a change is a new plan in the same program: pages, states and cached prefixes stay. The
//! plan may be made on another thread while steps go on ([`AdapterPlanner`]), so that between two steps it only is compiled. An adapter
//! that sequences are computed with stays until the last of them has ended.

use std::sync::Arc;

use device::{Device, Limits, Plan};
use model::Adapter;
use xxhash_rust::xxh64::xxh64;

use crate::{Engine, Error, LoadOptions, Model, Result, memory};

/// Adapters that requests choose by their names. In a step, number `i + 1` is the adapter at `i`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adapters {
    list: Vec<Adapter>,
    /// Of what each holds: kept apart from what other weights computed.
    salts: Vec<u64>,
    /// Whether each goes as soon as no sequence needs it; new requests do not find it.
    leaving: Vec<bool>,
    /// How often they have changed.
    n_changes: u64,
}

impl Adapters {
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

    /// In the order of their numbers, those that are leaving included.
    pub(crate) fn as_slice(&self) -> &[Adapter] {
        &self.list
    }

    /// The names that requests may have.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.list.iter().zip(&self.leaving).filter(|(_, leaving)| !**leaving);
        known.map(|(adapter, _)| adapter.name.as_str())
    }

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

    /// Without those that are leaving and not in use; and the number of each of the old ones now.
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
    /// The names of its adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.names()
    }

    /// Let requests choose a further adapter from now on. Called between two steps; sequences go on, and cached prefixes stay.
    /// (With deterministic numerics, a model without adapters computes its answers in another order once it has one.) `replaces`: if
    /// there is one of its name already, that one goes.
    ///
    /// # Errors
    /// The name is in use, the adapter does not fit the model, the memory is short, or the device cannot have adapters. Nothing has
    /// changed then.
    pub fn add_adapter(&mut self, adapter: Adapter, replaces: bool) -> Result<()> {
        let planned = self.adapter_planner().add(adapter, replaces)?;
        self.set_adapters(planned).map(drop)
    }

    /// Let no further request choose an adapter. Sequences that are computed with it end as they would have.
    ///
    /// # Errors
    /// There is none of this name, or the device failed. Nothing has changed then.
    pub fn remove_adapter(&mut self, name: &str) -> Result<()> {
        let planned = self.adapter_planner().remove(name)?;
        self.set_adapters(planned).map(drop)
    }

    /// What plans of other adapters are made with, on any thread, while the engine goes on.
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

    /// Have the adapters that were planned from now on, between two steps. False: the engine's have changed since the planner was
    /// taken, or a sequence needs one that the plan has not; nothing has changed, and another plan is needed.
    ///
    /// # Errors
    /// The memory is short, or the device failed. Nothing has changed then.
    pub fn set_adapters(&mut self, planned: PlannedAdapters) -> Result<bool> {
        let turns = self.turns.clone();
        let _turn = turns.as_ref().map(|turns| turns.take());
        self.set_adapters_in_turn(planned)
    }

    /// The same; the caller has the turn of the processors.
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
        // Their rows are submitted again.
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

    /// Let adapters go that are leaving and that no sequence needs any more. The caller has the turn of the processors.
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

    /// Whether an adapter has sequences, or is what is scored with.
    fn is_used(&self, number: u32) -> bool {
        self.scored_adapter == number || self.scheduler.sequences().any(|s| s.adapter == number)
    }
}

/// Makes the plans of other adapters for an engine; see [`Engine::adapter_planner`].
pub struct AdapterPlanner {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    limits: Limits,
    options: LoadOptions,
    /// The engine's.
    adapters: Adapters,
    /// Which of these were needed when the planner was taken.
    used: Vec<bool>,
}

/// Adapters with their plans, for [`Engine::set_adapters`].
#[derive(Debug)]
pub struct PlannedAdapters {
    /// As often changed as the engine's were when they were planned.
    kept: Adapters,
    /// Of each of the engine's adapters, none included, its number from now on; 0 for those that go.
    numbers: Vec<u32>,
    /// The plans and the bytes that they take at load; `None`: those that are there do.
    plans: Option<(Vec<Plan>, u64)>,
}

impl AdapterPlanner {
    /// As [`Engine::add_adapter`].
    ///
    /// # Errors
    /// The name is in use, the adapter does not fit the model, or the device cannot have adapters.
    pub fn add(&self, adapter: Adapter, replaces: bool) -> Result<PlannedAdapters> {
        let mut wanted = self.adapters.clone();
        if replaces && let Ok(at) = wanted.position(&adapter.name) {
            wanted.leaving[at] = true;
        }
        wanted.push(adapter)?;
        self.plan(wanted)
    }

    /// As [`Engine::remove_adapter`].
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&self, name: &str) -> Result<PlannedAdapters> {
        let mut wanted = self.adapters.clone();
        let at = wanted.position(name)?;
        wanted.leaving[at] = true;
        self.plan(wanted)
    }

    /// The engine's adapters and others after them, without those that are leaving and not in use.
    fn plan(&self, wanted: Adapters) -> Result<PlannedAdapters> {
        let n_wanted = wanted.list.len();
        // One that is new and leaving there is not.
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

/// A number that what an adapter computed is known by: the same for the same files and factor.
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
