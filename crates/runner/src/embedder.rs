//! A model that computes embeddings, on a thread of its own.
//!
//! Requests are computed together, one part of each at a time. So a request with thousands of texts
//! delays one with a single text by one part only. Texts are tokenised beforehand.

use std::sync::Arc;

use engine::{Embedder, Embeddings, TextEncoder};
use tokio::sync::oneshot;

use crate::error::{ErrorKind, RequestError, Result};
use crate::preparing::Work;
use crate::queue::{Receiver, Running, Sender, died};
use crate::request::Prompt;
use crate::stats::Stats;

/// Maximum number of tokens of one batch, unless a single text has more.
const MAX_TOKENS: usize = 4 << 10;

/// Maximum number of requests in one batch.
const MAX_OPEN: usize = 64;

/// Texts to embed.
pub(crate) struct EmbedJob {
    /// Tokens of each text.
    pub(crate) inputs: Vec<Vec<u32>>,
    pub(crate) done: oneshot::Sender<Result<Embeddings>>,
}

/// The handle of the thread.
#[derive(Clone)]
pub(crate) struct EmbedderWorker {
    pub(crate) jobs: Sender<EmbedJob>,
}

impl EmbedderWorker {
    /// Computes vectors of texts, in their order.
    ///
    /// # Errors
    /// The queue is full, or the device failed.
    pub(crate) async fn embed(&self, inputs: Vec<Vec<u32>>) -> Result<Embeddings> {
        let (done, is_done) = oneshot::channel();
        let _place = self.jobs.send(EmbedJob { inputs, done })?;
        is_done.await.map_err(|_| died())?
    }
}

/// A request that is being computed.
struct OpenRequest {
    inputs: Vec<Vec<u32>>,
    /// Vectors of the inputs so far.
    vectors: Vec<Vec<f32>>,
    failed: Option<RequestError>,
    done: oneshot::Sender<Result<Embeddings>>,
    running: Running,
}

impl OpenRequest {
    fn new((EmbedJob { inputs, done }, running): (EmbedJob, Running)) -> OpenRequest {
        OpenRequest { inputs, vectors: Vec::new(), failed: None, done, running }
    }

    /// The next inputs, with at most `most` tokens, but at least one input.
    fn next(&self, most: usize) -> &[Vec<u32>] {
        let rest = self.inputs.get(self.vectors.len()..).unwrap_or_default();
        let mut n_tokens = 0;
        let fits = |tokens: &&Vec<u32>| {
            n_tokens += tokens.len();
            n_tokens <= most
        };
        let n = rest.iter().take_while(fits).count().max(1).min(rest.len());
        &rest[..n]
    }

    fn goes_on(&self) -> bool {
        self.failed.is_none() && self.vectors.len() < self.inputs.len()
    }

    fn end(self) {
        let OpenRequest { inputs, vectors, failed, done, running } = self;
        // The slot must be free before the client can send its next request.
        drop(running);
        let n_tokens = inputs.iter().map(Vec::len).sum();
        let found = Embeddings { vectors, n_tokens, truncated: Vec::new() };
        // The client may have disconnected.
        drop(done.send(failed.map_or(Ok(found), Err)));
    }
}

/// Runs jobs until all senders are dropped.
pub(crate) fn run(mut embedder: Embedder, jobs: &Receiver<EmbedJob>, stats: &Arc<Stats>) {
    let of_steps = stats.clone();
    embedder.set_on_step(Box::new(move || of_steps.pulse.again()));
    stats.pulse.expect_rows(embedder.max_rows());
    let mut open: Vec<OpenRequest> = Vec::new();
    loop {
        if open.is_empty() {
            let Some(job) = jobs.recv() else { return };
            open.push(OpenRequest::new(job));
        }
        while open.len() < MAX_OPEN
            && let Some(job) = jobs.try_recv()
        {
            open.push(OpenRequest::new(job));
        }
        // Drop requests whose clients have disconnected.
        open.retain(|job| !job.done.is_closed());
        if !open.is_empty() {
            let _beat = stats.pulse.begin();
            compute(&mut embedder, &mut open, stats);
        }
        let (unfinished, finished) = open.into_iter().partition(OpenRequest::goes_on);
        open = unfinished;
        finished.into_iter().for_each(OpenRequest::end);
    }
}

/// Computes the next part of each job in one batch. If that fails, each job runs alone, so that one
/// cannot fail the others.
fn compute(embedder: &mut Embedder, open: &mut [OpenRequest], stats: &Stats) {
    let share = MAX_TOKENS / open.len().max(1);
    let parts: Vec<&[Vec<u32>]> = open.iter().map(|job| job.next(share)).collect();
    let all: Vec<&[u32]> = parts.iter().flat_map(|part| part.iter().map(Vec::as_slice)).collect();
    stats.tokens_computed.add(all.iter().map(|tokens| tokens.len() as u64).sum());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    match embedder.embed_tokens(&all) {
        Ok(together) => {
            let mut vectors = together.vectors.into_iter();
            for (job, n) in open.iter_mut().zip(lengths) {
                job.vectors.extend(vectors.by_ref().take(n));
            }
            stats.failing.set(0);
        }
        Err(_) => {
            for job in open.iter_mut() {
                match embedder.embed_tokens(job.next(share)) {
                    Ok(part) => job.vectors.extend(part.vectors),
                    Err(error) => job.failed = Some(error.into()),
                }
            }
            // An invalid input is no failure of the device.
            let is_ours = |job: &OpenRequest| {
                job.failed.as_ref().is_some_and(|error| error.kind == ErrorKind::Internal)
            };
            stats.failing.add(u64::from(open.iter().any(is_ours)));
        }
    }
}

/// Tokenises a request's inputs. A text longer than the context is truncated if `truncate`;
/// otherwise it is an error.
///
/// # Errors
/// A text is too long or cannot be tokenised, or the client has disconnected.
pub(crate) fn encode(
    encoder: &TextEncoder,
    inputs: &[Prompt],
    truncate: bool,
    work: &Work,
) -> Result<Vec<Vec<u32>>> {
    let most = encoder.most_tokens();
    let most_bytes = encoder.most_bytes()?;
    let one = |(index, input): (usize, &Prompt)| {
        work.goes_on()?;
        let too_long = |found: String| {
            let message = format!("input {index} has {found}, expected at most {most}, the model's limit");
            Err(RequestError {
                param: Some("input".into()),
                code: Some("context_length_exceeded"),
                ..RequestError::new(ErrorKind::ContextLength, message)
            })
        };
        match input {
            Prompt::Text { text, .. } if text.len() > most_bytes && !truncate => {
                too_long(format!("{} bytes, which are more than {most} tokens", text.len()))
            }
            Prompt::Text { text, .. } => {
                let begin = beginning(text, most_bytes);
                let (tokens, is_cut) = encoder.tokenize(begin)?;
                match is_cut && !truncate {
                    true => too_long(format!("more than {most} tokens")),
                    false => Ok(tokens),
                }
            }
            Prompt::Pair { query, document } => {
                let (query, document) = (beginning(query, most_bytes), beginning(document, most_bytes));
                Ok(encoder.tokenize_pair(query, document)?)
            }
            Prompt::Tokens(tokens) if tokens.len() > most && !truncate => {
                too_long(format!("{} tokens", tokens.len()))
            }
            Prompt::Tokens(tokens) => Ok(tokens[..tokens.len().min(most)].to_vec()),
        }
    };
    inputs.iter().enumerate().map(one).collect()
}

/// The start of a text, at most `most` bytes. It contains all tokens that fit.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
