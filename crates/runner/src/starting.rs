//! Start of an answer from a prepared request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{CancelFlag, Request, SamplingParams};
use text::{ShowSpecial, Stops};

use crate::answering::Answer;
use crate::chat::{Prepared, prepare_chat, render};
use crate::error::{RequestError, Result};
use crate::models::{Facts, Lease, TextModel};
use crate::request::{Caller, ChatRequest, GenerateOptions};
use crate::runner::Runner;
use crate::stream::Channel;

/// Maximum number of alternative tokens reported for each position, over all choices. They need far
/// more memory than the answers.
const MAX_ALTERNATIVES: usize = 512;

impl Runner {
    /// Prepares the prompt of a chat with the constraint and the reader of its answer.
    ///
    /// # Errors
    /// The messages or options are wrong, or the prompt is too long.
    pub(crate) async fn prepare_answer(
        &self,
        model: TextModel,
        request: Arc<ChatRequest>,
    ) -> Result<Prepared> {
        let has_grammar = request.grammar.is_some() || !request.called_tools().is_empty();
        let (of_model, of_request) = (model.clone(), request.clone());
        let prepare = move |work: &_| {
            let rendered = render(&of_model, &of_request, &of_request.messages, work)?;
            match has_grammar {
                true => Ok(Err(rendered)),
                false => prepare_chat(&of_model, &of_request, rendered).map(Ok),
            }
        };
        match self.preparing().run(prepare).await? {
            Ok(prepared) => Ok(prepared),
            Err(rendered) => self.compiling().run(move |_| prepare_chat(&model, &request, rendered)).await,
        }
    }

    /// Queues a request for the engine.
    ///
    /// # Errors
    /// The prompt is empty or too long, an option is wrong, or the queue is full.
    pub(crate) async fn start(&self, caller: &Caller, lease: Lease, prepared: Prepared) -> Result<Answer> {
        let Prepared { mut tokens, images, constraint, reading, stop_outside, mut options } = prepared;
        let model = lease.text()?.clone();
        self.fill_in_for(&model, &mut options);
        let TextModel { facts, worker, .. } = &model;
        self.refuse_if_draining()?;
        if !options.context.is_empty() {
            // Drop the BOS of a continuing text. It stays if every message begins with it.
            let bos = facts.tokenizer.bos();
            let n_bos = tokens.iter().filter(|token| Some(**token) == bos).count();
            let begins = n_bos == 1 && tokens.first().copied() == bos;
            tokens.splice(..usize::from(begins), options.context.iter().copied());
        }
        if tokens.is_empty() {
            return Err(RequestError::invalid("prompt", "the prompt is empty, expected at least one token"));
        }
        if tokens.len() >= facts.n_ctx {
            return Err(RequestError::context_length(tokens.len(), facts.n_ctx));
        }
        let n_alternatives = options.n.saturating_mul(options.logprobs.unwrap_or(0));
        if n_alternatives > MAX_ALTERNATIVES {
            let message = format!(
                "`n` times `top_logprobs` is {n_alternatives}, expected at most {MAX_ALTERNATIVES}; request fewer of either"
            );
            return Err(RequestError::invalid("top_logprobs", message));
        }
        // Checked here, so that a refusal does not wait for the engine.
        let (max_waiting, max_wait) = self.most_waiting();
        let n_free = facts.n_slots.saturating_sub(worker.stats.running.get() as usize);
        // Tenants take turns, so others' waiting requests do not block a tenant without any.
        let is_first = !worker.active().iter().any(|channel| channel.activity.tenant == caller.tenant);
        let has_turn = is_first && max_waiting > 0 && options.n <= max_waiting + facts.n_slots;
        let max_wait = if has_turn { Duration::MAX } else { max_wait };
        if !has_turn && worker.n_waiting() + options.n > max_waiting + n_free {
            return Err(RequestError {
                retry_after: Some(Duration::from_millis(worker.stats.predicted_wait_ms.get())),
                ..RequestError::overloaded(worker.n_waiting(), max_waiting)
            });
        }
        let n_prompt = tokens.len();
        let context = tokens.clone();
        let with_tokens = options.with_tokens || options.logprobs.is_some();
        let (reader, shown) = reading.map_or((None, ShowSpecial::default()), |(r, shown)| (Some(r), shown));
        let (max_tokens, interval) = self.pace();
        let (of_request, adapter, tenant) = (facts.clone(), lease.adapter.clone(), caller.tenant);
        let max_tokens = [options.max_tokens, max_tokens].into_iter().flatten().min();
        let make = move |_: &_| {
            let one = Request {
                images,
                max_tokens,
                stop_outside,
                constraint,
                show_special: shown,
                adapter,
                tenant,
                salt: tenant,
                ..request(&of_request, &options, tokens)?
            };
            Ok(choices(one, options.n))
        };
        let requests = self.preparing().run(make).await?;
        let cancel: Vec<CancelFlag> = requests.iter().map(|request| request.cancel.clone()).collect();
        let channel = Channel::new(caller, n_prompt, cancel);
        let answer =
            Answer::new(lease, facts.clone(), channel.clone(), context, reader, with_tokens, interval);
        worker.generate(requests, channel, max_wait).await?;
        Ok(answer)
    }
}

/// The engine's request for one answer. All answers share its lists.
fn request(facts: &Facts, options: &GenerateOptions, tokens: Vec<u32>) -> Result<Request> {
    let mut sampling = SamplingParams {
        logprobs: options.logprobs.is_some(),
        n_best_logprobs: options.logprobs.unwrap_or(0),
        drawn_logprobs: options.drawn_logprobs,
        ..options.sampling.clone()
    };
    sampling
        .check(facts.model.n_vocab())
        .map_err(|wrong| RequestError::invalid(wrong.name, wrong.to_string()))?;
    if let Some(dry) = &mut sampling.dry {
        dry.breakers = facts.breakers(&dry.breakers);
    }
    let mut stop_tokens = options.stop_tokens.clone();
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    Ok(Request {
        sampling,
        min_tokens: options.min_tokens,
        stop: Stops::new(&options.stop).map_err(engine::Error::from)?,
        stop_tokens: stop_tokens.into(),
        prompt_logprobs: options.prompt_logprobs,
        progress: options.progress,
        ignore_end: options.ignore_end,
        reuse: options.cache_prompt,
        priority: options.priority,
        deadline: options.timeout.and_then(|time| Instant::now().checked_add(time)),
        ..Request::new(tokens)
    })
}

/// Makes `n` requests that differ in seed and cancel flag only.
fn choices(one: Request, n: usize) -> Vec<Request> {
    let seed = one.sampling.seed;
    let choice = |index: usize| {
        let sampling =
            SamplingParams { seed: seed.map(|seed| seed.wrapping_add(index as u64)), ..one.sampling.clone() };
        Request { sampling, cancel: CancelFlag::default(), ..one.clone() }
    };
    (0..n).map(choice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_share_lists_and_nothing_else() {
        let one = Request {
            stop: Stops::new(&["a"]).unwrap(),
            sampling: SamplingParams {
                seed: Some(u64::MAX),
                logit_bias: [(1, 2.0)].into(),
                ..SamplingParams::default()
            },
            ..Request::new(vec![1])
        };
        let of_one = one.sampling.logit_bias.clone();
        let made = choices(one, 3);
        let seeds: Vec<_> = made.iter().map(|request| request.sampling.seed).collect();
        assert_eq!(seeds, [Some(u64::MAX), Some(0), Some(1)]);
        assert!(made.iter().all(|request| std::sync::Arc::ptr_eq(&request.sampling.logit_bias, &of_one)));
        made[1].cancel.cancel();
        assert!(!made[0].cancel.is_cancelled() && !made[2].cancel.is_cancelled());
    }
}
