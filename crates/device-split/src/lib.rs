//! A model that is larger than a GPU's memory runs on two devices. One has the experts of the first
//! layers, or these layers as a whole; the other has everything else.
//!
//! Every plan is cut into segments, each for one device ([`cut`]). Cutting at a layer makes two
//! segments. Cutting out experts makes a segment for each layer's experts, and segments between
//! them. The experts are the Ops that depend on a router's choice ([`place`]). The choice itself is
//! made on the experts' device, so only rows of f32 cross. These rows are hidden states between
//! layers, and the input, router logits and sum of experts. All pass through the host, and so does
//! the residual stream around experts.
//!
//! Each device compiles its segments as plans of one program, which share pages, states and
//! weights. Keys and values are on the device of their layer, in pages with the same numbers on
//! both devices. A step runs the segments in order. The host chooses the tokens
//! ([`device_lower::hosted`]), which costs little compared with layers on the CPU.
//!
//! The devices keep their own fusion rules, so a [`SplitDevice`] receives unfused plans. Models
//! whose layers share more than rows of f32 are refused: keys and values that later layers read
//! across a cut, and encoders beside decoders.

mod cut;
mod owners;
mod place;
mod program;

use std::sync::Arc;

use cut::{Cut, cut};
use device::{
    Arithmetic, Device, Error, FusedKind, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence,
    Result, Weight,
};
use device_lower::fusion::flatten;
use device_lower::hosted::Hosted;
use device_lower::outputs::HostOutputs;
use owners::Owners;
use place::Placement;
use platform::{MemorySource, Reading, SystemMemory};
use program::{SplitProgram, exchanged};

/// The device's name.
const NAME: &str = "split";

/// The part of a model on the first of two devices; the second has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of layers of the model.
    pub n_layers: usize,
    /// Number of first layers that are on the first device as a whole; fewer than all.
    pub first_layers: usize,
    /// Number of first layers whose experts are on the first device, `first_layers` included.
    pub expert_layers: usize,
}

impl Share {
    /// Description for people: `layers 0 to 3 and the experts of layers 4 to 23`.
    pub fn describe(&self) -> String {
        let Share { n_layers, first_layers: first, expert_layers } = *self;
        let range = |from: usize, to: usize| match to - from {
            1 => format!("layer {from}"),
            _ => format!("layers {from} to {}", to - 1),
        };
        let experts = || format!("the experts of {}", range(first, expert_layers.min(n_layers)));
        match (first, expert_layers.min(n_layers) > first) {
            (0, _) => experts(),
            (_, false) => range(0, first),
            (_, true) => format!("{} and {}", range(0, first), experts()),
        }
    }
}

/// Two devices that share the layers of a model.
pub struct SplitDevice {
    first: Arc<dyn Device>,
    second: Arc<dyn Device>,
    share: Share,
    kv_types: Vec<KvType>,
}

/// Plans of both devices, and the cuts of the original plans.
struct Parts {
    plans: [Vec<Plan>; 2],
    cuts: Vec<Cut>,
}

impl SplitDevice {
    /// A device that runs `share` on `first`, and the rest on `second`.
    ///
    /// # Errors
    /// Both devices have layers but no KV type in common, or one of them would have no part of any
    /// layer.
    pub fn new(first: Arc<dyn Device>, second: Arc<dyn Device>, share: Share) -> Result<SplitDevice> {
        let others = first.kv_types();
        let suits = |kind: &KvType| share.first_layers == 0 || others.contains(kind);
        let kv_types: Vec<KvType> = second.kv_types().iter().copied().filter(suits).collect();
        if kv_types.is_empty() {
            return unsupported(format!(
                "a split over {} and {}, which have no common KV type",
                first.name(),
                second.name()
            ));
        }
        let Share { n_layers, first_layers, expert_layers } = share;
        if first_layers >= n_layers || (first_layers == 0 && expert_layers == 0) {
            return unsupported(format!(
                "a split with {first_layers} of {n_layers} layers on the first device"
            ));
        }
        Ok(SplitDevice { first, second, share, kv_types })
    }

    fn devices(&self) -> [&dyn Device; 2] {
        [self.first.as_ref(), self.second.as_ref()]
    }

    fn parts(&self, plans: &[Plan], limits: &Limits) -> Result<Parts> {
        limits.check(self, plans)?;
        let flat: Vec<Plan> = plans.iter().map(flatten).collect();
        let refuse = |what: String| Error::Unsupported {
            device: NAME,
            what,
            hint: "leave --gpu-layers and --cpu-moe-layers out, or use other numbers".to_owned(),
        };
        let of_encoder = |plan: &Plan| plan.kv.layers.iter().any(|layer| layer.encoder_states.is_some());
        if flat.iter().any(of_encoder) {
            return Err(refuse("a model with an encoder and a decoder".to_owned()));
        }
        let places = flat.iter().map(|plan| Placement::new(plan, &self.share).map_err(refuse));
        let places = places.collect::<Result<Vec<Placement>>>()?;
        let owners = Owners::new(&flat, &places).map_err(refuse)?;
        let rules = self.devices().map(|device| device.fusion());
        let mut parts = [Vec::new(), Vec::new()];
        let of = |(plan, place)| cut(plan, place, &owners, rules, limits, &mut parts).map_err(refuse);
        let cuts = plans.iter().zip(&flat).zip(&places).map(of).collect::<Result<_>>()?;
        Ok(Parts { plans: parts, cuts })
    }

    /// Limits of the first device. If it has experts only, and so no pages, the KV type may be one
    /// that it lacks.
    fn first_limits(&self, limits: &Limits) -> Limits {
        let known = self.first.kv_types();
        let kv_type = if known.contains(&limits.kv_type) { Some(&limits.kv_type) } else { known.first() };
        Limits { kv_type: kv_type.copied().unwrap_or(limits.kv_type), ..limits.clone() }
    }

    /// The device that has all of these plans, if there is one.
    fn only(&self, parts: &Parts) -> Option<&dyn Device> {
        match &parts.plans {
            [first, _] if first.is_empty() => Some(self.second.as_ref()),
            [_, second] if second.is_empty() => Some(self.first.as_ref()),
            [_, _] => None,
        }
    }
}

fn unsupported<T>(what: String) -> Result<T> {
    let hint = "leave --gpu-layers and --cpu-moe-layers out".to_owned();
    Err(Error::Unsupported { device: NAME, what, hint })
}

impl Device for SplitDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let [first, second] = self.devices().map(|device| device.describe());
        format!("{}: {first}; everything else: {second}", self.share.describe())
    }

    fn n_threads(&self) -> usize {
        self.first.n_threads()
    }

    /// Memory of both devices together.
    fn memory(&self) -> SystemMemory {
        let [first, second] = self.devices().map(|device| device.memory());
        SystemMemory { total: first.total + second.total, free: first.free + second.free }
    }

    fn memory_source(&self) -> Option<Box<dyn MemorySource>> {
        let of = |device: &dyn Device| device.memory_source().unwrap_or_else(platform::system_source);
        let sources = self.devices().map(of);
        let Share { n_layers, first_layers, .. } = self.share;
        let layers = [first_layers, n_layers - first_layers].map(|n| n as u64);
        Some(Box::new(Sources { sources, layers }))
    }

    /// No rules: each segment is fused by its device's rules.
    fn fusion(&self) -> &[FusedKind] {
        &[]
    }

    fn kv_types(&self) -> &[KvType] {
        &self.kv_types
    }

    fn page_len(&self) -> usize {
        self.second.page_len()
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let parts = self.parts(plans, limits)?;
        if let Some(device) = self.only(&parts) {
            return device.memory_plan(plans, limits);
        }
        let mut memory = MemoryPlan::default();
        let all_limits = [&self.first_limits(limits), limits];
        for ((device, plans), limits) in self.devices().into_iter().zip(&parts.plans).zip(all_limits) {
            let of_part = device.memory_plan(plans, limits)?;
            let items = of_part.items.into_iter().filter(|item| item.bytes > 0);
            let named = |item: Item| Item { what: format!("{}: {}", device.name(), item.what), ..item };
            memory.items.extend(items.map(named));
            memory.notes.extend(of_part.notes.into_iter().map(|note| format!("{}: {note}", device.name())));
        }
        let [first, second] = self.devices().map(|device| device.name());
        memory.notes.push(format!("on {first} {}, everything else on {second}", self.share.describe()));
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let choices = HostOutputs::bytes(n_logits, limits, 1, 1);
        for (what, bytes) in [("rows between the devices", exchanged(&parts.cuts)), ("sampling", choices)] {
            if bytes > 0 {
                memory.items.push(Item { what: what.to_owned(), bytes, residence: Residence::Committed });
            }
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let parts = self.parts(plans, limits)?;
        if let Some(device) = self.only(&parts) {
            return device.compile(plans, limits);
        }
        let [first, second] = &parts.plans;
        let programs =
            [self.first.compile(first, &self.first_limits(limits))?, self.second.compile(second, limits)?];
        let program = SplitProgram::new(programs, parts.cuts, &parts.plans, limits);
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, 1, 1)))
    }

    /// Arithmetic of the second device; the first device's may differ.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        self.second.arithmetic(weight)
    }

    /// Peaks of the second device.
    fn peaks(&self) -> Peaks {
        self.second.peaks()
    }
}

/// Memory of both devices as one. Keys and values grow on both in proportion to their layers, so
/// the scarcer device with layers limits the free memory.
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
            let free = (u128::from(reading.free) * u128::from(all)).checked_div(u128::from(layers));
            free.map_or(u64::MAX, |free| free as u64)
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
