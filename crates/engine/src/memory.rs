//! The memory plan: what a model needs with given settings, before anything is allocated.

use std::fmt;

use device::{Device, KvLayout, KvType, Limits, Op, Plan, Residence};
use model::Adapter;
use platform::SystemMemory;
use serde::Serialize;

use crate::governor::{MemoryStatus, Reason, reserve};
use crate::kv::{bytes_of_sequence, pool_sizes};
use crate::{Error, LoadOptions, Model, Result, load};

/// Bytes of a tokenizer for each token, about: span, bytes and kind, its index entry, its merge or
/// score. Measured: 49 bytes with the merges of a vocabulary of 49,152 tokens, 33 with the scores
/// of one of 262,144.
const TOKEN_BYTES: u64 = 36;

/// Resident code and data of the program and the system's libraries, stacks included; measured on
/// Linux x86-64. Code that is not optimised takes twice as much. The system's page cache decides
/// how much is resident: 34 to 37 MiB without optimisation, 18 to 20 MiB with it.
const PROGRAM_BYTES: u64 = if cfg!(debug_assertions) { 35 << 20 } else { 19 << 20 };

/// One line of a [`MemoryReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryItem {
    /// Name of the item.
    pub what: String,
    /// Its size.
    pub bytes: u64,
    /// `mapped` (the file's own pages), `committed` (allocated at load) or `reserved` (allocated as
    /// sequences grow; the maximum).
    pub residence: &'static str,
}

/// Settings with which a model would fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// The longest context that fits with the other settings.
    pub n_ctx: usize,
    /// Storage type of keys and values.
    pub kv_type: &'static str,
    /// Prefill chunk, in tokens.
    pub chunk: usize,
    /// Number of sequences that run at once.
    pub n_sequences: usize,
    /// Total size with these settings.
    pub bytes: u64,
}

/// Budget that the governor would set for KV pages and caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedBudget {
    /// `free - weights - activations - reserve`, or the remainder of the cap.
    pub bytes: u64,
    /// Bytes left to other processes.
    pub reserve: u64,
    /// Limit that bounds the budget: `machine`, `group`, `device` or `cap`. `unknown`: the system
    /// reports nothing, so nothing is limited.
    pub reason: &'static str,
}

/// Memory needed by a model with given settings, compared with the memory that is free now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Items of the plan.
    pub items: Vec<MemoryItem>,
    /// Features that the device lacks for this model and these settings, with reasons.
    pub notes: Vec<String>,
    /// Sum of the mapped items.
    pub mapped: u64,
    /// Sum of the items allocated at load.
    pub committed: u64,
    /// Sum of the items that may be allocated later.
    pub reserved: u64,
    /// Sum of all items.
    pub total: u64,
    /// Free memory of the device's machine, including page cache that the system can drop.
    pub free: u64,
    /// Installed memory, or the limit of a container; 0 if the system does not say, and then
    /// nothing is refused.
    pub installed: u64,
    /// True if `total` is at most `free`.
    pub fits: bool,
    /// Budget for keys, values and cached prefixes of all sequences if the model is loaded now. It
    /// follows the machine while the model runs. Absent: there is no governor.
    pub budget: Option<PlannedBudget>,
    /// Context length, in tokens.
    pub n_ctx: usize,
    /// The trained context length, if the context was reduced to fit; absent otherwise.
    pub n_ctx_reduced_from: Option<usize>,
    /// Storage type of keys and values.
    pub kv_type: &'static str,
    /// Prefill chunk, in tokens.
    pub chunk: usize,
    /// Number of sequences that run at once.
    pub n_sequences: usize,
    /// Settings that would fit, the smallest change first, if these do not. Empty if not even one
    /// page of context fits.
    pub alternatives: Vec<Alternative>,
}

/// Itemise the memory that [`crate::Engine::new`] would need, without allocating it.
///
/// # Errors
/// An option outside its limits, a model for speech, or a plan that the device cannot run.
pub fn plan_memory(model: &Model, device: &dyn Device, options: &LoadOptions) -> Result<MemoryReport> {
    model.need_text()?;
    Ok(settle(model, device, options)?.memory)
}

/// Options with a context length, their fused plans, and the memory that they need.
pub(crate) struct Settled {
    pub(crate) options: LoadOptions,
    /// The fused plans, in the program's order. First is the model's own plan, then the plan with
    /// adapters, if there are any. The plan of given rows follows if the model reads images and the
    /// device can run its tower. The last is the plan of the next-token layer, if the model has it
    /// ([`Model::predicting`]).
    pub(crate) plans: Vec<Plan>,
    pub(crate) memory: MemoryReport,
    /// Reason for which images are refused although the model sees.
    pub(crate) blind: Option<String>,
}

/// Choose the context length, if the options have none: the trained length, or the longest that
/// fits if that does not and memory is checked.
///
/// # Errors
/// As [`plan_memory`].
pub(crate) fn settle(model: &Model, device: &dyn Device, options: &LoadOptions) -> Result<Settled> {
    let at = |n_ctx: usize| -> Result<Settled> {
        let options = LoadOptions { n_ctx: Some(n_ctx), ..options.clone() };
        let limits = load::limits(model, device, &options)?;
        check_budget(&model.plan().kv, &limits, &options)?;
        let (plans, blind) = fused_plans(model, model.adapters().as_slice(), device, &limits)?;
        let memory = report(model, &plans, device, &options)?;
        Ok(Settled { options, plans, memory, blind })
    };
    if let Some(n_ctx) = options.n_ctx {
        return at(n_ctx);
    }
    let wanted = model.default_context();
    let mut settled = at(context_within_budget(model, device, options, wanted)?)?;
    if !settled.memory.fits
        && options.check_memory
        && let Some(fitting) =
            largest_context(model, &settled.plans, device, &settled.options, &settled.memory)
    {
        settled = at(fitting.n_ctx)?;
    }
    settled.memory.n_ctx_reduced_from = (settled.memory.n_ctx < wanted).then_some(wanted);
    Ok(settled)
}

/// The fused plans of a program with these adapters, in the order of [`Settled::plans`], and the
/// reason for which images are refused although the model sees.
///
/// # Errors
/// An adapter does not fit the model.
pub(crate) fn fused_plans(
    model: &Model,
    adapters: &[Adapter],
    device: &dyn Device,
    limits: &Limits,
) -> Result<(Vec<Plan>, Option<String>)> {
    let plans = model.plans_for_context(limits.n_ctx, adapters)?;
    let mut plans: Vec<Plan> =
        plans.iter().map(|plan| device_lower::fusion::fuse(plan, device.fusion())).collect();
    let blind = match model.vision() {
        Some(_) => add_given(&mut plans, model, device, limits)?,
        None => None,
    };
    if let Some(next) = model.next_plan(limits.n_ctx)? {
        plans.push(device_lower::fusion::fuse(&next, device.fusion()));
    }
    Ok((plans, blind))
}

/// Bytes that a program of these plans allocates or maps at load, without KV pages.
///
/// # Errors
/// The device cannot run a plan.
pub(crate) fn fixed_bytes(
    model: &Model,
    plans: &[Plan],
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<u64> {
    let (items, _) = items(model, plans, device, options)?;
    Ok(items.iter().filter(|item| item.residence != "reserved").map(|item| item.bytes).sum())
}

/// Bytes that may still be allocated now; `None`: the system does not say.
pub(crate) fn free_bytes(device: &dyn Device, options: &LoadOptions) -> Option<u64> {
    let memory = device.memory();
    let of_machine = (memory.total > 0).then_some(memory.free);
    [of_machine, cap_left(device, options)].into_iter().flatten().min()
}

/// Bytes that the governor's cap leaves; `None`: there is no cap.
fn cap_left(device: &dyn Device, options: &LoadOptions) -> Option<u64> {
    let governor = options.governor.as_ref()?;
    governor.cap_bytes().map(|cap| cap.saturating_sub(governor.taken(device)))
}

/// Append the plan of given rows if the device can run it and the tower. Otherwise return the
/// reason.
///
/// # Errors
/// The plan does not match the model's own.
fn add_given(
    plans: &mut Vec<Plan>,
    model: &Model,
    device: &dyn Device,
    limits: &Limits,
) -> Result<Option<String>> {
    let (tower, given, _) = model.vision_parts(limits.n_ctx)?;
    plans.push(device_lower::fusion::fuse(&given, device.fusion()));
    let both = crate::vision::check_tower(&tower, device).and_then(|()| device.memory_plan(plans, limits));
    match both {
        Ok(_) => Ok(None),
        Err(error @ device::Error::Unsupported { .. }) => {
            plans.pop();
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The longest context, at most `wanted`, of which one sequence fits in the budget of KV pages.
/// Returns `wanted` if not even one page fits, so that the check of the budget reports it.
fn context_within_budget(
    model: &Model,
    device: &dyn Device,
    options: &LoadOptions,
    wanted: usize,
) -> Result<usize> {
    let Some(budget) = options.kv_budget else { return Ok(wanted) };
    let fits = |n_ctx: usize| -> Result<bool> {
        let limits = load::limits(model, device, &LoadOptions { n_ctx: Some(n_ctx), ..options.clone() })?;
        Ok(bytes_of_sequence(&model.plan().kv, &limits, n_ctx) <= budget)
    };
    let step = options.page_len.unwrap_or(device.page_len());
    if fits(wanted)? || !fits(step.min(wanted))? {
        return Ok(wanted);
    }
    Ok(step * most_that_fit(wanted.div_ceil(step), |pages| fits(pages * step))?)
}

/// The largest number from 1 to `most` that `fits`. `fits` must hold for everything below a number
/// that it holds for, and for 1.
fn most_that_fit(most: usize, fits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle)? { low = middle } else { high = middle - 1 }
    }
    Ok(low)
}

/// Check that the budget of KV pages, if there is one, holds one sequence of the context's length.
/// Returns the bytes of that sequence.
pub(crate) fn check_budget(kv: &KvLayout, limits: &Limits, options: &LoadOptions) -> Result<u64> {
    let least = bytes_of_sequence(kv, limits, limits.n_ctx);
    match options.kv_budget {
        Some(bytes) if bytes < least => Err(Error::Option {
            name: "KV budget",
            value: format!("{bytes} bytes"),
            expected: format!("at least {least}, what one sequence of {} tokens needs", limits.n_ctx),
        }),
        Some(_) | None => Ok(least),
    }
}

/// Like [`plan_memory`], for plans that are fused already.
pub(crate) fn report(
    model: &Model,
    plans: &[Plan],
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<MemoryReport> {
    let memory = device.memory();
    // Weights that were read instead of mapped are in memory already, so `free` excludes them.
    let views = plans.iter().flat_map(|plan| &plan.weights).flat_map(|w| w.views());
    // Plans share their weights.
    let mut seen = std::collections::HashSet::new();
    let views = views.filter(|view| seen.insert((view.as_ptr(), view.len())));
    let taken: u64 = views.filter(|view| !view.is_mapped()).map(|view| view.len() as u64).sum();
    let mut free = memory.free.saturating_add(taken);
    let cap = cap_left(device, options);
    free = free.min(cap.unwrap_or(u64::MAX));
    let (items, notes) = items(model, plans, device, options)?;
    let sum = |kind| items.iter().filter(|i: &&MemoryItem| i.residence == kind).map(|i| i.bytes).sum::<u64>();
    let (mapped, committed, reserved) = (sum("mapped"), sum("committed"), sum("reserved"));
    let total = mapped + committed + reserved;
    let limits = load::limits(model, device, options)?;
    let mut report = MemoryReport {
        items,
        notes,
        mapped,
        committed,
        reserved,
        total,
        free,
        installed: memory.total,
        fits: total <= free || memory.total == 0 && cap.is_none(),
        budget: options
            .governor
            .as_ref()
            .map(|governor| planned_budget(&governor.status_of(device), cap, memory, mapped + committed)),
        n_ctx: limits.n_ctx,
        n_ctx_reduced_from: None,
        kv_type: kv_type_name(limits.kv_type),
        chunk: limits.max_rows,
        n_sequences: limits.max_spans,
        alternatives: Vec::new(),
    };
    if !report.fits {
        report.alternatives = alternatives(model, plans, device, options, &report);
    }
    Ok(report)
}

/// The budget that remains beside `fixed` bytes of weights and activations.
fn planned_budget(
    status: &MemoryStatus,
    cap: Option<u64>,
    memory: SystemMemory,
    fixed: u64,
) -> PlannedBudget {
    let reserve = reserve(memory.total);
    let of_machine = memory.free.saturating_sub(fixed).saturating_sub(reserve);
    let of_cap = cap.map_or(u64::MAX, |cap| cap.saturating_sub(fixed));
    let is_known = memory.total > 0;
    let (bytes, reason) = match () {
        () if of_cap < of_machine || !is_known && cap.is_some() => (of_cap, "cap"),
        () if !is_known => (u64::MAX, Reason::Unknown.name()),
        () => (of_machine, Reason::of(status.reading.bound).name()),
    };
    PlannedBudget { bytes, reserve, reason }
}

fn items(
    model: &Model,
    plans: &[Plan],
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Vec<MemoryItem>, Vec<String>)> {
    let plan = model.plan();
    let limits = load::limits(model, device, options)?;
    // A model loads if one sequence fits: the others use what is free while they run, or wait.
    let one = pool_sizes(&plan.kv, limits.n_ctx, limits.max_rows, 1, limits.page_len);
    let planned = device.memory_plan(plans, &Limits { n_pages: one, ..limits.clone() })?;
    let mut items: Vec<MemoryItem> = planned
        .items
        .into_iter()
        .map(|i| MemoryItem { what: i.what, bytes: i.bytes, residence: residence_name(i.residence) })
        .collect();
    let n_pages: usize = limits.n_pages.iter().sum();
    let n_tables = limits.max_spans * plan.kv.groups.len() * limits.n_ctx.div_ceil(limits.page_len);
    // Tokens of sequences, of drafts, and of the rows of a step.
    let tokens = limits.max_spans * limits.n_ctx + limits.max_outputs + 2 * limits.max_rows;
    let books = 4 * (2 * n_pages + n_tables + tokens) as u64;
    items.push(MemoryItem { what: "tokens and page tables".into(), bytes: books, residence: "committed" });
    items.push(MemoryItem {
        what: "program and libraries (about)".into(),
        bytes: PROGRAM_BYTES,
        residence: "committed",
    });
    // The tokenizer may not exist yet; the embedding table has a row for each of its tokens.
    let n_tokens = plan.primitives().find_map(|op| {
        if let Op::Embed { table, .. } = op { Some(plan.weight(*table).n_rows()) } else { None }
    });
    if let Some(n_tokens) = n_tokens.filter(|_| model.expects_tokenizer()) {
        items.push(MemoryItem {
            what: "vocabulary (about)".into(),
            bytes: TOKEN_BYTES * n_tokens as u64,
            residence: "committed",
        });
    }
    Ok((items, planned.notes))
}

/// Settings that would fit: a shorter context; or keys and values in fewer bits; or one sequence
/// and a small chunk as well.
fn alternatives(
    model: &Model,
    plans: &[Plan],
    device: &dyn Device,
    options: &LoadOptions,
    report: &MemoryReport,
) -> Vec<Alternative> {
    let mut found: Vec<Alternative> = Vec::new();
    let bits = |k: KvType| k.vector_bytes(32);
    let asked = options.kv_type.or(device.kv_types().first().copied());
    let mut smaller: Vec<KvType> =
        device.kv_types().iter().copied().filter(|k| asked.is_some_and(|a| bits(*k) < bits(a))).collect();
    smaller.sort_by_key(|k| std::cmp::Reverse(bits(*k)));
    let kv_types = std::iter::once(asked).chain(smaller.into_iter().map(Some));
    let tries = kv_types.flat_map(|kv_type| {
        let same = LoadOptions { kv_type, ..options.clone() };
        let small = LoadOptions { chunk: Some(64), n_sequences: 1, n_outputs: None, ..same.clone() };
        [same, small]
    });
    for options in tries {
        if let Some(alternative) = largest_context(model, plans, device, &options, report)
            // An alternative is worth a line only if it allows a longer context.
            && found.iter().all(|f| f.n_ctx < alternative.n_ctx)
        {
            found.push(alternative);
        }
    }
    found
}

/// The longest context that fits with the other options.
fn largest_context(
    model: &Model,
    plans: &[Plan],
    device: &dyn Device,
    options: &LoadOptions,
    report: &MemoryReport,
) -> Option<Alternative> {
    let total = |options: &LoadOptions| -> Option<u64> {
        Some(items(model, plans, device, options).ok()?.0.iter().map(|i| i.bytes).sum())
    };
    let step = options.page_len.unwrap_or(device.page_len());
    let at = |pages: usize| LoadOptions { n_ctx: Some(pages * step), ..options.clone() };
    let fits = |pages: usize| total(&at(pages)).is_some_and(|t| t <= report.free);
    if !fits(1) {
        return None;
    }
    // The plan's size grows with the context.
    let fitted = at(most_that_fit(report.n_ctx.div_ceil(step), |pages| Ok(fits(pages))).ok()?);
    let limits = load::limits(model, device, &fitted).ok()?;
    Some(Alternative {
        n_ctx: limits.n_ctx.min(report.n_ctx),
        kv_type: kv_type_name(limits.kv_type),
        chunk: limits.max_rows,
        n_sequences: limits.max_spans,
        bytes: total(&fitted)?,
    })
}

fn residence_name(residence: Residence) -> &'static str {
    match residence {
        Residence::Mapped => "mapped",
        Residence::Committed => "committed",
        Residence::Reserved => "reserved",
    }
}

/// Name of a KV type as users write it: `f16`.
pub fn kv_type_name(kv_type: KvType) -> &'static str {
    match kv_type {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::I16 => "i16",
        KvType::I8 => "i8",
        KvType::Q8_0 => "q8_0",
        KvType::Fp8 => "fp8",
    }
}

/// A size in MiB with one decimal; from 10 GiB on in GiB with two.
fn size(bytes: u64) -> String {
    const MIB: f64 = (1u64 << 20) as f64;
    let mib = bytes as f64 / MIB;
    if mib < 10_240.0 { format!("{mib:.1} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "context {}", self.n_ctx)?;
        if let Some(wanted) = self.n_ctx_reduced_from {
            write!(f, " (reduced: {wanted}, what the model was trained for, does not fit)")?;
        }
        writeln!(f, ", KV {}, chunk {}, sequences {}", self.kv_type, self.chunk, self.n_sequences)?;
        for item in &self.items {
            writeln!(f, "  {:<44} {:>12}  {}", item.what, size(item.bytes), item.residence)?;
        }
        writeln!(f, "  {:<44} {:>12}", "in all", size(self.total))?;
        write!(f, "  {:<44} {:>12}", "free now", size(self.free))?;
        self.notes.iter().try_for_each(|note| write!(f, "\n  {note}"))?;
        if let Some(budget) = self.budget.as_ref().filter(|budget| budget.bytes < u64::MAX) {
            let (what, reason) = ("keys, values and prefixes, of all", budget.reason);
            write!(
                f,
                "\n  {what:<44} {:>12}  by {reason}; reserve {}",
                size(budget.bytes),
                size(budget.reserve)
            )?;
        }
        if self.fits {
            return Ok(());
        }
        if self.alternatives.is_empty() {
            return write!(
                f,
                "\nno setting makes it fit: free {} or take a smaller file",
                size(self.total - self.free)
            );
        }
        write!(f, "\nwhat would fit:")?;
        for a in &self.alternatives {
            write!(
                f,
                "\n  context {}, KV {}, chunk {}, sequences {}: {}",
                a.n_ctx,
                a.kv_type,
                a.chunk,
                a.n_sequences,
                size(a.bytes)
            )?;
        }
        Ok(())
    }
}
