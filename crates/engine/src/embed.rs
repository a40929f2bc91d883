//! Embeddings: texts into vectors, many texts in a step.
//!
//! A text must be whole in its step, since every token may attend to every other. Texts are sorted
//! by length, so that the texts of a step are alike; a step has as many as its rows hold. Nothing
//! is padded: the rows of the texts follow one another, each text a span of its own.

use std::sync::Arc;

use device::{Device, Limits, Plan, Program};
use model::EmbeddingSpec;
use text::Specials;

use crate::governor::Account;
use crate::kv::{KvCache, pool_sizes};
use device::Want;

use crate::scheduler::{OutputRows, StepBuffers};
use crate::{Error, LoadOptions, Model, Result, Turns, WeightFiles};

/// Maximum number of texts of a step.
const MAX_SPANS: usize = 128;

/// Vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// One vector for each text, in order.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens computed, including special tokens.
    pub n_tokens: usize,
    /// Indices of texts that were too long for the model and were cut, ascending.
    pub truncated: Vec<usize>,
}

/// A model on a device that computes embeddings.
pub struct Embedder {
    model: Arc<Model>,
    spec: EmbeddingSpec,
    plan: Plan,
    limits: Limits,
    program: Box<dyn Program>,
    kv: KvCache,
    buffers: StepBuffers,
    turns: Option<Arc<Turns>>,
    /// Called before each step.
    on_step: Option<Box<dyn FnMut() + Send>>,
    weight_files: WeightFiles,
    /// Account of its fixed memory at the governor.
    _account: Option<Arc<Account>>,
}

impl Embedder {
    /// Fuse, plan the memory, compare it with the free memory, compile.
    ///
    /// Of the options, `n_ctx` sets the length at which texts are cut (up to the trained length),
    /// and `chunk` the number of rows of a step, at least one text's.
    ///
    /// # Errors
    /// The model is not made for embeddings, an option is outside its limits, or the device cannot
    /// run the plan.
    pub fn new(model: Arc<Model>, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Embedder> {
        let spec = model.embedding()?;
        Embedder::with(model, device, options, spec)
    }

    /// Like [`Self::new`], but each vector is the hidden states of all rows of its text, one after
    /// another.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_states(model: Arc<Model>, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Embedder> {
        let spec = EmbeddingSpec { pools: false, ..model.embedding()? };
        Embedder::with(model, device, options, spec)
    }

    fn with(
        model: Arc<Model>,
        device: &Arc<dyn Device>,
        options: &LoadOptions,
        spec: EmbeddingSpec,
    ) -> Result<Embedder> {
        let limits = limits(&model, &spec, device.as_ref(), options)?;
        let plan = model.embedding_plan(&spec, limits.n_ctx)?;
        let plan = device_lower::fusion::fuse(&plan, device.fusion());
        let items = device.memory_plan(std::slice::from_ref(&plan), &limits)?.items;
        let (bytes, memory) = (items.iter().map(|item| item.bytes).sum(), device.memory());
        let governor = options.governor.as_ref();
        let left = governor.and_then(|g| Some(g.cap_bytes()?.saturating_sub(g.taken(device.as_ref()))));
        let is_known = memory.total > 0 || left.is_some();
        let free = if memory.total > 0 { memory.free } else { u64::MAX };
        if options.check_memory && is_known && bytes > free.min(left.unwrap_or(u64::MAX)) {
            let what = format!("a model and steps of {} rows", limits.max_rows);
            return Err(device::Error::OutOfMemory { device: device.name(), what, bytes }.into());
        }
        let page_bytes = |group: usize| plan.kv.page_bytes(group, limits.kv_type, limits.page_len);
        let least = limits.n_pages.iter().enumerate().map(|(g, n)| (n * page_bytes(g)) as u64).sum();
        if let Some(bytes) = options.kv_budget.filter(|bytes| *bytes < least) {
            return Err(Error::Option {
                name: "KV budget",
                value: format!("{bytes} bytes"),
                expected: format!("at least {least}, what steps of {} rows need", limits.max_rows),
            });
        }
        let account = governor.map(|governor| governor.account(device.as_ref(), bytes));
        let program = device.compile(std::slice::from_ref(&plan), &limits)?;
        let weight_files = model.weight_files().clone();
        weight_files.check_whole()?;
        Ok(Embedder {
            weight_files,
            _account: account,
            kv: KvCache::new(&plan.kv, &limits),
            buffers: StepBuffers::new(&limits, 0, 1, false),
            turns: options.turns.clone(),
            on_step: None,
            spec: EmbeddingSpec { max_tokens: limits.n_ctx, ..spec },
            program,
            plan,
            limits,
            model,
        })
    }

    /// The files that the program reads while it runs.
    pub fn weight_files(&self) -> &WeightFiles {
        &self.weight_files
    }

    /// Description of pooling; `max_tokens` is the length at which texts are cut.
    pub fn spec(&self) -> &EmbeddingSpec {
        &self.spec
    }

    /// Number of columns of a vector.
    pub fn n_dims(&self) -> usize {
        self.plan.value(self.plan.output).cols
    }

    /// The plan as it runs: fused by the device's rules.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The vectors of texts, each with the model's prompt before it and special tokens around it,
    /// cut to the model's length.
    ///
    /// # Errors
    /// There is no tokenizer, a text cannot be tokenised, or the device failed.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Embeddings> {
        let mut truncated = Vec::new();
        let mut tokens = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let (ids, cut) = self.tokenize(text.as_ref())?;
            truncated.extend(cut.then_some(index));
            tokens.push(ids);
        }
        Ok(Embeddings { truncated, ..self.embed_tokens(&tokens)? })
    }

    /// The tokens of a text as [`Self::embed`] computes them, and true if the text was cut.
    ///
    /// # Errors
    /// There is no tokenizer, or the text cannot be tokenised.
    pub fn tokenize(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        self.encoder().tokenize(text)
    }

    /// The tokens of a query and a document, for a reranker.
    ///
    /// # Errors
    /// As [`TextEncoder::tokenize_pair`].
    pub fn tokenize_pair(&self, query: &str, document: &str) -> Result<Vec<u32>> {
        self.encoder().tokenize_pair(query, document)
    }

    /// Set a function that is called before each step of the device, so that a watchdog sees
    /// progress.
    pub fn set_on_step(&mut self, on_step: Box<dyn FnMut() + Send>) {
        self.on_step = Some(on_step);
    }

    /// Rows of the longest step.
    pub fn max_rows(&self) -> usize {
        self.limits.max_rows
    }

    /// A tokeniser of texts for other threads.
    pub fn encoder(&self) -> TextEncoder {
        TextEncoder { model: self.model.clone(), spec: self.spec.clone(), n_ctx: self.limits.n_ctx }
    }

    /// Scores of pairs of texts, each given as one sequence of tokens: the reranker's own numbers.
    ///
    /// # Errors
    /// The model is no reranker; or as [`Self::embed_tokens`].
    pub fn rank_tokens<T: AsRef<[u32]>>(&mut self, pairs: &[T]) -> Result<Vec<f32>> {
        need_ranks(&self.model, &self.spec)?;
        Ok(self
            .embed_tokens(pairs)?
            .vectors
            .into_iter()
            .filter_map(|vector| vector.first().copied())
            .collect())
    }

    /// The vectors of token sequences, which include their special tokens.
    ///
    /// # Errors
    /// A sequence is empty, longer than the limit, or has ids that are not in the vocabulary; or
    /// the device failed.
    pub fn embed_tokens<T: AsRef<[u32]>>(&mut self, sequences: &[T]) -> Result<Embeddings> {
        for tokens in sequences {
            self.check(tokens.as_ref())?;
        }
        let length = |index: &usize| sequences.get(*index).map_or(0, |tokens| tokens.as_ref().len());
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(length(index)));
        let mut vectors = vec![Vec::new(); sequences.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut n_rows = 0;
            let fits = |index: &&usize| {
                n_rows += length(index);
                n_rows <= self.limits.max_rows
            };
            let n_texts = rest.iter().take(self.limits.max_spans).take_while(fits).count().max(1);
            let (batch, after) = rest.split_at(n_texts);
            let result = self.run(batch.iter().map(|index| sequences[*index].as_ref()));
            for slot in 0..n_texts {
                self.kv.end(slot);
            }
            result?;
            let cols = self.plan.value(self.plan.output).cols;
            let mut rest_of_rows = self.program.logits();
            for index in batch {
                let n_rows = if self.spec.pools { 1 } else { length(index) };
                let (rows, after) = rest_of_rows.split_at((n_rows * cols).min(rest_of_rows.len()));
                vectors[*index] = rows.to_vec();
                rest_of_rows = after;
            }
            rest = after;
        }
        let n_tokens = (0..sequences.len()).map(|index| length(&index)).sum();
        Ok(Embeddings { vectors, n_tokens, truncated: Vec::new() })
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let (n_vocab, n_ctx) = (self.model.spec().n_vocab, self.limits.n_ctx);
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > n_ctx {
            return Err(Error::TooManyTokens { n_tokens: tokens.len(), n_ctx });
        }
        match tokens.iter().position(|token| *token as usize >= n_vocab) {
            Some(position) => Err(Error::TokenOutOfRange { token: tokens[position], position, n_vocab }),
            None => Ok(()),
        }
    }

    /// Run one step: each sequence is a span from position 0, and its last row is the output.
    fn run<'a>(&mut self, sequences: impl Iterator<Item = &'a [u32]>) -> Result<()> {
        self.buffers.clear();
        for (slot, tokens) in sequences.enumerate() {
            self.kv.reserve(slot, 0, tokens.len(), self.program.as_mut())?;
            let n_rows = if self.spec.pools { 1 } else { tokens.len() };
            self.buffers.push(slot, 0, tokens, OutputRows::Last(n_rows), Want::LOGITS);
        }
        if let Some(on_step) = &mut self.on_step {
            on_step();
        }
        let _turn = self.turns.as_ref().map(|turns| turns.take());
        let ran = self.program.run(&self.buffers.step(&self.kv, device::Masks::default(), None));
        self.kv.note_submitted(ran)?;
        self.weight_files.check_whole()
    }
}

/// Tokeniser of texts for an [`Embedder`]. Cheap to clone.
#[derive(Clone)]
pub struct TextEncoder {
    model: Arc<Model>,
    spec: EmbeddingSpec,
    n_ctx: usize,
}

impl TextEncoder {
    /// Maximum number of tokens of a text.
    pub fn most_tokens(&self) -> usize {
        self.n_ctx
    }

    /// Maximum number of bytes of a text that may fit in [`Self::most_tokens`] tokens; a longer one
    /// would be cut.
    ///
    /// # Errors
    /// There is no tokenizer.
    pub fn most_bytes(&self) -> Result<usize> {
        Ok(self.model.need_tokenizer()?.most_bytes(self.n_ctx))
    }

    /// The tokens of a text as [`Embedder::embed`] computes them, and true if the text was cut.
    ///
    /// # Errors
    /// There is no tokenizer, or the text cannot be tokenised.
    pub fn tokenize(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        let tokenizer = self.model.need_tokenizer()?;
        let mut text = format!("{}{text}", self.spec.prompt);
        if self.spec.lower_case {
            text = text.to_lowercase();
        }
        let mut ids = tokenizer.encode_with_bos(&text, Specials::Parse)?;
        let most = self.n_ctx;
        if ids.len() <= most {
            return Ok((ids, false));
        }
        // The special tokens around the text stay; the text's end is cut.
        let marks = tokenizer.encode_with_bos("", Specials::Parse)?;
        let n_text = ids.len().saturating_sub(marks.len());
        let plain = tokenizer.encode(&text, Specials::Parse)?;
        let is_before = |n: &usize| ids.get(*n..*n + n_text) == Some(&plain[..]);
        let n_before = (0..=marks.len()).find(is_before).unwrap_or(0);
        let n_behind = (marks.len() - n_before).min(most);
        let behind = ids.split_off(ids.len() - n_behind);
        ids.truncate(most - n_behind);
        ids.extend(behind);
        Ok((ids, true))
    }

    /// The tokens of a query and a document with their special tokens. The document's end is cut if
    /// the pair is too long.
    ///
    /// # Errors
    /// The model is no reranker, there is no tokenizer, or a text cannot be tokenised.
    pub fn tokenize_pair(&self, query: &str, document: &str) -> Result<Vec<u32>> {
        need_ranks(&self.model, &self.spec)?;
        let tokenizer = self.model.need_tokenizer()?;
        if let Some(answers) = &self.spec.answers {
            let (prompt, after) = answers.about(query, document);
            let mut ids = tokenizer.encode(&prompt, Specials::Parse)?;
            let after = tokenizer.encode(after, Specials::Parse)?;
            if ids.len() > self.n_ctx {
                ids.truncate(self.n_ctx.saturating_sub(after.len()));
                ids.extend(after);
            }
            return Ok(ids);
        }
        let mut ids = tokenizer.encode_with_bos(query, Specials::Parse)?;
        let closing = tokenizer.encode_with_bos("", Specials::Parse)?.last().copied();
        // `encode_with_bos` has added the first separator already.
        ids.extend(closing.into_iter().flat_map(|id| std::iter::repeat_n(id, self.spec.separators - 1)));
        ids.extend(tokenizer.encode(document, Specials::Parse)?);
        ids.truncate(self.n_ctx.saturating_sub(1));
        ids.extend(closing);
        Ok(ids)
    }
}

/// Check that the model is a reranker.
///
/// # Errors
/// [`Error::NoRanks`]: it is not.
fn need_ranks(model: &Model, spec: &EmbeddingSpec) -> Result<()> {
    match spec.ranks {
        true => Ok(()),
        false => Err(Error::NoRanks { file: model.path().to_owned() }),
    }
}

/// Limits of steps that hold whole texts.
fn limits(model: &Model, spec: &EmbeddingSpec, device: &dyn Device, options: &LoadOptions) -> Result<Limits> {
    let longest = model.spec().n_ctx_train;
    let n_ctx = options.n_ctx.unwrap_or(spec.max_tokens);
    if !(1..=longest).contains(&n_ctx) {
        let expected = format!("a number from 1 to the {longest} positions that the model learned");
        return Err(Error::Option { name: "context length", value: n_ctx.to_string(), expected });
    }
    // Pages, KV type and arithmetic are those for text.
    let same = LoadOptions { n_ctx: Some(n_ctx.max(2)), ..options.clone() };
    let Limits { page_len, kv_type, numerics, .. } = crate::load::limits(model, device, &same)?;
    let max_rows = options.chunk.unwrap_or(device.prompt_chunk()).max(n_ctx);
    let max_spans = MAX_SPANS.min(max_rows);
    let plan = model.embedding_plan(spec, n_ctx)?;
    let n_pages = pool_sizes(&plan.kv, n_ctx, max_rows, max_spans, page_len);
    Ok(Limits {
        max_rows,
        max_outputs: if spec.pools { max_spans } else { max_rows },
        max_spans,
        n_ctx,
        page_len,
        n_pages,
        n_states: 0,
        background_rows: 0,
        kv_type,
        numerics,
    })
}
