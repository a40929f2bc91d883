//! Options of loading.

use std::path::PathBuf;

use device::{KvType, Numerics};
use engine::{MemoryCap, Speculate};
use formats::Verify;
use weights::Access;

use crate::device::DeviceOptions;
use crate::fetch::HubOptions;
use crate::source::{AdapterSource, ModelSource};

/// Options of loading a model: fetching, opening, the device, and the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The device.
    pub device: DeviceOptions,
    /// Fetching of models that are not on this machine.
    pub hub: HubOptions,
    /// Access to weight files: mapped (the default), or read into memory.
    pub access: Access,
    /// Signature and checksums to verify before the file is used; only for `.base` files.
    pub verify: Verify,
    /// Image encoder of a GGUF model; `None`: the file in the model's folder whose name begins with
    /// mmproj, if it fits the model.
    pub mmproj: Option<PathBuf>,
    /// Adapters that requests choose by name.
    pub adapters: Vec<AdapterSource>,
    /// Number of last layers that the GPU runs, with the output head; the CPU runs the rest.
    /// `None`: all, or those that fit in the GPU's memory.
    pub gpu_layers: Option<usize>,
    /// Number of first layers whose experts stay on the CPU. `None`: 0, or the least number with
    /// which the rest fits in the GPU's memory.
    pub cpu_moe_layers: Option<usize>,
    /// Context length in tokens, prompt and answer together; `None`: the model's own, or the
    /// longest of which one sequence fits in memory.
    pub n_ctx: Option<usize>,
    /// Type of cached keys and values; `None`: the device's default.
    pub kv_type: Option<KvType>,
    /// Maximum number of bytes of keys and values, of all sequences and cached prompts together;
    /// `None`: the memory that is free.
    pub kv_budget: Option<u64>,
    /// Maximum number of prompt tokens of a step; `None`: the device's choice.
    pub chunk: Option<usize>,
    /// Number of sequences that run at once; further ones wait. `None`: 8 for a
    /// [`Model`](crate::Model), and 1 for an engine of [`direct`](crate::direct).
    pub n_sequences: Option<usize>,
    /// True to fix the order of all sums: neither batches nor chunks then change an answer.
    pub deterministic: bool,
    /// Limit on the memory of this process, all models together.
    pub memory: MemoryCap,
    /// Policy for verifying draft tokens.
    pub speculate: Speculate,
    /// Maximum number of draft tokens of a sequence in a step.
    pub max_draft: usize,
    /// Smaller model with the same vocabulary that drafts tokens.
    pub draft_model: Option<ModelSource>,
    /// True to draft with the model's own layer for multi-token prediction.
    pub mtp: bool,
}

impl Default for LoadOptions {
    /// The device is chosen, and draft tokens are off.
    fn default() -> LoadOptions {
        LoadOptions {
            device: DeviceOptions::default(),
            hub: HubOptions::default(),
            access: Access::Map,
            verify: Verify::default(),
            mmproj: None,
            adapters: Vec::new(),
            gpu_layers: None,
            cpu_moe_layers: None,
            n_ctx: None,
            kv_type: None,
            kv_budget: None,
            chunk: None,
            n_sequences: None,
            deterministic: false,
            memory: MemoryCap::Max,
            speculate: Speculate::Off,
            max_draft: engine::DEFAULT_DRAFT,
            draft_model: None,
            mtp: false,
        }
    }
}

impl LoadOptions {
    /// The arithmetic of the device.
    pub fn numerics(&self) -> Numerics {
        if self.deterministic { Numerics::Deterministic } else { Numerics::Fast }
    }

    /// The engine's part of the options. It has no governor of memory, which
    /// [`direct::engine`](crate::direct::engine) starts.
    pub fn engine_options(&self) -> engine::LoadOptions {
        engine::LoadOptions {
            n_ctx: self.n_ctx,
            kv_type: self.kv_type,
            kv_budget: self.kv_budget,
            chunk: self.chunk,
            n_sequences: self.n_sequences.unwrap_or(1),
            numerics: self.numerics(),
            speculate: self.speculate,
            max_draft: self.max_draft,
            ..engine::LoadOptions::default()
        }
    }

    /// The options for opening the draft model: image encoder and adapters belong to the model.
    pub fn for_draft_model(&self) -> LoadOptions {
        LoadOptions { mmproj: None, adapters: Vec::new(), mtp: false, draft_model: None, ..self.clone() }
    }
}
