//! Models that generate text.

use std::sync::{Arc, OnceLock};

use engine::{DryBreakers, Engine};
use text::{Gap, Grammar, GrammarCompiler, HeldCalls, Matcher, Tokenizer, Trigger, Triggers};

use super::calls_key::CallsKey;
use crate::error::{ErrorKind, RequestError, Result};
use crate::matchers::Matchers;
use crate::reading::Template;
use crate::warnings;
use crate::worker::Worker;

/// A model that generates text, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct TextModel {
    pub(crate) id: String,
    pub(crate) facts: Arc<Facts>,
    pub(crate) worker: Worker,
    /// Tenant of the current request.
    pub(super) tenant: u64,
}

/// Tenant of caches that all share: their values are made so fast that timing reveals nothing about
/// others.
const EVERYBODY: u64 = 0;

/// Facts that a thread reports about its loaded engine.
pub(crate) struct Facts {
    pub(crate) model: Arc<engine::Model>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// The chat template; `None` for a base model.
    pub(super) template: Option<Template>,
    /// Context length of a sequence, in tokens.
    pub(crate) n_ctx: usize,
    /// Maximum number of bytes of a text that may fit in `n_ctx` tokens.
    pub(crate) max_text: usize,
    /// Number of concurrent sequences.
    pub(crate) n_slots: usize,
    /// The device's name.
    pub(super) device: &'static str,
    /// Compiler of grammars, made at first use.
    compiler: OnceLock<std::result::Result<GrammarCompiler, String>>,
    matchers: Matchers,
    calls: Matchers<CallsKey, HeldCalls>,
    triggers: Matchers<Vec<Trigger>, Arc<Triggers>>,
    /// Prepared breakers of DRY, by their list.
    breakers: Matchers<Vec<String>, DryBreakers>,
}

impl Facts {
    /// Refuses a text that cannot fit in the context, before any work on it. `key` is its key in
    /// the request.
    ///
    /// # Errors
    /// It has more bytes than all tokens of a context.
    pub(crate) fn check_text(&self, key: &str, n_bytes: usize) -> Result<()> {
        match n_bytes > self.max_text {
            true => Err(RequestError::text_too_long(key, n_bytes, self.n_ctx, self.max_text)),
            false => Ok(()),
        }
    }

    /// Compiles the triggers of a grammar.
    ///
    /// # Errors
    /// A trigger is not valid, or takes too much memory.
    pub(crate) fn triggers(&self, triggers: &[Trigger]) -> Result<Arc<Triggers>> {
        self.triggers.get(EVERYBODY, &triggers.to_vec(), || {
            let compiled = Triggers::new(triggers);
            let wrong = |error: text::Error| format!("`grammar_triggers`: {error}");
            compiled.map(Arc::new).map_err(|error| RequestError::invalid("grammar_triggers", wrong(error)))
        })
    }

    /// Prepares DRY's breakers for this vocabulary, once for equal lists.
    pub(crate) fn breakers(&self, breakers: &DryBreakers) -> DryBreakers {
        let made = self.breakers.get(EVERYBODY, &breakers.texts().to_vec(), || {
            breakers.prepare(&self.tokenizer);
            Ok(breakers.clone())
        });
        made.unwrap_or_else(|_| breakers.clone())
    }

    fn compile(&self, grammar: &Grammar) -> Result<Matcher> {
        let make =
            || GrammarCompiler::new(&self.tokenizer, self.model.n_vocab()).map_err(|error| error.to_string());
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(RequestError::internal)?;
        let wrong = |error: text::Error| RequestError::new(ErrorKind::Invalid, error.to_string());
        let matcher = compiler.compile(grammar).map_err(wrong)?;
        let mut words = vec![0; self.model.n_vocab().div_ceil(32)];
        matcher.clone().mask(&mut words).map_err(wrong)?;
        if words.iter().all(|word| *word == 0) {
            return Err(RequestError::unspellable());
        }
        Ok(matcher)
    }

    pub(super) fn of(engine: &Engine) -> Result<Facts> {
        let tokenizer = engine.model().need_tokenizer()?.clone();
        tokenizer.prepare();
        let template =
            tokenizer.chat_template().map(|source| Template::new(source, &tokenizer)).transpose()?;
        let max_text = tokenizer.most_bytes(engine.limits().n_ctx);
        Ok(Facts {
            model: engine.model().clone(),
            tokenizer,
            template,
            max_text,
            n_ctx: engine.limits().n_ctx,
            n_slots: engine.limits().max_spans,
            device: engine.device().name(),
            compiler: OnceLock::new(),
            matchers: Matchers::default(),
            calls: Matchers::default(),
            triggers: Matchers::default(),
            breakers: Matchers::default(),
        })
    }
}

impl TextModel {
    /// The model's chat template.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn template(&self) -> Result<&Template> {
        self.facts.template.as_ref().ok_or_else(|| {
            let message =
                format!("the model `{}` has no chat template; use /v1/completions instead", self.id);
            RequestError::invalid("model", message)
        })
    }
}

impl TextModel {
    /// The matcher of a grammar.
    ///
    /// # Errors
    /// The grammar is not valid or not supported, or the vocabulary cannot spell how its texts
    /// begin.
    pub(crate) fn matcher(&self, grammar: &Grammar) -> Result<Matcher> {
        let matcher = self.facts.matchers.get(self.tenant, grammar, || self.facts.compile(grammar))?;
        warnings::unenforced(matcher.unenforced());
        Ok(matcher)
    }

    /// The cached constraint of tool calls, or a new one from `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn held_calls(
        &self,
        key: &CallsKey,
        make: impl FnOnce() -> Result<HeldCalls>,
    ) -> Result<HeldCalls> {
        self.facts.calls.get(self.tenant, key, make)
    }

    /// Compiles a grammar of calls. The result is cached by [`Self::held_calls`] only.
    ///
    /// # Errors
    /// As [`Self::matcher`].
    pub(crate) fn compile_tools(&self, grammar: &Grammar) -> text::Result<Matcher> {
        self.facts.compile(grammar).map_err(|error| text::Error::Grammar { what: error.message })
    }

    /// The prompt to fill a gap, and the tokens that end the filling.
    ///
    /// # Errors
    /// The model was not trained to fill gaps.
    pub(crate) fn around_gap(&self, gap: &Gap) -> Result<(Vec<u32>, Vec<u32>)> {
        let tokenizer = &self.facts.tokenizer;
        let tokens = tokenizer.fill_in_middle().ok_or_else(|| {
            let message = format!(
                "the model `{}` has no fill-in-the-middle tokens, so it does not support `suffix`",
                self.id
            );
            RequestError::invalid("suffix", message)
        })?;
        let n_bytes = gap.before.len() + gap.after.len();
        let n_bytes = n_bytes + gap.files.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
        self.facts.check_text("suffix", n_bytes)?;
        let prompt = tokenizer.encode_gap(tokens, gap).map_err(engine::Error::from)?;
        Ok((prompt, tokens.ends.clone()))
    }
}
