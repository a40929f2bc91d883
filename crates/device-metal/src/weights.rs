//! Places of weights: in the mapped file, as buffers without a copy, or in one buffer of copies.
//!
//! A map becomes as few buffers as the GPU's size limit allows; a weight is an offset into one.
//! Weights are copied if they are not views of a file, or not aligned for their kernels. Stacks of
//! experts are copied if their matrices do not share one buffer.

use crate::arguments::TurnPair;
use crate::gpu::{Buffer, Memory, MetalGpu};
use crate::turns::Turns;
use device::key_bias::KnownKeys;
use device::{Error, KvLayerId, Limits, Op, Plan, Result, WeightId};
use device_lower::table::Location;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weights::{BlockType, Bytes, Map};

/// Alignment that kernels need for a weight's codes: the size of a load, as the headers of
/// `kernels/linear/` say.
const fn align_of(block: BlockType) -> usize {
    use BlockType::*;
    match block {
        F32 | Q4_K | Q5_K => 16,
        F16 | BF16 | Q5_1 | IQ4_XS => 8,
        Q4_1 | Q2_K | NVFP4 => 4,
        MXFP4 | I8_ROWS => 1,
        Q4_0 | Q5_0 | Q8_0 | Q3_K | Q6_K => 2,
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_NL => 2,
        TQ1_0 | TQ2_0 | Q1_0 | Affine(_) | I16_ROWS => 2,
    }
}

/// The alignment of scales and offsets.
const PLANE_ALIGN: usize = 4;

/// The alignment of copies.
const COPY_ALIGN: usize = 64;

/// A view of bytes, by its address.
type Key = (*const u8, usize);

fn key(bytes: &Bytes) -> Key {
    (bytes.as_ptr(), bytes.len())
}

/// A part of a map that becomes a buffer.
struct Segment {
    map: Arc<Map>,
    start: usize,
    end: usize,
}

/// The weights that are used in place, and those that are copied. Allocates no memory.
pub struct WeightPlan {
    segments: Vec<Segment>,
    /// Segment of each view, and its offset there.
    in_place: HashMap<Key, (usize, usize)>,
    /// Copied weights in the order of their copies, with their offsets.
    copied: Vec<(Bytes, usize)>,
    copied_bytes: usize,
}

impl WeightPlan {
    /// Places the weights of plans within the limits of a GPU.
    pub fn new<G: MetalGpu>(plans: &[Plan], gpu: &G) -> WeightPlan {
        let facts = gpu.facts();
        let mut copied = HashSet::new();
        loop {
            let plan = WeightPlan::with(plans, facts.page_bytes, facts.max_buffer_bytes, &copied);
            let split: Vec<Key> =
                stacks(plans).filter(|stack| !plan.share_a_buffer(stack)).flatten().collect();
            if split.is_empty() {
                return plan;
            }
            copied.extend(split);
        }
    }

    fn with(plans: &[Plan], page: usize, max_buffer: u64, must_copy: &HashSet<Key>) -> WeightPlan {
        let mut aligns: HashMap<Key, usize> = HashMap::new();
        let mut views: Vec<&Bytes> = Vec::new();
        for weight in plans.iter().flat_map(|plan| &plan.weights) {
            let whole = std::iter::once((&weight.data, &weight.planes));
            let parts = weight.parts.iter().map(|part| (&part.data, &part.planes));
            for (data, planes) in whole.chain(parts) {
                let planes = planes.scales.iter().chain(&planes.biases).map(|plane| (plane, PLANE_ALIGN));
                let of_weight = std::iter::once((data, align_of(weight.block))).chain(planes);
                for (view, align) in of_weight.filter(|(view, _)| !view.is_empty()) {
                    let known = aligns.entry(key(view)).or_insert_with(|| {
                        views.push(view);
                        align
                    });
                    *known = align.max(*known);
                }
            }
        }
        let stays = |view: &Bytes| {
            let align = aligns.get(&key(view)).copied().unwrap_or(COPY_ALIGN);
            let aligned = (view.as_ptr() as usize).is_multiple_of(align);
            view.is_mapped() && aligned && !must_copy.contains(&key(view))
        };
        let mut mapped: Vec<&Bytes> = views.iter().copied().filter(|view| stays(view)).collect();
        mapped.sort_by_key(|view| (Arc::as_ptr(view.map().0), view.map().1, view.len()));
        let mut plan =
            WeightPlan { segments: vec![], in_place: HashMap::new(), copied: vec![], copied_bytes: 0 };
        for view in mapped {
            let (map, at) = view.map();
            let end = at + view.len();
            let fits = plan.segments.last().is_some_and(|segment| {
                Arc::ptr_eq(&segment.map, map) && (end - segment.start) as u64 <= max_buffer
            });
            if !fits {
                let start = at / page * page;
                plan.segments.push(Segment { map: map.clone(), start, end });
            }
            let index = plan.segments.len() - 1;
            let segment = &mut plan.segments[index];
            segment.end = segment.end.max(end);
            plan.in_place.insert(key(view), (index, at - segment.start));
        }
        for view in views.into_iter().filter(|view| !stays(view)) {
            plan.copied.push((view.clone(), plan.copied_bytes));
            plan.copied_bytes = (plan.copied_bytes + view.len()).next_multiple_of(COPY_ALIGN);
        }
        plan
    }

    /// Returns true if all views are in one buffer.
    fn share_a_buffer(&self, views: &[Key]) -> bool {
        let mut segments = views.iter().map(|key| self.in_place.get(key).map(|(segment, _)| *segment));
        let first = segments.next();
        segments.all(|segment| Some(segment) == first)
    }

    /// Bytes of the copies.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }

    /// Returns true if a view is used in place.
    pub fn is_in_place(&self, view: &Bytes) -> bool {
        self.in_place.contains_key(&key(view))
    }

    /// Make the buffers, which are added to `buffers`.
    ///
    /// # Errors
    /// Memory was refused, or the GPU cannot use a map where it is.
    pub fn make<G: MetalGpu>(self, gpu: &G, buffers: &mut Vec<G::Buffer>) -> Result<Weights> {
        let mut places = HashMap::new();
        let first = buffers.len();
        for segment in &self.segments {
            let bytes = Bytes::new(segment.map.clone(), segment.start..segment.end);
            let view = bytes.as_ref().and_then(|bytes| gpu.view(bytes)).ok_or_else(|| Error::Failed {
                device: G::NAME,
                reason: format!(
                    "{} bytes of a mapped file cannot be used where they are; --weights copied copies files instead",
                    segment.end - segment.start
                ),
            })?;
            buffers.push(view);
        }
        for (key, (segment, offset)) in &self.in_place {
            places.insert(*key, Location { buffer: (first + segment) as u16, offset: *offset as u64 });
        }
        if self.copied_bytes > 0 {
            let copies = gpu.allocate(Memory::Device, "weights, copied", self.copied_bytes)?;
            for (view, offset) in &self.copied {
                // SAFETY: `copied_bytes` is the sum of all copies, so that each has its own range
                // of the buffer. The buffer was just allocated, so nothing else reads or writes it.
                unsafe {
                    std::ptr::copy_nonoverlapping(view.as_ptr(), copies.start().add(*offset), view.len());
                }
                let place = Location { buffer: buffers.len() as u16, offset: *offset as u64 };
                places.insert(key(view), place);
            }
            buffers.push(copies);
        }
        Ok(Weights { places })
    }
}

/// The views of each stack of experts.
fn stacks(plans: &[Plan]) -> impl Iterator<Item = Vec<Key>> {
    let stacks = plans.iter().flat_map(|plan| &plan.weights).filter(|weight| !weight.parts.is_empty());
    stacks.map(|stack| stack.views().filter(|view| !view.is_empty()).map(key).collect())
}

/// Places of all views.
pub struct Weights {
    places: HashMap<Key, Location>,
}

impl Weights {
    /// The place of a view; `None`: it has no bytes.
    pub fn place(&self, view: &Bytes) -> Option<Location> {
        self.places.get(&key(view)).copied()
    }
}

/// Largest number of columns of a head whose keys are stored without their known bias. Threadgroup
/// memory holds a query's terms.
const MOST_BIASED_COLUMNS: usize = 256;

/// Tables for kernels. They have the offsets of codes, scales and biases of the matrices of each
/// stack of experts, and the heads of each CrossScores. They also have the constant terms that
/// stored keys of a layer lack (`kernels/key_bias.h`), and the pairs of RoPE (`kernels/turns.h`).
#[derive(Default)]
pub struct LookupTables {
    /// Index of the first entry of a stack, by plan and weight.
    stacks: HashMap<(usize, WeightId), usize>,
    /// Index of the first entry of a list of heads.
    heads: HashMap<Vec<usize>, usize>,
    /// Index of the first entry of a KV layer's key biases.
    known_at: HashMap<KvLayerId, usize>,
    /// Key biases by KV layer.
    known: Vec<Option<KnownKeys>>,
    /// Cosines and sines of each plan, and the index of the first entry of their pairs.
    turns: Vec<(Turns, usize)>,
    /// Entries of 8 bytes.
    n_entries: usize,
}

impl LookupTables {
    /// For plans.
    pub fn new(plans: &[Plan], limits: &Limits) -> LookupTables {
        let mut known = KnownKeys::of_layers(plans, limits);
        for (index, known) in known.iter_mut().enumerate() {
            let fits = |plan: &Plan| plan.kv.layer(KvLayerId(index as u32)).head_dim <= MOST_BIASED_COLUMNS;
            if !plans.iter().all(fits) {
                *known = None;
            }
        }
        let mut tables = LookupTables { known, ..LookupTables::default() };
        for (layer, known) in tables.known.iter().enumerate() {
            let Some(known) = known else { continue };
            tables.known_at.insert(KvLayerId(layer as u32), tables.n_entries);
            tables.n_entries += known.words().count().div_ceil(2);
        }
        for (index, plan) in plans.iter().enumerate() {
            let turns = Turns::new(plan, limits);
            let bytes = turns.n_pairs() * size_of::<TurnPair>();
            tables.turns.push((turns, tables.n_entries));
            tables.n_entries += bytes / 8;
            for (id, weight) in plan.weights.iter().enumerate().filter(|(_, w)| !w.parts.is_empty()) {
                tables.stacks.insert((index, WeightId(id as u32)), tables.n_entries);
                tables.n_entries += 3 * weight.parts.len();
            }
            for op in plan.primitives() {
                let Op::CrossScores { heads, .. } = op else { continue };
                if !tables.heads.contains_key(heads) {
                    tables.heads.insert(heads.clone(), tables.n_entries);
                    tables.n_entries += heads.len().div_ceil(2);
                }
            }
        }
        tables
    }

    /// Their bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_entries * 8
    }

    /// The entries.
    pub fn entries(&self, plans: &[Plan], weights: &Weights) -> Vec<u64> {
        let mut entries = vec![0u64; self.n_entries];
        let place = |bytes: &Bytes| weights.place(bytes).map_or(0, |place| place.offset);
        for ((plan, id), first) in &self.stacks {
            let parts = &plans[*plan].weight(*id).parts;
            for (index, part) in parts.iter().enumerate() {
                let at = first + index;
                entries[at] = place(&part.data);
                entries[at + parts.len()] = part.planes.scales.as_ref().map_or(0, place);
                entries[at + 2 * parts.len()] = part.planes.biases.as_ref().map_or(0, place);
            }
        }
        for (layer, first) in &self.known_at {
            let known = self.known[layer.0 as usize].iter();
            for (index, word) in known.flat_map(KnownKeys::words).enumerate() {
                entries[first + index / 2] |= u64::from(word) << (32 * (index % 2));
            }
        }
        for (plan, (turns, first)) in plans.iter().zip(&self.turns) {
            let pairs = turns.pairs(plan);
            let words: &mut [u8] = bytemuck::cast_slice_mut(&mut entries[*first..]);
            words[..pairs.len() * size_of::<TurnPair>()].copy_from_slice(bytemuck::cast_slice(&pairs));
        }
        for (heads, first) in &self.heads {
            for (index, head) in heads.iter().enumerate() {
                entries[first + index / 2] |= (*head as u64) << (32 * (index % 2));
            }
        }
        entries
    }

    /// Place of a stack's offsets in the buffer of tables.
    pub fn stack(&self, buffer: u16, plan: usize, id: WeightId) -> Option<Location> {
        self.stacks.get(&(plan, id)).map(|first| Location { buffer, offset: *first as u64 * 8 })
    }

    /// Place of the biases that are subtracted from a layer's keys before they are stored; `None`:
    /// none.
    pub fn key_bias(&self, buffer: u16, layer: KvLayerId) -> Option<Location> {
        self.known_at.get(&layer).map(|first| Location { buffer, offset: *first as u64 * 8 })
    }

    /// Cosines and sines of a plan, and the place of their pairs in the buffer of tables.
    pub fn turns(&self, buffer: u16, plan: usize) -> Option<(&Turns, Location)> {
        let (turns, first) = self.turns.get(plan)?;
        Some((turns, Location { buffer, offset: *first as u64 * 8 }))
    }

    /// Place of a list of heads in the buffer of tables.
    pub fn heads(&self, buffer: u16, heads: &[usize]) -> Location {
        let first = self.heads.get(heads).copied().unwrap_or(0);
        Location { buffer, offset: first as u64 * 8 }
    }
}
