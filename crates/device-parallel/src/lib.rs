//! Tensor parallelism: a model on several devices of one host, each of which computes a part of
//! every layer.
//!
//! The devices are the ranks of a group. They communicate at each [`device::Op::Collective`] of a
//! plan, each in its own way. Rules on Ops divide every plan ([`shard`]). Each rank's plan gets its
//! part of the weights ([`slice`]), and its device fuses and compiles it. A step runs on all ranks
//! at once, each on its own thread ([`program`]). All ranks compute bit-identical logits, so all
//! choose the same tokens and can continue with them. The caller reads the results of the first
//! rank.
#![deny(missing_docs)]

mod heads;
mod program;
mod shard;
mod slice;
mod spread;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use device::{
    Arithmetic, Device, Error, FusedKind, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence,
    Result, Weight,
};
use device_lower::fusion::{flatten, fuse};
use heads::heads;
use platform::{MemorySource, Reading, SystemMemory};
use program::{ParallelProgram, PlanOfRanks};
use shard::{Ranked, shard};
use slice::{Cut, Slices};

/// The device's name.
const NAME: &str = "parallel";

/// Devices that run a model together.
pub struct ParallelDevice {
    ranks: Vec<Arc<dyn Device>>,
    /// Parts of weights of each rank, made by a memory plan and kept until a program owns them.
    slices: Vec<Mutex<Slices>>,
    /// Held so that all ranks receive the steps of all programs in one order: a rank waits for the
    /// others within a step.
    order: Arc<Mutex<()>>,
}

/// Plans of each rank, and the division of each plan.
struct Divided {
    plans: Vec<Vec<Plan>>,
    of_ranks: Vec<PlanOfRanks>,
    notes: Vec<String>,
}

impl ParallelDevice {
    /// A device of the ranks of one group, in their order.
    ///
    /// # Errors
    /// There are fewer than two ranks, or they are not one whole group.
    pub fn new(ranks: Vec<Arc<dyn Device>>) -> Result<ParallelDevice> {
        let n = ranks.len();
        if n < 2 || ranks.iter().any(|rank| rank.n_ranks() != n) {
            return Err(Error::Unsupported {
                device: NAME,
                what: format!("a group of {n} devices that are not its ranks"),
                hint: "create at least 2 devices as one group".to_owned(),
            });
        }
        let slices = ranks.iter().map(|_| Mutex::default()).collect();
        Ok(ParallelDevice { ranks, slices, order: Arc::default() })
    }

    fn first(&self) -> &dyn Device {
        self.ranks[0].as_ref()
    }

    fn divide(&self, plans: &[Plan]) -> Result<Divided> {
        device::check_plans(plans)?;
        let n = self.ranks.len();
        let flat: Vec<Plan> = plans.iter().map(flatten).collect();
        let heads = heads(&flat, n).map_err(|what| Error::Unsupported {
            device: NAME,
            what,
            hint: "use a number of devices that divides the model's heads (--gpus)".to_owned(),
        })?;
        let divided: Vec<Vec<Ranked>> = flat.iter().map(|plan| shard(plan, &heads, n)).collect();
        let notes =
            flat.iter().zip(&divided).filter_map(|(flat, ranks)| self.whole_weights(flat, ranks.first()?));
        let notes = notes.collect();
        let cut = |rank: usize| -> Vec<Plan> {
            let mut slices = self.slices[rank].lock().unwrap_or_else(PoisonError::into_inner);
            let mut of = |ranked: &Ranked| {
                let parts = ranked.plan.weights.iter().zip(&ranked.cuts);
                let weights = parts.map(|(weight, cut)| slices.of(weight, *cut, rank, n)).collect();
                fuse(&Plan { weights, ..ranked.plan.clone() }, self.ranks[rank].fusion())
            };
            divided.iter().map(|ranks| of(&ranks[rank])).collect()
        };
        let rank_plans: Vec<Vec<Plan>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n).map(|rank| scope.spawn(move || cut(rank))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let of_ranks = plans.iter().zip(divided).enumerate().map(|(index, (plan, ranked))| {
            let fused = rank_plans.iter().map(|plans| &plans[index]);
            PlanOfRanks::new(plan, ranked, fused)
        });
        Ok(Divided { of_ranks: of_ranks.collect(), plans: rank_plans, notes })
    }

    /// Note about matrices that could not be divided, if they are a large part.
    fn whole_weights(&self, flat: &Plan, ranked: &Ranked) -> Option<String> {
        let mut seen: Vec<device::WeightId> = Vec::new();
        let (mut bytes, mut largest): (u64, Option<&Weight>) = (0, None);
        for op in ranked.plan.primitives() {
            let (device::Op::Linear { weight, .. } | device::Op::ExpertLinear { weight, .. }) = op else {
                continue;
            };
            if ranked.cuts[weight.0 as usize] != Cut::Whole || seen.contains(weight) {
                continue;
            }
            seen.push(*weight);
            let weight = ranked.plan.weight(*weight);
            bytes += weight.n_bytes();
            if largest.is_none_or(|other| other.n_bytes() < weight.n_bytes()) {
                largest = Some(weight);
            }
        }
        let all: u64 = flat.weights.iter().map(Weight::n_bytes).sum();
        let largest = largest.filter(|_| bytes > all / 8)?;
        Some(format!(
            "{} % of the weights are whole on each of the {} devices, the largest {}: their columns are not whole blocks for each, \
             or what they make is needed whole",
            100 * bytes / all.max(1),
            self.ranks.len(),
            largest.name
        ))
    }
}

impl Device for ParallelDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        format!("{} devices together, each: {}", self.ranks.len(), self.first().describe())
    }

    fn n_threads(&self) -> usize {
        self.first().n_threads()
    }

    /// Memory of all ranks, if each uses as much as the scarcest has.
    fn memory(&self) -> SystemMemory {
        let of = self.ranks.iter().map(|rank| rank.memory());
        let of: Vec<SystemMemory> = of.collect();
        let n = of.len() as u64;
        SystemMemory {
            total: of.iter().map(|memory| memory.total).sum(),
            free: n * of.iter().map(|memory| memory.free).min().unwrap_or(0),
        }
    }

    fn memory_source(&self) -> Option<Box<dyn MemorySource>> {
        let sources = self.ranks.iter().map(|rank| rank.memory_source()).collect::<Option<Vec<_>>>()?;
        Some(Box::new(Sources(sources)))
    }

    /// No rules: each rank's plan is fused by its device's rules.
    fn fusion(&self) -> &[FusedKind] {
        &[]
    }

    fn kv_types(&self) -> &[KvType] {
        self.first().kv_types()
    }

    fn page_len(&self) -> usize {
        self.first().page_len()
    }

    fn prompt_chunk(&self) -> usize {
        self.first().prompt_chunk()
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        limits.check(self, plans)?;
        let divided = self.divide(plans)?;
        let mut memory = MemoryPlan { notes: divided.notes, ..MemoryPlan::default() };
        for (index, (rank, plans)) in self.ranks.iter().zip(&divided.plans).enumerate() {
            let of_rank = rank.memory_plan(plans, limits)?;
            let named = |item: Item| Item { what: format!("rank {index}: {}", item.what), ..item };
            memory.items.extend(of_rank.items.into_iter().map(named));
            memory.notes.extend(of_rank.notes.into_iter().map(|note| format!("rank {index}: {note}")));
        }
        // A rank that reads weights in place has listed them already.
        if !memory.items.iter().any(|item| item.what.ends_with("weights in memory")) {
            let copied =
                |slices: &Mutex<Slices>| slices.lock().unwrap_or_else(PoisonError::into_inner).n_copied();
            let bytes = self.slices.iter().map(copied).sum();
            let what = "columns of weights, in the host's memory".to_owned();
            memory.items.push(Item { what, bytes, residence: Residence::Committed });
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        limits.check(self, plans)?;
        let divided = self.divide(plans)?;
        // Programs hold the parts that they need.
        for slices in &self.slices {
            *slices.lock().unwrap_or_else(PoisonError::into_inner) = Slices::default();
        }
        let programs: Vec<Result<Box<dyn Program>>> = std::thread::scope(|scope| {
            let compile = |(rank, plans): (&Arc<dyn Device>, Vec<Plan>)| {
                let rank = rank.clone();
                scope.spawn(move || rank.compile(&plans, limits))
            };
            let threads: Vec<_> = self.ranks.iter().zip(divided.plans).map(compile).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Box::new(ParallelProgram::new(programs, divided.of_ranks, self.order.clone())?))
    }

    /// Arithmetic of the first rank; all ranks are alike.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        self.first().arithmetic(weight)
    }

    /// Peaks of the first rank, times the number of ranks.
    fn peaks(&self) -> Peaks {
        let (one, n) = (self.first().peaks(), self.ranks.len() as f64);
        Peaks {
            read_bytes_per_second: n * one.read_bytes_per_second,
            int8_ops_per_second: n * one.int8_ops_per_second,
            bf16_ops_per_second: n * one.bf16_ops_per_second,
            f32_ops_per_second: n * one.f32_ops_per_second,
        }
    }
}

/// Memory of all ranks as one. A page takes memory on each rank, so the free memory is the scarcest
/// rank's, times the number of ranks.
struct Sources(Vec<Box<dyn MemorySource>>);

impl MemorySource for Sources {
    fn name(&self) -> String {
        self.0.iter().map(|source| source.name()).collect::<Vec<_>>().join("; ")
    }

    fn read(&mut self) -> Reading {
        let n = self.0.len() as u64;
        let mut readings = self.0.iter_mut().map(|source| source.read());
        let Some(mut all) = readings.next() else { return Reading::default() };
        for reading in readings {
            all.total = all.total.saturating_add(reading.total);
            all.free = all.free.min(reading.free);
            all.pressure = all.pressure.max(reading.pressure);
        }
        Reading { free: all.free.saturating_mul(n), ..all }
    }
}
