//! Adding a request to an engine: checks, images, sampler, constraint and adapter of its sequence.

use std::sync::Arc;

use text::Tokenizer;

use crate::output::TextStream;
use crate::sampling::Sampler;
use crate::sequence::{Sequence, slide};
use crate::vision::Images;
use crate::{Engine, Error, Overflow, Picture, Request, Result, SamplingParams, SequenceId, ShowSpecial};

impl Engine {
    /// Check a request and queue it. It starts at a [`Self::step`] that has a slot for it: the
    /// highest priority first, then tenants in turn, then in order of arrival.
    ///
    /// # Errors
    /// The prompt is empty, too long, or has ids that are not in the vocabulary. A parameter is
    /// outside its limits. The request has stop strings without a tokenizer. The queue is full.
    pub fn add(&mut self, mut request: Request) -> Result<SequenceId> {
        self.scheduler.check_room()?;
        self.fit_prompt(&mut request)?;
        let images = self.place_images(&mut request)?.map(Arc::new);
        self.check_options(&mut request)?;
        let tokenizer = self.model.tokenizer()?.cloned();
        let ends = self.end_tokens(&request, tokenizer.as_deref());
        let sampler = Sampler::new(&request.sampling, self.model.n_vocab(), tokenizer.as_deref())?;
        if request.constraint.is_some() {
            self.scheduler.need_masks(self.device.n_threads())?;
        }
        let adapter = self.choose_adapter(&mut request)?;
        let text = TextStream::of(&mut request, tokenizer);
        let (n_pending, n_draft) = (self.program.max_in_flight(), self.scheduler.max_draft());
        let id = self.new_id();
        let mut sequence = Sequence::new(id, request, sampler, text, ends, n_pending, n_draft);
        (sequence.images, sequence.adapter) = (images, adapter);
        self.scheduler.add(sequence);
        Ok(id)
    }

    /// Add a sequence that continues from the present end of another one, with its tokens and
    /// settings and the random numbers of `sampling`. If it gets a slot while the other is running,
    /// the two share pages until one of them writes to a page. Its events are only those of its own
    /// tokens.
    ///
    /// Called right after [`Self::add`], it gives several answers to one prompt that is computed
    /// once.
    ///
    /// # Errors
    /// [`Error::NoSequence`]; a parameter is outside its limits; or the queue is full.
    pub fn fork(&mut self, id: SequenceId, sampling: &SamplingParams) -> Result<SequenceId> {
        self.scheduler.check_room()?;
        let tokenizer = self.model.tokenizer()?.cloned();
        let sampler = Sampler::new(sampling, self.model.n_vocab(), tokenizer.as_deref())?;
        let found = self.scheduler.sequences().find(|s| s.id == id).cloned();
        let mut sequence = found.ok_or(Error::NoSequence(id.0))?;
        let (n_pending, n_draft) = (self.program.max_in_flight(), self.scheduler.max_draft());
        sequence.become_fork(self.new_id(), sampler, n_pending, n_draft);
        self.scheduler.add(sequence);
        Ok(SequenceId(self.next_id - 1))
    }

    fn new_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id - 1)
    }

    /// Check the prompt's tokens, and cut them to the context if it slides.
    fn fit_prompt(&self, request: &mut Request) -> Result<()> {
        let (n_tokens, n_ctx) = (request.tokens.len(), self.limits.n_ctx);
        self.check_tokens(&request.tokens)?;
        match request.overflow {
            Overflow::Slide { keep } if keep > n_ctx / 2 => Err(Error::Option {
                name: "keep",
                value: keep.to_string(),
                expected: format!("at most {}, half the context", n_ctx / 2),
            }),
            Overflow::Slide { keep } if n_tokens >= n_ctx => {
                slide(&mut request.tokens, keep, n_ctx);
                Ok(())
            }
            Overflow::Stop if n_tokens >= n_ctx => Err(Error::PromptTooLong { n_tokens, n_ctx }),
            Overflow::Slide { .. } | Overflow::Stop => Ok(()),
        }
    }

    /// Replace the placeholders of the prompt by rows of the request's images, and mix these into
    /// its salt.
    fn place_images(&mut self, request: &mut Request) -> Result<Option<Images>> {
        if request.images.is_empty() {
            return Ok(None);
        }
        let refuse = |name, value: &str, expected: &str| {
            Err(Error::Option { name, value: value.to_owned(), expected: expected.to_owned() })
        };
        if request.overflow != Overflow::Stop {
            return refuse("overflow", "slide", "stop for a prompt with images");
        }
        if request.adapter.is_some() {
            return refuse("adapter", "set", "none for a prompt with images");
        }
        if request.prompt_logprobs.is_some() {
            return refuse("prompt_logprobs", "set", "none for a prompt with images");
        }
        let images = self.see(&mut request.tokens, &request.images)?;
        request.salt ^= images.salt();
        Ok(Some(images))
    }

    /// Encode images, and replace the placeholders in `tokens` by their rows.
    pub(crate) fn see(&mut self, tokens: &mut [u32], pictures: &[Arc<Picture>]) -> Result<Images> {
        self.model.need_vision()?;
        let turns = self.turns.clone();
        let _turn = turns.as_ref().map(|turns| turns.take());
        let max_rows = self.limits.max_rows;
        match (&mut self.scheduler.vision, &self.blind) {
            (Some(vision), _) => vision.place(tokens, pictures, max_rows),
            (None, reason) => Err(Error::VisionRefused(reason.clone().unwrap_or_default())),
        }
    }

    /// Check stop strings, stop tokens and log-probabilities, and sort the lists of tokens.
    fn check_options(&self, request: &mut Request) -> Result<()> {
        if !request.stop.is_empty() {
            self.model.need_tokenizer()?;
        }
        if let Some(n) = request.prompt_logprobs.filter(|n| *n > device::MAX_BEST) {
            return Err(Error::Option {
                name: "prompt_logprobs",
                value: n.to_string(),
                expected: format!("at most {}", device::MAX_BEST),
            });
        }
        if !request.stop_tokens.is_sorted() {
            request.stop_tokens = sorted(&request.stop_tokens);
        }
        let n_vocab = self.model.n_vocab();
        if let Some(token) = request.stop_tokens.last().filter(|token| **token as usize >= n_vocab) {
            return Err(Error::Option {
                name: "stop_tokens",
                value: token.to_string(),
                expected: format!("token ids below {n_vocab}"),
            });
        }
        if let ShowSpecial::Only(ids) = &mut request.show_special
            && !ids.is_sorted()
        {
            *ids = sorted(ids);
        }
        Ok(())
    }

    /// Tokens that end the answer, ascending: the request's, and the model's unless they are
    /// ignored. A constraint needs the model's, since it says itself where the text may end.
    fn end_tokens(&self, request: &Request, tokenizer: Option<&Tokenizer>) -> Arc<[u32]> {
        let n_vocab = self.model.n_vocab();
        let of_model = tokenizer.filter(|_| !request.ignore_end || request.constraint.is_some());
        let of_model = of_model.map_or(&[][..], |tokenizer| tokenizer.ends());
        let mut ends: Vec<u32> = [of_model, &request.stop_tokens].concat();
        ends.retain(|token| (*token as usize) < n_vocab);
        ends.sort_unstable();
        ends.dedup();
        ends.into()
    }

    /// Number of the request's adapter in a step, whose salt is mixed into the request's; 0: the
    /// model alone.
    fn choose_adapter(&self, request: &mut Request) -> Result<u32> {
        let Some(name) = request.adapter.as_deref() else { return Ok(0) };
        let (number, salt) = self.adapters.find(name)?;
        request.salt ^= salt;
        Ok(number)
    }
}

fn sorted(tokens: &[u32]) -> Arc<[u32]> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    sorted.into()
}
