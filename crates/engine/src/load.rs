//! From a path to a model: open → spec → plan → check, and the sizes that a program is compiled
//! for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use device::{Device, KvType, Limits, Numerics, Plan};
use model::{Adapter, EmbeddingSpec, GivenRows, ModelSpec, SpeechPlans, SpeechSpec, VisionPlans, VisionSpec};
use text::Tokenizer;
use weights::{Checkpoint, Metadata, Naming};

use crate::adapters::Adapters;
use crate::governor::Governor;
use crate::kv::pool_sizes;
use crate::sampling::SamplingChoice;
use crate::speculate::{MAX_DRAFT, Speculate, most_rows};
use crate::{Error, Result, Turns, WeightFiles};

/// Longest context that can be requested. A longer one would be a typing mistake.
pub const MAX_N_CTX: usize = 1 << 24;

/// Longest time between two tokens while prompts are computed, if no option says otherwise.
pub const DEFAULT_TOKEN_LATENCY: Duration = Duration::from_millis(200);

/// States of recurrent layers for each sequence: its own, those that steps in flight write, and
/// snapshots of prompts.
const STATES_OF_SEQUENCE: usize = 8;

/// Maximum number of draft tokens of a sequence in a step, unless an option says otherwise. With
/// the token before them they are eight rows, for which devices have kernels; a ninth row would
/// need slower ones.
pub const DEFAULT_DRAFT: usize = 7;

/// Source of the tokenizer.
#[derive(Clone, Debug, Default)]
pub enum TokenizerSource {
    /// The vocabulary in the file, or the tokenizer.json in the folder. No tokenizer if there is
    /// none.
    #[default]
    Own,
    /// The tokenizer.json (and its companions) of this folder.
    Folder(PathBuf),
    /// Only token ids will be used.
    None,
}

/// Options for loading a model. Options of a single sequence are in [`crate::Request`].
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Maximum number of tokens of a sequence, prompt and answer together; `None`: the trained
    /// length, or less if one sequence of that length does not fit in free memory.
    pub n_ctx: Option<usize>,
    /// Storage type of keys and values; `None`: the device's default.
    pub kv_type: Option<KvType>,
    /// Maximum number of prompt tokens of a step; `None`: the device's choice
    /// ([`Device::prompt_chunk`]).
    pub chunk: Option<usize>,
    /// Number of sequences that run at once; further ones wait.
    pub n_sequences: usize,
    /// Maximum number of sequences that wait; further ones are refused with [`Error::QueueFull`].
    /// `None`: any number.
    pub max_waiting: Option<usize>,
    /// Longest time between two tokens of an answer while prompts are computed beside it, unless
    /// its request says otherwise. It limits the prompt rows of a step, once the times of steps are
    /// known. `None`: see `latency_steps`.
    pub token_latency: Option<Duration>,
    /// Limit that applies if `token_latency` is `None`: this multiple of the measured time of a
    /// step of answers alone, while one prompt is computed. Each further prompt adds as much time.
    /// `None`: chunks are always whole. With it, a device that supports background steps computes a
    /// prompt between the steps of the answers if hardly a row of it fits beside them. That takes
    /// memory at load ([`Device::background_rows`]).
    pub latency_steps: Option<f64>,
    /// Lower bound of the limit by `latency_steps`: shorter delays are not noticed.
    pub least_latency: Duration,
    /// Maximum number of rows of a step whose logits can be read; `None`: one for each sequence,
    /// which generating needs. Scoring (`logits`, `perplexity`) computes this many positions
    /// together, at `4 * n_vocab` bytes each.
    pub n_outputs: Option<usize>,
    /// Positions of a KV page, a power of two, at least 16; `None`: the device's choice.
    pub page_len: Option<usize>,
    /// Maximum number of bytes of keys and values, of running sequences and cached prefixes
    /// together; `None`: the memory that is free at load beside weights and activations.
    pub kv_budget: Option<u64>,
    /// Governor that sets the budget of this model's pages while it runs; `None`: only `kv_budget`
    /// limits them.
    pub governor: Option<Arc<Governor>>,
    /// Arithmetic: fast or deterministic.
    pub numerics: Numerics,
    /// Refuse to load a model that does not fit in free memory.
    pub check_memory: bool,
    /// Policy for verifying draft tokens together with the next token.
    pub speculate: Speculate,
    /// Maximum number of draft tokens of a sequence in a step. Each needs a row of logits, `4 *
    /// n_vocab` bytes, for each sequence.
    pub max_draft: usize,
    /// Turns shared with other engines on the same processors, so that one of them runs a step at a
    /// time.
    pub turns: Option<Arc<Turns>>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            n_ctx: None,
            kv_type: None,
            chunk: None,
            n_sequences: 1,
            max_waiting: None,
            token_latency: Some(DEFAULT_TOKEN_LATENCY),
            latency_steps: None,
            least_latency: Duration::ZERO,
            n_outputs: None,
            page_len: None,
            kv_budget: None,
            governor: None,
            numerics: Numerics::Fast,
            check_memory: true,
            speculate: Speculate::Off,
            max_draft: DEFAULT_DRAFT,
            turns: None,
        }
    }
}

/// An opened model: its description, its plan over views of the file, and its tokenizer. It holds
/// no device memory.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    spec: ModelSpec,
    plan: Plan,
    /// Adapters that the model was loaded with.
    adapters: Adapters,
    /// The checkpoint. Its metadata is kept only if other plans may be built from it: for another
    /// context length, embeddings or speech.
    checkpoint: Checkpoint,
    has_other_plans: bool,
    weight_files: WeightFiles,
    tokenizer: LazyTokenizer,
    format: String,
    file_bytes: u64,
}

/// A tokenizer that is built at first use. That takes about as long as everything else of a small
/// model, so another thread can prepare the weights meanwhile.
#[derive(Debug)]
struct LazyTokenizer {
    source: TokenizerSource,
    /// Naming and metadata of the checkpoint, for the source. The metadata is dropped when the
    /// tokenizer is built.
    naming: Naming,
    metadata: Mutex<Metadata>,
    made: OnceLock<MadeTokenizer>,
}

/// A tokenizer, or `None` if there is none, or the error of building it.
type MadeTokenizer = std::result::Result<Option<Arc<Tokenizer>>, Arc<text::Error>>;

impl LazyTokenizer {
    fn get(&self, path: &Path) -> Result<Option<&Arc<Tokenizer>>> {
        let made = self.made.get_or_init(|| Ok(self.make(path)?.map(Arc::new)));
        match (made, &self.source) {
            (Ok(None), TokenizerSource::Folder(folder)) => Err(Error::NoTokenizer { file: folder.clone() }),
            (Ok(tokenizer), _) => Ok(tokenizer.as_ref()),
            (Err(error), _) => Err(Error::Text(error.clone())),
        }
    }

    /// Returns true if there is a tokenizer, as far as is known without building it.
    fn is_expected(&self) -> bool {
        match self.made.get() {
            Some(made) => matches!(made, Ok(Some(_))),
            None => !matches!(self.source, TokenizerSource::None),
        }
    }

    fn make(&self, path: &Path) -> text::Result<Option<Tokenizer>> {
        match &self.source {
            TokenizerSource::Own => {
                let metadata =
                    std::mem::take(&mut *self.metadata.lock().unwrap_or_else(PoisonError::into_inner));
                Tokenizer::of_checkpoint(path, self.naming, &metadata)
            }
            TokenizerSource::Folder(folder) => Tokenizer::from_folder(folder),
            TokenizerSource::None => Ok(None),
        }
    }
}

impl Model {
    /// Read an opened checkpoint, plan the forward pass and check the plan. `path` is for messages.
    /// The tokenizer is built at first use, at the latest by [`crate::Engine::new`].
    ///
    /// # Errors
    /// The checkpoint describes an unknown model, or lacks tensors.
    pub fn from_opened(path: &Path, checkpoint: Checkpoint, tokenizer: &TokenizerSource) -> Result<Model> {
        Model::with_tokenizer(path, checkpoint, tokenizer.clone(), OnceLock::new(), Adapters::default())
    }

    /// Like [`Self::from_opened`], with adapters that requests choose by name.
    ///
    /// # Errors
    /// As [`Self::from_opened`]; an adapter does not fit the model, or two have one name.
    pub fn from_opened_adapted(
        path: &Path,
        checkpoint: Checkpoint,
        tokenizer: &TokenizerSource,
        adapters: Vec<Adapter>,
    ) -> Result<Model> {
        let adapters = Adapters::new(adapters)?;
        Model::with_tokenizer(path, checkpoint, tokenizer.clone(), OnceLock::new(), adapters)
    }

    /// Like [`Self::from_opened`], with a tokenizer that exists already; `path` is for messages.
    ///
    /// # Errors
    /// As [`Self::from_opened`].
    pub fn from_checkpoint(
        path: &Path,
        checkpoint: Checkpoint,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Model> {
        let made = OnceLock::from(Ok(tokenizer.map(Arc::new)));
        Model::with_tokenizer(path, checkpoint, TokenizerSource::Own, made, Adapters::default())
    }

    fn with_tokenizer(
        path: &Path,
        checkpoint: Checkpoint,
        source: TokenizerSource,
        made: OnceLock<MadeTokenizer>,
        adapters: Adapters,
    ) -> Result<Model> {
        let renamed = model::from_base(&checkpoint)?;
        let named = renamed.as_ref().unwrap_or(&checkpoint);
        let spec = ModelSpec::from_checkpoint(named)?;
        let plan = spec.plan(named)?;
        plan.check().map_err(device::Error::from)?;
        if !adapters.as_slice().is_empty() {
            // Check that the adapters fit before anything is prepared.
            spec.adapted_plan(named, spec.n_ctx_train, adapters.as_slice())?;
        }
        let hears = spec.encoder.is_some();
        let sees = spec.vision.is_some();
        let embeds = !matches!(EmbeddingSpec::from_checkpoint(named, &spec), Ok(None));
        let has_other_plans = embeds || hears || sees || spec.depends_on_context();
        Ok(Model {
            path: path.to_owned(),
            checkpoint: Checkpoint {
                naming: named.naming,
                metadata: if has_other_plans { named.metadata.clone() } else { Metadata::default() },
                tensors: named.tensors.clone(),
                left_out: named.left_out.clone(),
                format: named.format.clone(),
                file_bytes: named.file_bytes,
            },
            weight_files: WeightFiles::of(named),
            has_other_plans,
            spec,
            plan,
            adapters,
            format: named.format.clone(),
            file_bytes: named.file_bytes,
            tokenizer: LazyTokenizer {
                source,
                naming: checkpoint.naming,
                metadata: Mutex::new(checkpoint.metadata),
                made,
            },
        })
    }

    /// Add the layer that predicts one token more, for an engine that drafts with it
    /// ([`Speculate`]).
    ///
    /// # Errors
    /// [`Error::NoNextLayer`]: the checkpoint has no such layer, or not all of its tensors.
    pub fn predicting(mut self) -> Result<Model> {
        let none = || Error::NoNextLayer { file: self.path.clone() };
        self.spec = self.spec.predicting().ok_or_else(none)?;
        self.plan = self.spec.plan(&self.checkpoint)?;
        self.plan.check().map_err(device::Error::from)?;
        // Check that the layer is complete before anything is prepared.
        self.next_plan(self.spec.n_ctx_train)?;
        Ok(self)
    }

    /// The plan, not fused, of the layer that predicts one token more, for contexts up to `n_ctx`;
    /// `None` if the model is used without it.
    pub(crate) fn next_plan(&self, n_ctx: usize) -> Result<Option<Plan>> {
        let plan = || self.spec.next_plan(&self.checkpoint, n_ctx);
        Ok(if self.spec.n_next > 0 { Some(plan()?) } else { None })
    }

    /// File or folder of the model.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Descriptor and numbers of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Sampling parameters that the model's makers recommend.
    pub fn sampling(&self) -> SamplingChoice {
        SamplingChoice::for_model(&self.spec.sampling)
    }

    /// The forward pass for contexts up to the trained length, not fused.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The checkpoint, if plans other than the model's own may be built from it.
    fn of_other_plans(&self) -> Option<&Checkpoint> {
        self.has_other_plans.then_some(&self.checkpoint)
    }

    /// The forward pass for contexts up to `n_ctx`, not fused.
    ///
    /// # Errors
    /// As [`Self::from_opened`].
    pub fn plan_for_context(&self, n_ctx: usize) -> Result<Plan> {
        if !self.spec.depends_on_context() {
            return Ok(self.plan.clone());
        }
        let plan = self.spec.plan_for_context(&self.checkpoint, n_ctx)?;
        plan.check().map_err(device::Error::from)?;
        Ok(plan)
    }

    /// The plans of the image tower, the plan of given rows for contexts up to `n_ctx`, and the
    /// layout of these rows. None is fused.
    ///
    /// # Errors
    /// The model sees no images; or as [`Self::from_opened`].
    pub(crate) fn vision_parts(&self, n_ctx: usize) -> Result<(VisionPlans, Plan, GivenRows)> {
        let none = || Error::NoVision { file: self.path.clone() };
        let checkpoint = self.of_other_plans().ok_or_else(none)?;
        let plan = self.spec.given_plan(checkpoint, n_ctx)?;
        Ok((self.spec.vision_plans(checkpoint)?, plan, self.spec.given_rows(checkpoint, n_ctx)?))
    }

    /// [`Self::plan_for_context`], followed by the plan with adapters if there are any.
    ///
    /// # Errors
    /// As [`Self::from_opened`].
    pub(crate) fn plans_for_context(&self, n_ctx: usize, adapters: &[Adapter]) -> Result<Vec<Plan>> {
        let mut plans = vec![self.plan_for_context(n_ctx)?];
        if !adapters.is_empty() {
            plans.push(self.spec.adapted_plan(&self.checkpoint, n_ctx, adapters)?);
        }
        Ok(plans)
    }

    /// Adapters that the model was loaded with.
    pub(crate) fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Pooling and normalisation by which the model's states become an embedding, from its files.
    ///
    /// # Errors
    /// The model is not made for embeddings, or uses a pooling that is not supported.
    pub fn embedding(&self) -> Result<EmbeddingSpec> {
        let none = || Error::NoEmbeddings { file: self.path.clone() };
        let checkpoint = self.of_other_plans().ok_or_else(none)?;
        EmbeddingSpec::from_checkpoint(checkpoint, &self.spec)?.ok_or_else(none)
    }

    /// The forward pass, not fused, that ends in one vector for each text of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// As [`Self::embedding`] and [`Self::from_opened`].
    pub fn embedding_plan(&self, embedding: &EmbeddingSpec, n_ctx: usize) -> Result<Plan> {
        let none = || Error::NoEmbeddings { file: self.path.clone() };
        let checkpoint = self.of_other_plans().ok_or_else(none)?;
        let plan = self.spec.embedding_plan(checkpoint, embedding, n_ctx)?;
        plan.check().map_err(device::Error::from)?;
        Ok(plan)
    }

    /// Check that the model can continue text.
    ///
    /// # Errors
    /// [`Error::OnlySpeech`]: it writes text only for speech.
    pub(crate) fn need_text(&self) -> Result<()> {
        match self.spec.encoder {
            Some(_) => Err(Error::OnlySpeech { file: self.path.clone() }),
            None => Ok(()),
        }
    }

    /// Description of a speech model, from its files.
    ///
    /// # Errors
    /// The model is not made for speech, or its special tokens are missing.
    pub fn speech(&self) -> Result<SpeechSpec> {
        let none = || Error::NotForSpeech { file: self.path.clone() };
        let checkpoint = self.of_other_plans().ok_or_else(none)?;
        SpeechSpec::from_checkpoint(checkpoint, &self.spec)?.ok_or_else(none)
    }

    /// Encoder, decoder and alignment, not fused.
    ///
    /// # Errors
    /// As [`Self::speech`] and [`Self::from_opened`].
    pub fn speech_plans(&self, speech: &SpeechSpec) -> Result<SpeechPlans> {
        let none = || Error::NotForSpeech { file: self.path.clone() };
        let checkpoint = self.of_other_plans().ok_or_else(none)?;
        let plans = self.spec.speech_plans(checkpoint, &speech.alignment_heads)?;
        for plan in [&plans.encoder, &plans.decoder, &plans.align] {
            plan.check().map_err(device::Error::from)?;
        }
        Ok(plans)
    }

    /// Storage type of keys and values on a device: `asked`, or the device's default.
    ///
    /// # Errors
    /// [`Error::Option`]: the device has no kernels for the type, or the model's heads are no
    /// multiple of its block.
    pub fn kv_type(&self, device: &dyn Device, asked: Option<KvType>) -> Result<KvType> {
        let wrong = |value: String, expected: String| Err(Error::Option { name: "KV type", value, expected });
        let supported = device.kv_types();
        let kv_type = asked.or(supported.first().copied()).unwrap_or(KvType::F32);
        let name = crate::memory::kv_type_name;
        if !supported.contains(&kv_type) {
            let names: Vec<_> = supported.iter().map(|k| name(*k)).collect();
            return wrong(name(kv_type).into(), format!("one of {} on {}", names.join(", "), device.name()));
        }
        if kv_type == KvType::Q8_0
            && let Some(layer) = self.plan.kv.layers.iter().find(|l| l.head_dim % 32 != 0)
        {
            return wrong(
                format!("q8_0 with heads of {} columns", layer.head_dim),
                "f16 or f32, or heads of a multiple of 32 columns".into(),
            );
        }
        Ok(kv_type)
    }

    /// Context length in tokens if no option sets it and memory does not limit it.
    pub(crate) fn default_context(&self) -> usize {
        self.spec.default_context().clamp(2, MAX_N_CTX)
    }

    /// The mapped files that hold the model's weights.
    pub fn weight_files(&self) -> &WeightFiles {
        &self.weight_files
    }

    /// A short description of the file: `GGUF v3`.
    pub fn format(&self) -> &str {
        &self.format
    }

    /// Size of the file, or of all files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Number of tokens of the model's head. For a model without a head, columns of its hidden
    /// states.
    pub fn n_vocab(&self) -> usize {
        self.plan.value(self.plan.output).cols
    }

    /// The tokenizer, if there is one; the first call builds it.
    ///
    /// # Errors
    /// The vocabulary is broken, or the tokenizer's folder has none.
    pub fn tokenizer(&self) -> Result<Option<&Arc<Tokenizer>>> {
        self.tokenizer.get(&self.path)
    }

    /// Returns true if a tokenizer is in memory, or will probably be.
    pub(crate) fn expects_tokenizer(&self) -> bool {
        self.tokenizer.is_expected()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`Self::tokenizer`], or there is none.
    pub fn need_tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer()?.ok_or_else(|| Error::NoTokenizer { file: self.path.clone() })
    }
}

/// Sizes for which the program is compiled, from the options, checked for this model and device.
///
/// # Errors
/// An option outside its limits.
pub fn limits(model: &Model, device: &dyn Device, options: &LoadOptions) -> Result<Limits> {
    let wrong = |name, value: String, expected: String| Error::Option { name, value, expected };
    let in_range = |name, value: usize, low: usize, high: usize| {
        if (low..=high).contains(&value) {
            return Ok(value);
        }
        Err(wrong(name, value.to_string(), format!("a number from {low} to {high}")))
    };
    let n_ctx = options.n_ctx.unwrap_or_else(|| model.default_context());
    in_range("context length", n_ctx, 2, MAX_N_CTX)?;
    let chunk = in_range("chunk", options.chunk.unwrap_or(device.prompt_chunk()), 1, 1 << 16)?;
    in_range("number of sequences", options.n_sequences, 1, 1 << 12)?;
    let page_len = options.page_len.unwrap_or(device.page_len());
    if !page_len.is_power_of_two() || !(16..=1024).contains(&page_len) {
        return Err(wrong("page length", page_len.to_string(), "a power of two from 16 to 1024".into()));
    }
    let kv_type = model.kv_type(device, options.kv_type)?;
    // A step has room for one row of every sequence and for its draft tokens. No chunk is longer
    // than the context.
    let n_draft = match options.speculate {
        Speculate::Off => 0,
        Speculate::Always | Speculate::Auto => in_range("draft length", options.max_draft, 1, MAX_DRAFT)?,
    };
    let least = options.n_sequences * most_rows(n_draft, !model.plan.kv.states.is_empty());
    // The rows of an image that attend to each other must be in one step.
    let of_image = model.spec.vision.as_ref().map_or(0, VisionSpec::rows_at_once);
    let max_rows = chunk.min(n_ctx).max(least).max(of_image.min(n_ctx));
    let max_outputs = options.n_outputs.unwrap_or(0).min(max_rows).max(options.n_sequences * (1 + n_draft));
    // Without `latency_steps` no answer waits, or the operator named a latency that prompts may use
    // too.
    let has_background = options.latency_steps.is_some() && options.n_sequences > 1;
    let background_rows = if has_background { device.background_rows().min(max_rows) } else { 0 };
    Ok(Limits {
        max_rows,
        max_outputs,
        max_spans: options.n_sequences,
        n_ctx,
        page_len,
        n_pages: pool_sizes(&model.plan.kv, n_ctx, max_rows, options.n_sequences, page_len),
        n_states: if model.plan.kv.states.is_empty() { 0 } else { STATES_OF_SEQUENCE * options.n_sequences },
        background_rows,
        kv_type,
        numerics: options.numerics,
    })
}
