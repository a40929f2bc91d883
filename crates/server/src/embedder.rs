//! A model that turns texts into vectors, on a thread of its own.
//!
//! Requests that wait together are computed together, whole requests at a time, in order of arrival. Texts have become tokens before.

use engine::{Embedder, Embeddings, TextEncoder};
use tokio::sync::oneshot;

use crate::error::{ApiError, ErrorKind, Result};
use crate::preparing::Work;
use crate::queue::{Receiver, Running, Sender, died};
use crate::request::Prompt;
use crate::stats::Stats;

/// Tokens of requests that are computed together; one request may have more.
const MAX_TOKENS: usize = 16 << 10;

/// Texts to embed.
pub(crate) struct Job {
    /// The tokens of each.
    pub(crate) inputs: Vec<Vec<u32>>,
    pub(crate) done: oneshot::Sender<Result<Embeddings>>,
}

/// The handle of the thread.
#[derive(Clone)]
pub(crate) struct EmbedderWorker {
    pub(crate) jobs: Sender<Job>,
}

impl EmbedderWorker {
    /// Vectors of texts, in their order.
    ///
    /// # Errors
    /// As many requests wait as may, or the device failed.
    pub(crate) async fn embed(&self, inputs: Vec<Vec<u32>>) -> Result<Embeddings> {
        let (done, is_done) = oneshot::channel();
        let _place = self.jobs.send(Job { inputs, done })?;
        is_done.await.map_err(|_| died())?
    }
}

/// Do jobs until nobody can send any more.
pub(crate) fn run(mut embedder: Embedder, jobs: &Receiver<Job>, stats: &Stats) {
    // What was taken from the queue and did not fit.
    let mut next = None;
    while let Some(first) = next.take().or_else(|| jobs.recv()) {
        let mut batch = Vec::new();
        let mut n_tokens = 0;
        let mut job = Some(first);
        while let Some((taken, running)) = job {
            n_tokens += taken.inputs.iter().map(Vec::len).sum::<usize>();
            batch.push((taken.inputs, taken.done, running));
            job = if n_tokens < MAX_TOKENS { jobs.try_recv() } else { None };
        }
        stats.tokens_computed.add(n_tokens as u64);
        compute(&mut embedder, batch);
        next = jobs.try_recv();
    }
}

/// The tokens of a request's inputs. Of a text that the model does not take whole, the end is cut if `truncate`; if not, it is an
/// error.
///
/// # Errors
/// A text is too long or cannot be tokenised, or nobody waits any more.
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
            let message = format!("input {index} has {found}, expected at most {most}, what the model takes");
            Err(ApiError {
                param: Some("input".into()),
                code: Some("context_length_exceeded"),
                ..ApiError::new(ErrorKind::ContextLength, message)
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

/// A text without what lies after so many bytes: all of its tokens that count are before.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The tokens of a job's inputs, who waits for their vectors, and the mark that they are computed.
type Tokenized = (Vec<Vec<u32>>, oneshot::Sender<Result<Embeddings>>, Running);

/// Compute several jobs together; if that fails, each by itself, so that one cannot spoil another.
fn compute(embedder: &mut Embedder, batch: Vec<Tokenized>) {
    let all: Vec<&[u32]> = batch.iter().flat_map(|(tokens, ..)| tokens.iter().map(Vec::as_slice)).collect();
    let Ok(together) = embedder.embed_tokens(&all) else {
        for (tokens, done, running) in batch {
            let found = embedder.embed_tokens(&tokens).map_err(ApiError::from);
            drop(running);
            drop(done.send(found));
        }
        return;
    };
    let mut vectors = together.vectors.into_iter();
    for (tokens, done, running) in batch {
        // Whoever has the answer may ask again at once.
        drop(running);
        let n_tokens = tokens.iter().map(Vec::len).sum();
        let vectors = vectors.by_ref().take(tokens.len()).collect();
        drop(done.send(Ok(Embeddings { vectors, n_tokens, truncated: Vec::new() })));
    }
}
