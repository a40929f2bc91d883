//! A model that generates text, on a thread of its own.
//!
//! Between two steps the thread starts new jobs, and it sends the engine's events to the channels
//! of their readers. Without work it sleeps; after [`IDLE`] it frees unused memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use engine::{Engine, Event, Request, SequenceId};
use tokio::sync::oneshot;

use crate::error::{ErrorKind, RequestError, Result};
use crate::stats::Stats;
use crate::stream::{Channel, ChosenToken, Ended};

/// Time without work after which an engine frees memory.
const IDLE: Duration = Duration::from_secs(5);

/// Interval at which an idle engine checks whether the machine needs its memory.
const LOOK: Duration = Duration::from_millis(200);

/// A request, once for each choice. The choices share their prompt through the prefix cache.
struct Generate {
    requests: Vec<Request>,
    channel: Arc<Channel>,
    /// Longest predicted time to the first token.
    max_wait: Duration,
    /// Receives whether the engine accepted the request.
    accepted: oneshot::Sender<Result<()>>,
}

/// A message to the thread.
enum GenerateJob {
    Generate(Box<Generate>),
    /// Work on the engine, between two steps.
    With(Box<dyn FnOnce(&mut Engine) + Send>),
}

/// The handle of the thread. After all clones are dropped and all answers have ended, the thread
/// ends and frees its memory.
#[derive(Clone)]
pub(crate) struct Worker {
    jobs: mpsc::Sender<GenerateJob>,
    pub(crate) stats: Arc<Stats>,
    active: Arc<Mutex<Vec<Weak<Channel>>>>,
    /// Jobs sent and not yet received.
    n_sent: Arc<AtomicUsize>,
}

impl Worker {
    /// Makes a handle and the state of its thread.
    pub(crate) fn new() -> (Worker, Thread) {
        let (jobs, inbox) = mpsc::channel();
        let (stats, n_sent) = (Arc::new(Stats::default()), Arc::new(AtomicUsize::new(0)));
        let thread = Thread {
            inbox,
            stats: stats.clone(),
            n_sent: n_sent.clone(),
            readers: HashMap::new(),
            last_token: HashMap::new(),
        };
        (Worker { jobs, stats, active: Arc::default(), n_sent }, thread)
    }

    /// Sends a request, which is queued when this returns.
    ///
    /// # Errors
    /// [`Engine::add`] refuses it, it would wait longer than `max_wait`, or the thread has died.
    pub(crate) async fn generate(
        &self,
        requests: Vec<Request>,
        channel: Arc<Channel>,
        max_wait: Duration,
    ) -> Result<()> {
        let (accepted, is_accepted) = oneshot::channel();
        {
            let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
            active.retain(|channel| channel.strong_count() > 0);
            active.push(Arc::downgrade(&channel));
        }
        self.n_sent.fetch_add(1, Ordering::Relaxed);
        let job = Generate { requests, channel, max_wait, accepted };
        self.jobs.send(GenerateJob::Generate(Box::new(job))).map_err(|_| died())?;
        is_accepted.await.map_err(|_| died())?
    }

    /// Runs work on the engine between two steps.
    ///
    /// # Errors
    /// The thread has died.
    pub(crate) async fn with_engine<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T> {
        let (done, is_done) = oneshot::channel();
        // The caller may have gone.
        let job = |engine: &mut Engine| drop(done.send(job(engine)));
        self.jobs.send(GenerateJob::With(Box::new(job))).map_err(|_| died())?;
        is_done.await.map_err(|_| died())
    }

    /// Saves the prefix cache, if that is enabled, and waits for it.
    pub(crate) async fn save(&self) {
        // A thread that has died has nothing to save.
        let _ = self.with_engine(|engine| save(engine, &mut || true)).await;
    }

    /// Waiting requests, with those that the thread has not received yet.
    pub(crate) fn n_waiting(&self) -> usize {
        self.stats.waiting.get() as usize + self.n_sent.load(Ordering::Relaxed)
    }

    /// Requests that still have readers, oldest first.
    pub(crate) fn active(&self) -> Vec<Arc<Channel>> {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.iter().filter_map(Weak::upgrade).collect()
    }
}

fn died() -> RequestError {
    RequestError::internal("the model's thread has died; see the log")
}

/// The state of the thread.
pub(crate) struct Thread {
    inbox: mpsc::Receiver<GenerateJob>,
    stats: Arc<Stats>,
    n_sent: Arc<AtomicUsize>,
    /// Channel and choice that receive a sequence's events.
    readers: HashMap<SequenceId, (Arc<Channel>, usize)>,
    /// Time of each sequence's last token.
    last_token: HashMap<SequenceId, Instant>,
}

impl Thread {
    /// Runs jobs until all senders are dropped. A panic ends the thread: every request gets an
    /// error, and the model must be loaded again.
    pub(crate) fn run(mut self, mut engine: Engine) {
        if catch_unwind(AssertUnwindSafe(|| self.work(&mut engine))).is_ok() {
            return;
        }
        tracing::error!("the model's thread panicked; its requests fail, and the next one reloads the model");
        for (channel, _) in self.readers.values() {
            channel.fail("the model's thread panicked; see the log");
        }
        self.stats.clear();
        // Dropping this informs the requests that wait to be accepted.
        drop(self);
        // After a panic the engine's state is unknown.
        if catch_unwind(AssertUnwindSafe(|| drop(engine))).is_err() {
            tracing::error!("the model's engine panicked when its memory was freed");
        }
    }

    fn work(&mut self, engine: &mut Engine) {
        self.publish(engine);
        loop {
            let (mut gave_back, idle_since) = (false, Instant::now());
            while engine.is_idle() {
                let job = match engine.kv().resident_bytes() {
                    0 => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    _ => self.inbox.recv_timeout(LOOK),
                };
                match job {
                    Ok(job) => self.take(job, engine),
                    Err(RecvTimeoutError::Disconnected) => {
                        save(engine, &mut || true);
                        return;
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let mut followed = engine.follow_memory();
                        if !gave_back && idle_since.elapsed() >= IDLE {
                            // New requests wait for the writing of one file at most.
                            save(engine, &mut || self.n_sent.load(Ordering::Relaxed) == 0);
                            followed = followed.and_then(|()| engine.give_back_memory().map(drop));
                            gave_back = true;
                        }
                        if let Err(error) = followed {
                            tracing::warn!("cannot free memory: {error}");
                        }
                    }
                }
                self.publish(engine);
            }
            while let Ok(job) = self.inbox.try_recv() {
                self.take(job, engine);
            }
            self.step(engine);
            self.publish(engine);
        }
    }

    fn take(&mut self, job: GenerateJob, engine: &mut Engine) {
        let stats = self.stats.clone();
        let _beat = stats.pulse.begin();
        let job = match job {
            GenerateJob::Generate(job) => job,
            GenerateJob::With(job) => return job(engine),
        };
        self.n_sent.fetch_sub(1, Ordering::Relaxed);
        let Generate { requests, channel, max_wait, accepted } = *job;
        let added = admit(engine, channel.activity.n_prompt, max_wait)
            .and_then(|()| self.add(requests, &channel, engine));
        // A client that has disconnected has cancelled its sequences.
        drop(accepted.send(added));
    }

    fn add(&mut self, requests: Vec<Request>, channel: &Arc<Channel>, engine: &mut Engine) -> Result<()> {
        let mut ids = Vec::with_capacity(requests.len());
        for (choice, request) in requests.into_iter().enumerate() {
            match engine.add(request) {
                Ok(id) => {
                    ids.push(id);
                    self.readers.insert(id, (channel.clone(), choice));
                }
                Err(error) => {
                    // Add all choices or none.
                    ids.iter().for_each(|id| engine.cancel(*id));
                    ids.iter().for_each(|id| drop(self.readers.remove(id)));
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, engine: &mut Engine) {
        let Thread { readers, last_token, stats, .. } = self;
        let _beat = stats.pulse.begin();
        match engine.step(&mut |event| route(readers, last_token, stats, event)) {
            Ok(_) => stats.failing.set(0),
            Err(error) => {
                // Only the requests of the failed step end; others continue.
                tracing::error!("a step failed: {error}");
                stats.failing.add(1);
                engine.end_failed(&error.to_string(), &mut |event| route(readers, last_token, stats, event));
            }
        }
    }

    fn publish(&self, engine: &Engine) {
        let (stats, load) = (&self.stats, engine.load());
        stats.running.set(load.n_running as u64);
        stats.waiting.set(load.n_waiting as u64);
        stats.parked.set(load.n_parked as u64);
        stats.kv_bytes_used.set(load.kv_bytes_used);
        stats.kv_bytes_budget.set(load.kv_bytes_budget);
        stats.tokens_computed.set(load.n_computed);
        stats.tokens_cached.set(load.n_cached);
        stats.tokens_generated.set(load.n_generated);
        // Only if no slot is free, since the prediction scans the whole queue.
        if load.n_running >= load.n_slots {
            let wait = engine.predicted_first_token_seconds(1).unwrap_or(0.0);
            stats.predicted_wait_ms.set((wait * 1e3) as u64);
        }
    }
}

/// Saves the prefix cache, if that is enabled.
fn save(engine: &mut Engine, goes_on: &mut dyn FnMut() -> bool) {
    match engine.save_prefixes(goes_on) {
        Ok(0) => {}
        Ok(n) => tracing::debug!("saved {n} prefixes"),
        Err(error) => tracing::warn!("cannot save prefixes: {error}"),
    }
}

/// Refuses a prompt of `n_tokens` that would wait too long.
///
/// # Errors
/// It would wait longer than `max_wait` for its first token.
fn admit(engine: &Engine, n_tokens: usize, max_wait: Duration) -> Result<()> {
    // A prompt without others before it never waits, however long it takes.
    let load = engine.load();
    let waits = load.n_running + load.n_waiting > 0;
    let predicted = engine.predicted_first_token_seconds(n_tokens).filter(|_| waits).unwrap_or(0.0);
    let over = predicted - max_wait.as_secs_f64();
    if over <= 0.0 {
        return Ok(());
    }
    let message = format!(
        "the first token would come after about {predicted:.0} s, and at most {} s are allowed; try again later",
        max_wait.as_secs()
    );
    // No overflow: predictions are hours at most.
    let retry_after = Some(Duration::try_from_secs_f64(over).unwrap_or(max_wait));
    Err(RequestError { retry_after, ..RequestError::new(ErrorKind::Overloaded, message) })
}

/// Sends an event to its reader.
fn route(
    readers: &mut HashMap<SequenceId, (Arc<Channel>, usize)>,
    last_token: &mut HashMap<SequenceId, Instant>,
    stats: &Stats,
    event: Event<'_>,
) {
    let id = event.sequence();
    let Some((channel, choice)) = readers.get(&id) else { return };
    match event {
        Event::Token { id: token, text, logprob, best, n_reused, timings, .. } => {
            let now = Instant::now();
            match last_token.insert(id, now) {
                Some(before) => stats.token.observe(now.duration_since(before)),
                None => stats.first_token.observe(channel.activity.since.elapsed()),
            }
            channel.note_token();
            channel.note_cached(n_reused);
            channel.write(*choice, |piece| {
                piece.text.push_str(text);
                piece.timings = timings;
                piece.tokens.push(ChosenToken { id: token, logprob, top: best.to_vec() });
            });
        }
        Event::Progress { progress, .. } => channel.write(*choice, |piece| piece.note_progress(progress)),
        Event::PromptToken { id: token, logprob, best, .. } => channel.write(*choice, |piece| {
            piece.prompt.push(ChosenToken { id: token, logprob: Some(logprob), top: best.to_vec() });
        }),
        Event::Done { text, reason, timings, seed, .. } => {
            channel.note_cached(timings.reused_tokens);
            stats.request.observe(channel.activity.since.elapsed());
            channel.write(*choice, |piece| {
                piece.text.push_str(text);
                piece.ended = Some(Ended { reason: reason.clone(), timings, seed });
            });
            last_token.remove(&id);
            readers.remove(&id);
        }
    }
}
