//! A model that is larger than a GPU's memory runs on two devices: its first layers on one, the others and the head on another.
//!
//! Every plan is cut between two layers ([`cut`]). What crosses the cut, in most models one row of hidden numbers for each token, is
//! kept by the first part and is the second part's input. Keys and values lie with their layer, in pages of the same numbers on both
//! devices. A step runs through one part and then the other, and its tokens are chosen on the host ([`device_lower::hosted`]): beside
//! layers on the host both cost little.
//!
//! The devices keep their own fusion rules, so plans come to a [`SplitDevice`] unfused. Models whose layers share more than rows of f32
//! are refused: adapters, keys and values that later layers share across the cut, encoders beside decoders.

mod cut;
mod program;

use std::sync::Arc;

use cut::{Cut, Owners, cut, place};
use device::{
    Arithmetic, Device, Error, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence, Result,
    Rule, Weight,
};
use device_lower::fusion::flatten;
use device_lower::hosted::Hosted;
use device_lower::outputs::HostOutputs;
use platform::{MemorySource, Reading, SystemMemory};
use program::{SplitProgram, exchanged};

/// The device's name.
const NAME: &str = "split";

/// Two devices that share a model's layers.
pub struct SplitDevice {
    first: Arc<dyn Device>,
    second: Arc<dyn Device>,
    first_layers: usize,
    n_layers: usize,
    kv_types: Vec<KvType>,
}

impl SplitDevice {
    /// The first `first_layers` of a model's `n_layers` layers on `first`, the others and the head on `second`.
    ///
    /// # Errors
    /// The devices have no KV type in common, or one of them would have no layer.
    pub fn new(
        first: Arc<dyn Device>,
        second: Arc<dyn Device>,
        first_layers: usize,
        n_layers: usize,
    ) -> Result<SplitDevice> {
        let others = first.kv_types();
        let kv_types: Vec<KvType> =
            second.kv_types().iter().copied().filter(|kind| others.contains(kind)).collect();
        if kv_types.is_empty() {
            return unsupported(format!(
                "{} beside {}, without a KV type of both",
                first.name(),
                second.name()
            ));
        }
        if first_layers == 0 || first_layers >= n_layers {
            return unsupported(format!("{first_layers} of {n_layers} layers on one of two devices"));
        }
        Ok(SplitDevice { first, second, first_layers, n_layers, kv_types })
    }

    fn devices(&self) -> [&dyn Device; 2] {
        [self.first.as_ref(), self.second.as_ref()]
    }

    /// `None`: no plan has layers on both sides, and all are the second device's.
    fn cuts(&self, plans: &[Plan]) -> Result<Option<Vec<Cut>>> {
        let flat: Vec<Plan> = plans.iter().map(flatten).collect();
        let refuse = |what: String| Error::Unsupported {
            device: NAME,
            what,
            hint: "leave --gpu-layers out, or use another number".to_owned(),
        };
        let of_encoder = |plan: &Plan| plan.kv.layers.iter().any(|layer| layer.encoder_states.is_some());
        if flat.iter().any(of_encoder) {
            return Err(refuse("an encoder beside a decoder".to_owned()));
        }
        let places = flat.iter().map(|plan| place(plan, self.first_layers).map_err(refuse));
        let places = places.collect::<Result<Vec<Option<usize>>>>()?;
        if places.iter().all(Option::is_none) {
            return Ok(None);
        }
        let nothing =
            || refuse(format!("a plan without layers before and after layer {}", self.first_layers));
        let places = places.into_iter().map(|place| place.ok_or_else(nothing)).collect::<Result<Vec<_>>>()?;
        let owners = Owners::new(&flat, &places).map_err(refuse)?;
        let rules = self.devices().map(|device| device.fusion());
        let of = |((plan, flat), at)| cut(plan, flat, at, &owners, rules).map_err(refuse);
        Ok(Some(plans.iter().zip(&flat).zip(places).map(of).collect::<Result<_>>()?))
    }

    fn parts(&self, cuts: &[Cut]) -> [Vec<Plan>; 2] {
        [0, 1].map(|part| cuts.iter().map(|cut| cut.parts[part].clone()).collect())
    }
}

fn unsupported<T>(what: String) -> Result<T> {
    Err(Error::Unsupported { device: NAME, what, hint: "leave --gpu-layers out".to_owned() })
}

impl Device for SplitDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let (first, n) = (self.first_layers, self.n_layers);
        let [before, after] = self.devices().map(|device| device.describe());
        format!("layers 0 to {}: {before}; layers {first} to {} and the head: {after}", first - 1, n - 1)
    }

    fn n_threads(&self) -> usize {
        self.first.n_threads()
    }

    /// Of both together.
    fn memory(&self) -> SystemMemory {
        let [first, second] = self.devices().map(|device| device.memory());
        SystemMemory { total: first.total + second.total, free: first.free + second.free }
    }

    fn memory_source(&self) -> Option<Box<dyn MemorySource>> {
        let of = |device: &dyn Device| device.memory_source().unwrap_or_else(platform::system_source);
        let sources = self.devices().map(of);
        let layers = [self.first_layers, self.n_layers - self.first_layers].map(|n| n as u64);
        Some(Box::new(Sources { sources, layers }))
    }

    /// None: each part is fused by its device's rules.
    fn fusion(&self) -> &[Rule] {
        &[]
    }

    fn kv_types(&self) -> &[KvType] {
        &self.kv_types
    }

    fn page_len(&self) -> usize {
        self.second.page_len()
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let Some(cuts) = self.cuts(plans)? else { return self.second.memory_plan(plans, limits) };
        let mut memory = MemoryPlan::default();
        for (device, plans) in self.devices().into_iter().zip(self.parts(&cuts)) {
            let of_part = device.memory_plan(&plans, limits)?;
            let named = |item: Item| Item { what: format!("{}: {}", device.name(), item.what), ..item };
            memory.items.extend(of_part.items.into_iter().map(named));
            memory.notes.extend(of_part.notes.into_iter().map(|note| format!("{}: {note}", device.name())));
        }
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let choices = HostOutputs::bytes(n_logits, limits, 1, 1);
        for (what, bytes) in
            [("rows between the devices", 4 * exchanged(&cuts, limits) as u64), ("sampling", choices)]
        {
            if bytes > 0 {
                memory.items.push(Item { what: what.to_owned(), bytes, residence: Residence::Committed });
            }
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        limits.check(self, plans)?;
        let Some(cuts) = self.cuts(plans)? else { return self.second.compile(plans, limits) };
        let [first, second] = self.parts(&cuts);
        let programs = [self.first.compile(&first, limits)?, self.second.compile(&second, limits)?];
        let n_values = plans.iter().map(|plan| plan.values.len()).collect();
        let program = SplitProgram::new(programs, cuts, n_values, limits);
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, 1, 1)))
    }

    /// The second's; the first's may differ.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        self.second.arithmetic(weight)
    }

    /// The second's.
    fn peaks(&self) -> Peaks {
        self.second.peaks()
    }
}

/// Both devices' memory as one: keys and values grow on both in proportion to their layers, so what is free is what the scarcer of
/// them allows.
struct Sources {
    sources: [Box<dyn MemorySource>; 2],
    layers: [u64; 2],
}

impl MemorySource for Sources {
    fn name(&self) -> String {
        let [first, second] = self.sources.each_ref().map(|source| source.name());
        format!("{first}; {second}")
    }

    fn read(&mut self) -> Reading {
        let [first, second] = self.sources.each_mut().map(|source| source.read());
        let all = self.layers[0] + self.layers[1];
        let of = |reading: &Reading, layers: u64| {
            (u128::from(reading.free) * u128::from(all) / u128::from(layers)) as u64
        };
        let free = [of(&first, self.layers[0]), of(&second, self.layers[1])];
        let scarcer = if free[0] < free[1] { first } else { second };
        Reading {
            total: first.total.saturating_add(second.total),
            free: free[0].min(free[1]),
            pressure: first.pressure.max(second.pressure),
            swap_used: first.swap_used,
            resident: first.resident,
            bound: scarcer.bound,
        }
    }
}
